"""docs/examples/act.cpp and act.mjs act as Python does.

The C++ program needs a compiler, the library in the wheel of ONNX Runtime, and its headers (libonnxruntime-dev of
Debian 13; elsewhere set CPLUS_INCLUDE_PATH to their folder). The JavaScript program needs node and one of PACKAGES.
"""

import dataclasses
import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from policies import make_card, make_discrete, make_discrete_card, make_policy, onnx_file_of
from small_run import ROOT

from aaren_rl.agents import Policy
from aaren_rl.runtime import load_policy

EXAMPLES = ROOT / "docs" / "examples"
HEADERS = "-I/usr/include/onnxruntime"
PACKAGES = {"onnxruntime-node": EXAMPLES, "onnxruntime-web": ROOT / "docs" / "demo"}  # and where npm puts them
TOLERANCE = 1e-5

Program = list[str | Path]


@pytest.fixture(scope="module", params=["C++", *PACKAGES])
def program(request, tmp_path_factory) -> Program:
    folder = tmp_path_factory.mktemp("act")
    return compiled(folder) if request.param == "C++" else with_package(request.param, folder)


def compiled(folder: Path) -> Program:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler: install g++, or set CXX")
    find = [compiler, HEADERS, "-E", "-include", "onnxruntime_cxx_api.h", "-x", "c++", os.devnull]
    if subprocess.run(find, capture_output=True, check=False).returncode:
        pytest.skip("no headers of ONNX Runtime: install libonnxruntime-dev, or set CPLUS_INCLUDE_PATH to their folder")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if library is None:
        pytest.skip("the wheel of ONNX Runtime for this system has no libonnxruntime.so")
    named = folder / "libonnxruntime.so.1"  # as programs ask for it
    named.symlink_to(library)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", HEADERS, f"-Wl,-rpath,{folder}"]
    subprocess.run([compiler, *flags, EXAMPLES / "act.cpp", named, "-o", folder / "act"], check=True)
    return [folder / "act"]


def with_package(package: str, folder: Path) -> Program:
    modules = PACKAGES[package] / "node_modules"
    if shutil.which("node") is None or not (modules / package).is_dir():
        pytest.skip(f"no node, or no {package} in {modules.relative_to(ROOT)}: see CONTRIBUTING.md")
    (folder / "node_modules").mkdir()
    # Both packages have the same functions, so the one that the demo installs is enough to test the program.
    for name, source in (("onnxruntime-node", package), ("onnxruntime-common", "onnxruntime-common")):
        (folder / "node_modules" / name).symlink_to(modules / source)
    shutil.copy(EXAMPLES / "act.mjs", folder)
    return ["node", folder / "act.mjs"]


def far_from_zero() -> Policy:
    policy = make_policy()
    mean = policy.observation_mean.double() + 1.7e9
    return Policy(policy.model, mean, policy.observation_std, 50.0, "recurrent", 8, exact=True)


POLICIES: dict[str, tuple[Callable[[], Policy], float | str]] = {
    "recurrent": (make_policy, 300.0),
    "staggered": (lambda: make_policy(rollout="staggered"), 300.0),
    "window, in float32": (lambda: make_policy("attention", "window"), 300.0),
    "auto": (lambda: make_policy(max_return_estimate=True), "auto"),
    "far from zero": (far_from_zero, 300.0),
    "discrete": (lambda: make_discrete(start=3), 100.0),
}


@functools.cache
def content(kind: str) -> bytes:
    policy = POLICIES[kind][0]()
    card = (make_discrete_card if policy.discrete else make_card)(policy.model, rollout=policy.rollout)
    return onnx_file_of(policy, dataclasses.replace(card, action_start=policy.action_start))


def exported(kind: str, folder: Path) -> Path:
    file = folder / "policy.onnx"
    file.write_bytes(content(kind))
    return file


def run(program: Program, file: Path, target: float | str, lines: str) -> subprocess.CompletedProcess[str]:
    command = [*program, file, str(target)]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("kind", POLICIES)
def test_its_actions_are_pythons(program, kind, tmp_path):
    """Over two episodes."""
    file, target = exported(kind, tmp_path), POLICIES[kind][1]
    policy, rng = load_policy(file), np.random.default_rng(0)
    size, count = len(policy.card["observation_mean"]), 1000 if kind == "recurrent" else 60
    observations = rng.normal(1.7e9 * (kind == "far from zero"), 1, (count, size)).astype(policy.observation_dtype)
    rewards = rng.uniform(0, 3, count)
    expected, lines = [], []
    for t in range(count):
        if t in (0, count // 3):
            state, rewards[t] = policy.initial_state(1, target), 0.0
            lines.append("")
        action, state = policy.act(observations[t : t + 1], rewards[t : t + 1], state)
        expected.append(action[0])
        lines.append(" ".join(map(repr, [float(rewards[t]), *observations[t].tolist()])))
    done = run(program, file, target, "\n".join(lines))
    assert done.returncode == 0 and done.stderr.startswith("median time of an action: "), done.stderr
    found = np.array([line.split() for line in done.stdout.splitlines()], float)
    assert len(np.unique(expected, axis=0)) > 1
    np.testing.assert_allclose(found, np.reshape(expected, (count, -1)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("target", "lines", "message"),
    [
        ("many", "", "act: not numbers: many"),
        ("300", "0 1 2", "act: observation: "),
        ("300", "0 1 x", "act: not numbers: 0 1 x"),
        ("300", "nan 1 2", "act: not numbers: nan 1 2"),
        ("auto", "0 1 2", 'act: no estimate for "auto": give a number'),
    ],
)
def test_bad_input_gives_one_line(program, target, lines, message, tmp_path):
    done = run(program, exported("recurrent", tmp_path), target, lines)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("spoiled", [None, b"no graph"])
def test_a_file_that_is_no_policy_gives_one_line(program, spoiled, tmp_path):
    file = tmp_path / "policy.onnx"
    if spoiled is not None:
        file.write_bytes(spoiled)
    done = run(program, file, "300", "")
    assert done.returncode == 1 and done.stderr.startswith("act: ") and done.stderr.count("\n") == 1
