"""Command lines, files and environments that cannot be: each ends with one line that says why, and an exit code."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from aaren_rl.__main__ import main

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
ANY = range(2, 8)
STEPS, LENGTH = 80, 8
TINY = "--width 8 --layers 1 --heads 2 --updates 2 --warmup-updates 1 --steps-per-update 40 --threads 1"
TINY += " --eval-every 2 --eval-episodes 1 --final-episodes 1 --target-return 4"
OWN = f"--env-id Odd-v0 --env tiny --source DATA --out runs {TINY}"
POLICY = "RUN/policy/config.json"


class Odd(gym.Env[Any, Any]):
    """Fails where it is asked to."""

    observation_space = gym.spaces.Box(-8, 8, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        if self.fault == "raises":
            raise KeyError("no\nrobot\x1b[2J")
        return (np.zeros(2) if self.fault == "size" else np.zeros(3, np.float32)), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.time += 1
        if self.fault == "exits":
            raise SystemExit(3)
        seen = np.full(3, np.nan if self.fault == "nan" else 0.0, np.float32)
        reward = {"reward": "much", "infinite": np.inf}.get(self.fault, 1.0)
        return seen, reward, "no" if self.fault == "ended" else False, self.time >= LENGTH, {}


FAULTS = ("raises", "size", "exits", "nan", "reward", "infinite", "ended")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Data, and a run on them."""
    root, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    gym.register("Odd-v0", Odd)
    for fault in FAULTS:
        gym.register(f"Odd{fault}-v0", lambda fault=fault: Odd(fault))
    with h5py.File(root / "data.hdf5", "w") as file:
        file["observations"] = rng.standard_normal((STEPS, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (STEPS, 2)).astype(np.float32)
        file["rewards"] = rng.standard_normal(STEPS).astype(np.float32)
        file["terminals"], file["timeouts"] = np.zeros(STEPS, bool), np.arange(1, STEPS + 1) % LENGTH == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert call(f"train {OWN}", root) == 0
    return root


@pytest.fixture
def here(world, tmp_path, monkeypatch) -> Path:
    """A folder of its own; the run in it is a copy."""
    shutil.copytree(world / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return world


def call(line: str, world: Path, **more: str) -> int:
    words = {"DATA": str(world / "data.hdf5"), "RUN": "runs/tiny/decision-aaren/seed0", **more}
    command, *given = [word for word in line.split(" ") if word]
    for name, value in words.items():
        given = [word.replace(name, value) for word in given]
    try:
        return main([command, *given])
    except SystemExit as left:  # of the parser
        return int(left.code or 0)


def ends_well(code: int, allowed: Any, said: str) -> None:
    assert code in allowed, said
    assert "Traceback" not in said and "bug in aaren-rl" not in said
    errors = [line for line in said.splitlines() if "error: " in line]
    assert len(errors) == 1 and errors[0].isprintable() and len(errors[0]) < 6000


NUMBERS = ("nan", "-inf", "1e400", "", "1" * 5000, "²")
LINES: dict[str, Any] = {
    **{f"train {OWN} --return-scale={value}": {2} for value in (*NUMBERS, "0", "1e-30")},
    **{f"train {OWN} --updates={value}": {2} for value in ("-1", "1.5", "9" * 23)},
    **{f"train {OWN} --env={name}": {2} for name in ("", "../x", "a" * 5000, "\x1b[2J")},
    **{f"datasets info minari:{name}": {2, 3, 5, 7} for name in ("", "../../x-v0", "é-v0")},
    **{f"evaluate RUN --register={name}": {2} for name in ("", ".", "os.path.nothing")},
    **{f"evaluate RUN --device={name}": {2} for name in ("cuda:99", "meta")},
    **{f"evaluate RUN --env-id Odd{fault}-v0": {5} for fault in FAULTS},
    **{f"evaluate RUN --env-id {name}": {2, 5} for name in ("Odd-v99", "../Odd-v0")},
    **{f"evaluate RUN --temperature={value}": {2} for value in ("0", "nan", "warm", "1")},  # its actions are continuous
    "evaluate RUN --env-id CartPole-v1": {4},  # of other sizes than the policy
    f"train {OWN} --width 7": {2},
    f"train {OWN} --width 1000000 --layers 1000": ANY,
    f"train {OWN} --learning-rate 1e30 --updates 30 --precision float32 --out other": {6},
    "evaluate RUN --rollout window --rollout-context 9007199254740992": ANY,
    "evaluate RUN --video x.avi": ANY,
    "evaluate RUN --json missing/x.json": {2},
    "export RUN": {2},
    "compare --out c --agents nobody": {2},
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line)[:60])
def test_a_line(line, here, capsys):
    ends_well(call(line, here), LINES[line], capsys.readouterr().err)


PATHS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": Path.touch,
    "folder": Path.mkdir,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "a link to itself": lambda path: path.symlink_to("odd"),
    "a pipe": os.mkfifo,
}
READ = ("evaluate odd", "sweep odd", "import-weights odd out", "train --env hopper-medium --source odd")


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("line", READ)
def test_a_path(line, kind, here, capsys):
    PATHS[kind](Path("odd"))
    ends_well(call(line, here), ANY, capsys.readouterr().err)


@pytest.mark.parametrize("line", ["evaluate RUN --episodes 1 --json odd", "export RUN --force --out odd"])
def test_what_is_no_file_is_not_replaced(line, here, capsys):
    """Somebody who is root, as in a container, would lose /dev/null."""
    os.mkfifo("odd")
    ends_well(call(line, here), {2}, capsys.readouterr().err)
    assert Path("odd").is_fifo()


TEXTS = ("", "- 1", '{"agent": ', "[" * 100_000, "\0{}", "agent: &a [*a]",
         "agent: !!python/object/apply:os.system [ls]", "? [a, b]\n: 1")  # fmt: skip
FILES = {POLICY: "evaluate RUN/policy", "RUN/config.yaml": f"train {OWN} --resume", "grid.yaml": "sweep grid.yaml"}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("file", FILES)
def test_a_text(file, text, here, capsys):
    Path(file.replace("RUN", "runs/tiny/decision-aaren/seed0")).write_text(text)
    ends_well(call(FILES[file], here), ANY, capsys.readouterr().err)
