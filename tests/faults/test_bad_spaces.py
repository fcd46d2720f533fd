"""Bad inputs of spaces, environments and their arguments: one line, an exit code, no traceback, nothing left behind."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

from aaren_rl.collect.command import main as collect
from aaren_rl.compare.command import main as compare
from aaren_rl.envs.data.minari.write import write_minari
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.train import train_policy
from aaren_rl.train.command import main as train

N, SEEN, A = 60, 3, 2
SMALL = (
    "--width 16 --layers 1 --heads 2 --updates 2 --warmup-updates 1 --steps-per-update 40 --final-episodes 1".split()
)
UNBOUNDED = Box(-np.inf, np.inf, (A,))
GOOD = Box(-1, 1, (SEEN,)), Box(-1, 1, (A,))


class Played(gym.Env):
    def __init__(self, observed: Any = GOOD[0], acted: Any = GOOD[1], power: float = 1.0) -> None:
        self.observation_space, self.action_space = observed, acted

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


OBSERVED: dict[str, Any] = {
    "Image": Box(0, 255, (8, 8, 3), np.uint8),
    "ImageInDict": Dict(camera=Box(0, 255, (8, 8, 1), np.uint8), state=GOOD[0]),
    "Text": Text(4),
    "Sequence": Sequence(Discrete(3)),
    "Graph": Graph(Discrete(3), None),
    "OneOf": OneOf([Discrete(3), Discrete(2)]),
    "Huge": Discrete(10**9),
    "Empty": Box(-1, 1, (0,)),
    "EmptyTuple": Tuple([]),
}
ACTED: dict[str, Any] = {
    "Multi": MultiDiscrete([3, 2]),
    "Binary": MultiBinary(3),
    "Integers": Box(-3, 3, (A,), np.int64),
    "Matrix": Box(-1, 1, (2, 2)),
    "DictOfBoxes": Dict(a=Box(-1, 1, (A,))),
    "Mixed": Tuple([Discrete(2), Box(-1, 1, (A,))]),
    "Words": Text(3),
    "None": Box(-1, 1, (0,)),
    "Fixed": Box(np.array([0, 0], np.float32), np.array([0, 1], np.float32)),
    "Far": Discrete(2**40),
}
# Spaces that the file below does not fit.
OTHERS = {
    "Wide": Dict(a=Box(-1, 1, (2,)), b=Discrete(4)),
    "Narrow": Box(-1, 1, (1, 2)),
    "Choices": MultiDiscrete([2, 2, 2]),
}


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    before = set(gym.registry)
    seen = {f"Seen{name}-v0": {"observed": space} for name, space in {**OBSERVED, **OTHERS}.items()}
    acted = {f"Acted{name}-v0": {"acted": space} for name, space in {**ACTED, "Unbounded": UNBOUNDED}.items()}
    for env_id, kwargs in {**seen, **acted}.items():
        gym.register(env_id, Played, max_episode_steps=20, kwargs=kwargs, disable_env_checker=True)
    gym.register("PlainHere-v0", Played, max_episode_steps=20, disable_env_checker=True)
    rng = np.random.default_rng(0)
    with h5py.File("good.hdf5", "w") as file:
        file["observations"], file["actions"] = rng.uniform(-1, 1, (N, SEEN)), rng.uniform(-1, 1, (N, A))
        file["rewards"], file["timeouts"] = rng.normal(size=N), np.arange(N) % 20 == 19
    with h5py.File("groups.hdf5", "w") as file:
        file["observations/a"], file["observations/b"] = rng.uniform(-1, 1, (N, 2)), rng.uniform(-1, 1, (N - 1, 1))
        file["actions"], file["rewards"], file["timeouts"] = (
            rng.uniform(-1, 1, (N, A)),
            np.ones(N),
            np.arange(N) % 20 == 19,
        )
    yield
    for name in set(gym.registry) - before:
        del gym.registry[name]


def one_line(capsys: pytest.CaptureFixture[str], code: int, *parts: str) -> None:
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert 2 <= code <= 7 and len(error) == 1 and "Traceback" not in error[0] and "is a bug" not in error[0], (
        code,
        error,
    )
    assert all(part in error[0] for part in parts), error[0]
    assert not list(Path.cwd().rglob("policy"))


@pytest.mark.parametrize("name", [*OBSERVED, *OTHERS])
def test_observations(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = train(["--env-id", f"Seen{name}-v0", "--source", "good.hdf5", "--env", "x", *SMALL])
    assert code == (3 if name in OTHERS else 2)
    one_line(capsys, code, f"Seen{name}-v0: observations " if name in OBSERVED else "good.hdf5")


@pytest.mark.parametrize("name", ACTED)
def test_actions(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = train(["--env-id", f"Acted{name}-v0", "--source", "good.hdf5", "--env", "x", *SMALL])
    one_line(capsys, code, f"Acted{name}-v0: action")


@pytest.mark.parametrize("name", [*OBSERVED, *ACTED, "Unbounded"])
def test_nothing_is_collected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    env_id = f"{'Seen' if name in OBSERVED else 'Acted'}{name}-v0"
    one_line(capsys, collect(["--env-id", env_id, "--steps", "50", "--checkpoint-every", "50"]), env_id)


KWARGS = ["{", "", "[]", "3", "null", '{"a": NaN}', '{"xml_file": "x"}', '{"a": "../x"}', '{"nothing": 1}', "{'a': 1}"]


IN_A_RUN = ['{"nothing": 1}', '{"max_episode_steps": "x"}']  # a comparison's runs say it


@pytest.mark.parametrize(
    ("command", "kwargs"),
    [
        *product(["train", "collect"], [*KWARGS, IN_A_RUN[1]]),
        *(("compare", kwargs) for kwargs in KWARGS if kwargs not in IN_A_RUN),
    ],
)
def test_arguments_of_environments(command: str, kwargs: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--env-id", "PlainHere-v0", "--env-kwargs", kwargs]
    file = ["--source", "good.hdf5", "--env", "x"]
    if command == "train":
        code = train([*given, *file, *SMALL])
    elif command == "compare":
        code = compare([*given, *file, "--updates", "1"])
    else:
        code = collect([*given, "--steps", "50", "--checkpoint-every", "50"])
    one_line(capsys, code)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--source good.hdf5 --env hopper-medium", 3, "columns"),
        ("--source good.hdf5 --env ../x", 2, "use letters"),
        ("--source good.hdf5 --env x --env-kwargs {}", None, ""),
        ('--source good.hdf5 --env x --env-kwargs {"a":1}', 2, "--env-id ID"),
        ('--env hopper-medium --env-kwargs {"a":1}', 2, "--env-id"),
        ("--source groups.hdf5 --env x", 3, "groups.hdf5"),
        ("--source missing.hdf5 --env x", 3, "does not exist"),
        ("--source goood --env x", 2, "unknown source"),
        ("--source good.hdf5 --env x --ref-min-score 2 --ref-max-score 1", 2, "must rise"),
        ("--source good.hdf5 --env x --max-episode-steps 0", 2, "at least 1"),
        ("--source minari:mine/unknown-v0 --env x", 3, "--register MODULE"),
        ("--source minari:mine/unknown-v0 --env x --env-id SeenWide-v0", 3, "choose the environment"),
        ("--source minari:mine/unknown-v0 --env x --env-id ActedMulti-v0", 2, "unravel_index"),
    ],
)
def test_data_without_their_environment(
    arguments: str, code: int | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "minari" in arguments:
        from aaren_rl.envs import Episodes

        rng = np.random.default_rng(0)
        steps = rng.normal(size=(N, SEEN)), rng.uniform(-1, 1, (N, A)), np.ones(N)
        episodes = Episodes.from_arrays(*steps, timeouts=np.arange(N) % 20 == 19)
        write_minari("mine/unknown-v0", episodes, env_id="PlainHere-v0")
        del gym.registry["PlainHere-v0"]
    try:
        found = train([*arguments.split(), *SMALL])
    except SystemExit as error:
        found = int(error.code or 0)
    if code is None:
        assert found == 0
        return
    assert found == code
    one_line(capsys, found, message)


def test_a_policy_without_an_environment_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    names = [option.removeprefix("--").replace("-", "_") for option in SMALL[::2]]
    run = train_policy("x", source="good.hdf5", **dict(zip(names, map(int, SMALL[1::2]), strict=True))).folder
    capsys.readouterr()
    card = json.loads((run / "policy" / "config.json").read_text())
    assert card["env_id"] == "" and card["action_low"] == pytest.approx([-1, -1], abs=0.1)
    for more in ([], ["--held-out", "--json", "x.json"], ["--env-kwargs", "{}"], ["--env-id", "SeenWide-v0"]):
        assert evaluate([str(run), *more]) in (2, 4)
        said = capsys.readouterr().err.splitlines()
        assert len([line for line in said if line.startswith("error: ")]) == 1, said
    assert evaluate([str(run), "--env-id", "PlainHere-v0", "--episodes", "1"]) == 0
