"""Command lines, files and environments that cannot be: each ends with one line that says why, and an exit code."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from checks import fails
from gymnasium.envs.registration import EnvSpec

from aaren_rl.__main__ import main

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
ANY = range(2, 8)
OWN = "--env hopper-medium --source DATA --out runs --width 8 --layers 1 --heads 2 --updates 2 --threads 1"
RUN = "runs/hopper-medium/decision-aaren/seed0"


class Odd(gym.Wrapper[Any, Any, Any, Any]):
    """Fails where it is asked to."""

    def __init__(self, fault: str) -> None:
        super().__init__(gym.make("Hopper-v4"))
        self.fault = fault

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.fault == "raises":
            raise KeyError("no\nrobot\x1b[2J")
        seen, more = super().reset(**options)
        return seen[:2] if self.fault == "size" else seen, more

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        if self.fault == "exits":
            raise SystemExit(3)
        seen, reward, _, cut, more = super().step(action)
        return seen, reward, "no", cut, more


FAULTS = ("raises", "size", "exits", "ended")  # what it returns in other ways: tests/envs/simulation/test_rollout.py


@pytest.fixture
def here(hopper_file, trained_run, tmp_path, monkeypatch) -> Callable[[str], list[str]]:
    """Gives the words of a command, in a folder of its own with a copy of a run."""
    for fault in FAULTS:
        made = EnvSpec(f"Odd{fault}-v0", lambda fault=fault: Odd(fault), max_episode_steps=8)
        monkeypatch.setitem(gym.registry, made.id, made)
    shutil.copytree(trained_run, tmp_path / RUN)
    monkeypatch.chdir(tmp_path)
    return lambda line: [w.replace("DATA", str(hopper_file)).replace("RUN", RUN) for w in line.split(" ") if w]


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
    f"train {OWN} --width 7": {2},
    f"train {OWN} --width 1000000 --layers 1000": ANY,
    f"train {OWN} --learning-rate 1e30 --updates 30 --precision float32 --out other": {6},
    "evaluate RUN --rollout window --rollout-context 9007199254740992": ANY,
    "evaluate RUN --json missing/x.json": {2},
    "export RUN": {2},
    "compare --out c --agents nobody": {2},
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line)[:60])
def test_a_line(line, here, capsys):
    fails(capsys, main, here(line), *LINES[line])


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
    fails(capsys, main, here(line), *ANY)


@pytest.mark.parametrize("line", ["evaluate RUN --episodes 1 --json odd", "export RUN --force --out odd"])
def test_what_is_no_file_is_not_replaced(line, here, capsys):
    """Somebody who is root, as in a container, would lose /dev/null."""
    os.mkfifo("odd")
    fails(capsys, main, here(line), 2)
    assert Path("odd").is_fifo()


TEXTS = ("", "- 1", '{"agent": ', "[" * 100_000, "\0{}", "agent: &a [*a]",
         "agent: !!python/object/apply:os.system [ls]", "? [a, b]\n: 1")  # fmt: skip
CARD, SETTINGS = "RUN/policy/config.json", "RUN/config.yaml"
FILES = {CARD: "evaluate RUN/policy", SETTINGS: f"train {OWN} --resume", "grid.yaml": "sweep grid.yaml"}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("file", FILES)
def test_a_text(file, text, here, capsys):
    Path(file.replace("RUN", RUN)).write_text(text)
    assert Path(file).name in fails(capsys, main, here(FILES[file]), *ANY)
