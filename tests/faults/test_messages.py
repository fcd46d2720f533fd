"""What a command or a call answers to what it should not be given, word by word."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import odd_environments
import pytest
from policies import save_run

from aaren_rl.base.errors import AarenRLError, CheckpointError, UsageError, one_line
from aaren_rl.base.files import check_free, read_small, write_folder, write_text, write_whole
from aaren_rl.cli import Parser
from aaren_rl.collect.config import inspect_env
from aaren_rl.envs import SimulationError, make_env
from aaren_rl.envs.simulation.stepping import LocalStepper, take
from aaren_rl.envs.tasks.environment import close_env, inspect_spaces
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.policies.folder import load_tensors


@pytest.mark.parametrize("kind", odd_environments.RAISING)
def test_whatever_an_environment_raises_is_told_as_its_own(kind: str) -> None:
    with pytest.raises(SimulationError, match=rf"Odd{kind}-v0.* raised \w") as caught:
        stepper = LocalStepper(f"Odd{kind}-v0", {}, [5])
        stepper.reset()
        stepper.send(np.array([0]), np.zeros((1, 2), np.float32))
        stepper.close()
    assert str(caught.value).isprintable()
    if kind.startswith(("Make", "Close")):
        with pytest.raises(SimulationError):
            inspect_spaces(f"Odd{kind}-v0")
            close_env(make_env(f"Odd{kind}-v0"))


@pytest.mark.parametrize("value", [object(), np.array([False, True]), None, "no"])
def test_ends_that_are_neither_true_nor_false(value: Any) -> None:
    env = Mock(step=lambda _: (np.zeros(3), 0.0, value, False, {}))
    with pytest.raises(
        SimulationError, match=f"returned {type(value).__name__} as terminated, which is neither true nor"
    ):
        take(env, np.zeros(2))


@pytest.mark.parametrize("value", [True, np.bool_(True), 1, np.array(True), np.int64(1), 1.0])
def test_ends_of_many_types(value: Any) -> None:
    space = odd_environments.Good().observation_space
    env = Mock(step=lambda _: (np.zeros(3), 0.0, value, np.bool_(False), {}), observation_space=space)
    assert take(env, np.zeros(2))[2:4] == (True, False)


def test_integer_actions_cannot_be_learned() -> None:
    with pytest.raises(UsageError, match=r"actions are Box\(-1, 1, \(2,\), int64\).*numpy\.rint"):
        inspect_env("OddMakeIntegers-v0")


def test_ctrl_c_is_not_the_environments() -> None:
    stepper = LocalStepper("OddInterrupts-v0", {}, [5])
    with pytest.raises(KeyboardInterrupt):
        stepper.reset()


def test_messages_are_one_printable_line() -> None:
    assert str(AarenRLError("a\nb\x1b[2J \udcff é 🤖")) == r"a\nb\x1b[2J \udcff é 🤖"
    assert one_line(odd_environments.Unprintable()) == "Unprintable"


def test_only_files_are_read_and_small_ones(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match="is not a file"):
            read_small(path)
        with pytest.raises(CheckpointError, match="is not a file"):
            load_tensors(path)
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 2**26 + 1)
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        read_small(tmp_path / "large")
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "missing")


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """Somebody who is root, as in a container, would lose /dev/null to `--json /dev/null`."""
    pipe, run = tmp_path / "pipe", str(save_run(tmp_path / "run"))
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(pipe, b"x")
    for option in ("--json", "--csv"):
        assert evaluate([run, "--episodes", "1", option, str(pipe)]) == 2
    assert pipe.is_fifo()


def test_a_link_is_kept_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    """A run's policy may lie on another disk."""
    disk = tmp_path / "disk"
    (disk / "policy").mkdir(parents=True)
    (tmp_path / "policy").symlink_to(disk / "policy")
    (tmp_path / "scores.json").symlink_to(disk / "scores.json")
    write_folder(tmp_path / "policy", lambda folder: write_text(folder / "config.json", "{}"))
    write_text(tmp_path / "scores.json", "[]")
    assert (tmp_path / "policy").is_symlink() and (disk / "policy" / "config.json").read_text() == "{}"
    assert (tmp_path / "scores.json").is_symlink() and (disk / "scores.json").read_text() == "[]"
    left = {path.name for path in (*tmp_path.iterdir(), *disk.iterdir())}
    assert left == {"disk", "policy", "scores.json"}


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is the current folder; give the name of a new one"):
        check_free(Path())


def test_a_negative_number_with_an_exponent_is_no_option() -> None:
    parser = Parser()
    parser.add_argument("--target-return", type=float)
    assert parser.parse_args(["--target-return", "-1.5e3"]).target_return == -1500


def test_a_link_that_leads_nowhere_is_no_free_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="broken link"):
        check_free(tmp_path / "loop")


def test_a_folder_that_cannot_be_made_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_free(tmp_path / "new" / "folder")
    with pytest.raises(UsageError, match="file is not a folder; choose another place"):
        check_free(tmp_path / "file" / "new" / "folder")
    with pytest.raises(UsageError, match="/proc/new: its folder is not writable"):
        check_free(Path("/proc/new"))
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
