"""What a command or a call answers to what it should not be given, word by word."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from policies import save_run

from aaren_rl.collect.config import inspect_env
from aaren_rl.envs import SimulationError, make_env
from aaren_rl.envs.errors import one_line
from aaren_rl.envs.files import write_whole
from aaren_rl.envs.simulation.answers import take
from aaren_rl.envs.simulation.stepping import LocalStepper
from aaren_rl.envs.tasks.environment import close_env, inspect_spaces
from aaren_rl.errors import CommandError, UsageError
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.files import check_free, read_small


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Failing(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))

    def __init__(self, where: str = "nowhere", error: BaseException | None = None) -> None:
        self.where, self.error = where, error
        self.fail("init")

    def fail(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.fail("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.fail("step")
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.fail("close")


@pytest.fixture
def failing(request: pytest.FixtureRequest) -> str:
    gym.register("Failing-v7", Failing, max_episode_steps=3)
    request.addfinalizer(lambda: gym.registry.pop("Failing-v7"))
    return "Failing-v7"


ERRORS = [ValueError("no\nrobot\x1b[2J"), SystemExit(3), GeneratorExit(), Unprintable(), MemoryError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_whatever_an_environment_raises_is_told_as_its_own(failing: str, where: str, error: BaseException) -> None:
    with pytest.raises(SimulationError, match=rf"Failing-v7.* raised {type(error).__name__}") as caught:
        stepper = LocalStepper(failing, {"where": where, "error": error}, [5])
        stepper.reset()
        stepper.send(np.array([0]), np.zeros((1, 2), np.float32))
        stepper.close()
    assert str(caught.value).isprintable()
    if where in ("init", "close"):
        with pytest.raises(SimulationError):
            inspect_spaces(failing, where=where, error=error)
            close_env(make_env(failing, where=where, error=error))


@pytest.mark.parametrize("value", [object(), np.array([False, True]), None, "no"])
def test_ends_that_are_neither_true_nor_false(value: Any) -> None:
    env = Mock(step=lambda _: (np.zeros(3), 0.0, value, False, {}))
    with pytest.raises(SimulationError, match=f"for terminated {type(value).__name__}, which is neither true nor"):
        take(env, np.zeros(2))


@pytest.mark.parametrize("value", [True, np.bool_(True), 1, np.array(True), np.int64(1), 1.0])
def test_ends_of_many_types(value: Any) -> None:
    env = Mock(
        step=lambda _: (np.zeros(3), 0.0, value, np.bool_(False), {}), observation_space=Failing.observation_space
    )
    assert take(env, np.zeros(2))[2:4] == (True, False)


@pytest.mark.parametrize(
    ("action_space", "message"),
    [
        (gym.spaces.Box(-1, 1, (2,), np.int64), "its actions are int64"),
        (gym.spaces.Box(-1, 1, (0,)), "without a number"),
    ],
)
def test_actions_that_cannot_be_learnt(
    failing: str, monkeypatch: pytest.MonkeyPatch, action_space: gym.Space[Any], message: str
) -> None:
    monkeypatch.setattr(Failing, "action_space", action_space)
    with pytest.raises(UsageError, match=message):
        inspect_env(failing)


def test_ctrl_c_is_not_the_environments(failing: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        LocalStepper(failing, {"where": "reset", "error": KeyboardInterrupt()}, [5]).reset()


def test_messages_are_one_printable_line() -> None:
    assert str(CommandError("a\nb\x1b[2J \udcff é 🤖")) == r"a\nb\x1b[2J \udcff é 🤖"
    assert one_line(Unprintable()) == "Unprintable"


def test_only_files_are_read_and_small_ones(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match="is not a file"):
            read_small(path)
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
    with pytest.raises(OSError, match="no file that could be replaced"):
        write_whole(pipe, b"x")
    for option in ("--json", "--csv"):
        assert evaluate([run, "--episodes", "1", option, str(pipe)]) == 2
    assert pipe.is_fifo()


def test_a_link_that_leads_nowhere_is_no_free_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="leads nowhere"):
        check_free(tmp_path / "loop")
