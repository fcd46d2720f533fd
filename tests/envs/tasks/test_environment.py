"""MuJoCo is imported without a renderer, whatever MUJOCO_GL names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
from aaren_rl.envs import make_env
env = make_env("Hopper-v4")
env.reset(seed=0)
print(env.step(env.action_space.sample())[1], os.environ["MUJOCO_GL"])
"""


@pytest.mark.defect(9)
@pytest.mark.parametrize("chosen", ["osmesa", "nonsense"])
def test_simulation_runs_without_the_renderer_that_is_chosen(chosen: str) -> None:
    """Neither can be imported here; the variable stays for whoever draws."""
    for command in (["-c", SCRIPT], ["-m", "aaren_rl.evaluate", "--help"]):
        ran = subprocess.run(
            [sys.executable, *command], env={**os.environ, "MUJOCO_GL": chosen}, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stderr) == (0, "")
    assert "usage" in ran.stdout
