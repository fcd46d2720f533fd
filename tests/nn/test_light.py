"""`aaren_rl.nn` without the simulators: what it imports, and what a light installation is."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from small_run import ROOT

PAGE = ROOT / "docs" / "howto" / "extend.md"
LIGHT = re.compile(r"pip install --no-deps -e \. && pip install ('torch.*)")

SCRIPT = """
from importlib.util import find_spec
import torch
from aaren_rl.nn import AarenTrunk
torch.manual_seed(0)
trunk, x = AarenTrunk(16, 2, 4), torch.randn(4, 20, 16)
trunk(x)[0].sum().backward()
with torch.no_grad():
    wanted, last = trunk(x)
    state = trunk.initial_state(4)
    for n in range(20):
        y, state = trunk.step(x[:, n], state)
        assert (y - wanted[:, n]).abs().max() < 1e-5
    program = torch.export.export(trunk, (x,))
    assert (program.module()(x)[0] - wanted).abs().max() < 1e-5
print("done", *filter(find_spec, ["gymnasium", "mujoco", "minari", "stable_baselines3"]))
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_other_package_is_imported():
    """Beside torch and numpy, and what these import themselves."""
    tops = "{name.partition('.')[0] for name in sys.modules}"
    script = f"import sys, torch, numpy\nbefore = {tops}\nimport aaren_rl.nn\nprint(*sorted({tops} - before))"
    assert set(run(script).split()) - set(sys.stdlib_module_names) <= {"aaren_rl"}


def test_the_light_installation_is_a_part_of_the_whole():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    whole = {need.name: need.specifier for need in map(Requirement, project["dependencies"])}
    (line,) = LIGHT.findall(PAGE.read_text("utf-8"))
    light = [Requirement(text) for text in re.findall(r"'([^']+)'", line)]
    assert [need.name for need in light] == ["torch", "numpy", "numba"]
    assert {need.name: need.specifier for need in light}.items() <= whole.items()


@pytest.mark.slow
def test_a_light_installation_in_an_empty_environment(tmp_path):
    """The page's line, of the checkout instead of the index."""
    (line,) = LIGHT.findall(PAGE.read_text("utf-8"))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", ROOT], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *re.findall(r"'([^']+)'", line)], check=True)
    done = subprocess.run([python, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
