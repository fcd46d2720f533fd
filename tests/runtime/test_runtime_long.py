"""The runner at length: a hundred episodes of a trained agent, and an episode of a hundred thousand steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from policies import OBSERVATION, in_float64, make_card, make_policy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from aaren_rl import load_policy
from aaren_rl.envs import rollout
from aaren_rl.export.command import main as export
from aaren_rl.export.model import make_model as make_onnx
from aaren_rl.export.model import make_runner
from aaren_rl.runtime import load
from aaren_rl.train.command import main as train

PLAYING = """
import json, sys
from aaren_rl.envs import rollout
from aaren_rl.runtime import load
out = rollout(load(sys.argv[1]), "Hopper-v4", episodes=100, target_return=3600.0, seed=1000, workers=0)
print(json.dumps({"torch": "torch" in sys.modules, "returns": out.returns.tolist()}))
"""


@pytest.mark.slow
def test_a_hundred_hopper_episodes_without_torch(tmp_path: Path) -> None:
    """In float64; in float32 contacts amplify the last bit, in which no two libraries agree, into other episodes."""
    options = [
        "--updates",
        "200",
        "--width",
        "64",
        "--eval-every",
        "200",
        "--final-episodes",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert train(["--env", "hopper-medium", "--threads", "1", *options]) == 0
    run, file = tmp_path / "hopper-medium" / "decision-aaren" / "seed0", tmp_path / "policy.onnx"
    assert export([str(run), "--out", str(file), "--precision", "float64"]) == 0
    done = subprocess.run([sys.executable, "-c", PLAYING, str(file)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert load(file).export["checked_steps"] == 1000
    policy = in_float64(load_policy(run))
    wanted = rollout(policy, "Hopper-v4", episodes=100, target_return=3600.0, seed=1000, workers=0)
    assert not found["torch"] and wanted.lengths.mean() > 50
    np.testing.assert_allclose(found["returns"], wanted.returns, rtol=1e-3)


@pytest.mark.slow
def test_a_hundred_thousand_steps() -> None:
    """Actions stay within 1e-5 of the float64 model's, and the state keeps its size."""
    policy = make_policy()
    exact, runner = in_float64(policy), make_runner(make_onnx(policy, make_card(policy.model)))
    rng = np.random.default_rng(0)
    ahead, state = exact.initial_state(1, np.array([50.0])), runner.initial_state(1, np.array([50.0]))
    largest, sizes = 0.0, set()
    for step in range(100_000):
        observation, reward = rng.normal(size=(1, OBSERVATION)).astype(np.float32), rng.normal(size=1)
        wanted, ahead = exact.act(observation, reward, ahead)
        action, state = runner.act(observation, reward, state)
        largest = max(largest, float(np.abs(action - wanted).max()))
        if step in (10, 99_999):
            sizes.add(state.memory.nbytes)
    assert largest <= 1e-5 and len(sizes) == 1
