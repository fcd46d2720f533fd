"""Command lines, paths, environments and arguments that should not be: each ends with one line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_inputs import ANY, OWN, REGISTER, TINY, Case, World, must_be_refused, must_end_well, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_environments import ACTIONS, CLOSING, HANGING, KINDS, MAKES, SIZE

from aaren_rl import load_policy, runtime
from aaren_rl.base.errors import ArgumentError, CheckpointError, NonFiniteActionError, SimulationError
from aaren_rl.hub import from_pretrained
from aaren_rl.sb3 import SB3Policy, make_vec_env
from aaren_rl.vector import VectorPolicy

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
NUMBERS = ("nan", "-inf", "1e400", "", " ", "1,5", "0x10", "1e3x", "--", "½", "None", "1" * 5000)
INTEGERS = (*NUMBERS, "-1", "1.5", "1e3", "99999999999999999999999", "-0x1", "²", "true", "[]")
NAMES = ("", " ", "hopper medium", "höpper-médium", "../hopper-medium", "hopper-medium/", "\u202ehopper", "h\nopper",
         "-", "~", "a" * 5000, "\x1b[2J", "🤖", "hopper-medium;rm", "%s%n", "{env}")  # fmt: skip
NUMERIC = ("train", "evaluate RUN", "compare", "collect --env-id Good-v0", "export RUN --out x.onnx", "hub RUN hub",
           "import-weights DATA p")  # fmt: skip


def given_numbers() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Command, option of a number, and what is none."""
    for line in NUMERIC:
        parser = import_module(f"aaren_rl.{line.split()[0].replace('-', '_')}.command").make_parser()
        for action in parser._actions:
            if values := {"integer": INTEGERS, "number": NUMBERS}.get(getattr(action.type, "__name__", "")):
                yield line, action.option_strings[-1], values


GIVEN = list(given_numbers())


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(GIVEN).flatmap(lambda of: st.tuples(st.just(of[0]), st.just(of[1]), st.sampled_from(of[2]))))
def test_a_number_that_is_none(world: World, empty: Path, line: tuple[str, str, str]) -> None:
    command, option, value = line
    must_end_well([*world.fill(command.split()), f"{option}={value}"], {2})


def case(line: list[str], codes: Iterable[int] = ANY, name: str = "") -> Case:
    return Case(name or ascii(" ".join(line))[:60], lambda world: world.fill(line), codes)


def lines() -> Iterator[Case]:
    """Names, modules, devices, and settings of which each may be."""
    train = ["train", *OWN, "--source", "DATA", "--out", "runs", *TINY]
    for name in NAMES:
        shown = f"{name[:20]!a}"
        yield case([*train, f"--env={name}"], {2}, f"env {shown}")
        yield case(["datasets", "info", "--", name], {2, 3, 7}, f"info {shown}")
        yield case(["train", "--env", "hopper-medium", f"--source={name}"], {2, 3, 7}, f"source {shown}")
    for name in ("", "x", "../../x-v0", "a/b-v99", "x" * 300 + "-v0", "é-v0"):
        yield case(["datasets", "info", f"minari:{name}"], {2, 3, 5, 7})
    for option, values in {
        "register": ("", ".", "..", "os.path.nothing", "a b", "1", "énv", "json.decoder.", "antigravity1", "-m"),
        "device": ("", "cuda:99", "mps", "cpu:-1", "meta", "cuda:x", "gpu", "xla"),
        **dict.fromkeys(("rollout", "weights", "attention", "tree-sampler"), ("Nothing",)),
    }.items():
        yield from (case(["evaluate", "RUN", f"--{option}={value}"], {2}) for value in values)
    for option in "agent preset context rollout optimizer lr-schedule precision".split():
        yield case(["train", "--env", "hopper-medium", f"--{option}=../default"], {2})
    for before, several in ((train, TOGETHER), (["evaluate", "RUN", *REGISTER], EVALUATED), ([], OTHERS)):
        yield from (
            case([*before, *more.split()], name=f"{before[:1]} {more}") for more in several.strip().splitlines()
        )


TOGETHER = """
--width 7 --heads 2
--rem-counts 1,2,3 --agent decision-rsa
--best-fraction 1e-30 --held-out 0.5 --max-episode-steps 0
--width 1000000 --layers 1000
--steps-per-update 9007199254740992
--learning-rate 1e30 --updates 30 --precision float32
--rollout window --rollout-context 9007199254740992
"""
EVALUATED = """
--video x.avi
--video missing/x.gif --json missing/x.json
--record-minari ../x-v0
--rollout window --rollout-context 9007199254740992
--env-id CartPole-v1
"""
OTHERS = """
compare --out c --agents nobody
compare --out c --env a --source a b --env-id Good-v0
"""


# What is made where a path is asked for; three kinds are elsewhere.
PATHS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty file": Path.touch,
    "folder": Path.mkdir,
    "binary": lambda path: path.write_bytes(os.urandom(3000)),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to("odd"),
    "pipe": os.mkfifo,
    "below a file": Path.touch,
    "zeros without end": lambda path: None,
    "not readable": lambda path: None,
}
PLACES = """
evaluate PATH
evaluate RUN --register odd_environments --held-out PATH
export PATH --out x.onnx
hub PATH out
hub RUN out --register odd_environments --scores PATH
import-weights PATH out
sweep PATH
datasets info PATH
datasets convert PATH x.hdf5
train --env hopper-medium --source PATH
"""
WRITTEN = """
export RUN --register odd_environments --force --out PATH
hub RUN PATH --register odd_environments --episodes 1
train --env hopper-medium --source DATA --out PATH
evaluate RUN --register odd_environments --episodes 1 --json PATH
datasets info DATA --picture PATH
datasets convert DATA PATH
"""


def at(line: str, kind: str, codes: Iterable[int] = ANY) -> Case:
    def make(world: World) -> list[str]:
        path = Path("odd").absolute()
        PATHS[kind](path)
        shown = {"below a file": str(path / "x"), "zeros without end": "/dev/zero", "not readable": "/proc/self/mem"}
        return world.fill(line.split(), PATH=shown.get(kind, str(path)))

    return Case(f"{line}, {kind}", make, codes)


def paths() -> Iterator[Case]:
    for line in PLACES.strip().splitlines():
        yield from (at(line, kind) for kind in PATHS)
    for line in WRITTEN.strip().splitlines():
        # Never a device of the machine's. A link may be replaced.
        yield from (at(line, kind) for kind in ("below a file", "pipe"))
        yield at(line, "link to itself", {0, *ANY})


# What the policy's own sizes and range rule out, or what is checked only where data of one's own are named.
FINE_TO_PLAY = {"MakeWide", "MakeIntegers", "MakeUnbounded", "MakeFixed"}
OFTEN = (*MAKES, "ResetShort", "ResetNan", "ResetExit", "StepExit", "StepNan", "StepOld")
SAC = "--steps 60 --random-steps 10 --checkpoint-every 30 --envs 1 --dataset-steps 20 --out out".split()


def environments() -> Iterator[Case]:
    """evaluate in every kind; the other commands in those that they meet otherwise."""

    def evaluated(env_id: str, codes: Iterable[int], policy: str = "RUN") -> Case:
        line = ["evaluate", policy, *REGISTER, "--episodes", "2", "--env-id", env_id]
        return case(line, codes, f"evaluate {policy} in {env_id!r}")

    for kind in KINDS:
        yield evaluated(f"Odd{kind}-v0", {0, *ANY} if kind in FINE_TO_PLAY else ANY)
    for kind in CLOSING:
        yield evaluated(f"Odd{kind}-v0", {0, 5})
    for kind in ("ResetExit", "StepExit", "StepNan", "ResetMatrix", "StepKey", "MakeRaises"):
        yield evaluated(f"Odd{kind}-v0", {5}, "ONNX")
    for env_id in ("BadEntry-v0", "Good-v99", "", "good-v0", "../Good-v0"):
        yield evaluated(env_id, {2, 5})
    for kind in OFTEN:
        codes, name = {0, *ANY} if kind in FINE_TO_PLAY or kind == "ResetNan" else ANY, f"Odd{kind}-v0"
        trained = ["train", "--env-id", name, "--source", "DATA", "--out", "runs", *TINY, *REGISTER]
        yield case(trained, codes, f"train {kind}")
        codes = {0} if kind == "MakeDiscrete" else codes  # DQN is for these
        yield case(["collect", "--env-id", name, *SAC, *REGISTER], codes, f"collect {kind}")


CASES = [*lines(), *paths(), *environments()]


@pytest.mark.parametrize("case", sample(CASES, 12))
def test_a_command(case: Case, world: World, empty: Path) -> None:
    must_end_well(case.make(world), case.codes)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*(f"Odd{kind}-v0" for kind in HANGING), "Endless-v0"])
def test_ctrl_c_while_an_environment_hangs(env_id: str, world: World, empty: Path) -> None:
    """A process of its own; nobody of its group is left."""
    line = [sys.executable, "-m", "aaren_rl", "evaluate", str(world.run), *REGISTER, "--env-id", env_id]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=15)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


B = 4
ROW, NOTHING = np.zeros((B, SIZE)), np.zeros(B)
# Wrong whatever is asked for; behind them what is wrong for one argument.
ODD: list[Any] = ["abc", {"x": 1}, {1, 2}, object(), b"abc", 1j, [[1.0], [1.0, 2.0]], np.zeros((B, 1)),
                  np.zeros((B, SIZE), "datetime64[D]"), np.full(B, "1"), np.array([None, {}, []], object)]  # fmt: skip
OBSERVATIONS = [None, 1.0, [], ROW[1:], ROW[None], ROW.T, iter(ROW), ROW + 1e300, ROW + np.inf, [[10**400] * SIZE] * B]
REWARDS = [None, 1.0, [], np.zeros((1, B)), np.zeros(2), [np.nan] * B, [0, 0, 0, -np.inf], [np.inf, 0, 0, 0]]
EXECUTED = [np.full((B, ACTIONS), np.nan), np.zeros(ACTIONS), np.zeros((B, 9)), np.full((B, ACTIONS), np.inf)]
TARGETS = [np.nan, -np.inf, 1e300, [1.0, 2.0], [1.0, np.nan, 2.0, 3.0], 10**400]
BATCHES = [0, -1, 1.5, "3", None, [3], 10**12]
STATES = [None, (0, 1, 2, 3)]
TIMES = [None, -5, 10**30, 1.5, [1, 2]]
ROWS = [[B], [-1], 0, None, [10**30], 1.5]
STARTED = [[False, True], True, np.array([0, 2]), np.ones((B, 1), bool), np.array([0.5, np.nan, 1, 0])]


def after_a_step(policy: Any, **changes: Any) -> object:
    _, state = policy.act(ROW, NOTHING, policy.initial_state(B, 1.0))
    return policy.act(ROW, NOTHING, state._replace(**changes))


def vector(policy: Any, *given: Any, n_envs: Any = B, target: Any = 1.0, **named: Any) -> object:
    agent = VectorPolicy(policy, n_envs=n_envs, target_return=target)
    _, state = agent.act(ROW, NOTHING)
    return agent.act(*given, named.get("state", state))


CALLS: dict[str, tuple[list[Any], Callable[[Any, Any], object]]] = {
    "observation": (OBSERVATIONS, lambda policy, x: policy.act(x, NOTHING, policy.initial_state(B, 1.0))),
    "reward": (REWARDS, lambda policy, x: policy.act(ROW, x, policy.initial_state(B, 1.0))),
    "executed": (EXECUTED, lambda policy, x: after_a_step(policy, previous_action=x)),
    "target": (TARGETS, lambda policy, x: policy.initial_state(B, x)),
    "batch": (BATCHES, lambda policy, x: policy.initial_state(x, 1.0)),
    "reset": (ROWS, lambda policy, x: policy.reset(policy.initial_state(B, 1.0), x, 1.0)),
    "reset for": (TARGETS, lambda policy, x: policy.reset(policy.initial_state(B, 1.0), [0, 1, 2], x)),
    "select": (ROWS, lambda policy, x: policy.select(policy.initial_state(B, 1.0), x)),
    "state": (STATES, lambda policy, x: policy.act(ROW, NOTHING, x)),
    "memory": ([None], lambda policy, x: after_a_step(policy, memory=x)),
    "timestep": (TIMES, lambda policy, x: after_a_step(policy, timestep=x)),
    "return to go": ([None, NOTHING * np.nan], lambda policy, x: after_a_step(policy, return_to_go=x)),
    "vector, environments": ([0, -1, 1.5], lambda policy, x: vector(policy, ROW, NOTHING, n_envs=x)),
    "vector, target": (TARGETS[:2], lambda policy, x: vector(policy, ROW, NOTHING, target=x)),
    "vector, observation": ([ROW[:2], None], lambda policy, x: vector(policy, x, NOTHING, None)),
    "vector, reward": ([NOTHING[:2], 1.0, NOTHING - np.inf], lambda policy, x: vector(policy, ROW, x, None)),
    "vector, started": (STARTED, lambda policy, x: vector(policy, ROW, NOTHING, x)),
    "vector, state": ([(), 3], lambda policy, x: vector(policy, ROW, NOTHING, NOTHING > 0, state=x)),
}


# Beside ValueError, of which ArgumentError is one.
MORE: dict[str, tuple[type[Exception], ...]] = {
    **dict.fromkeys(("observation", "reward", "executed", "return to go", "vector, reward"), (NonFiniteActionError,)),
    "vector, state": (TypeError,),
}


@pytest.mark.parametrize("exported", [False, True], ids=["policy", "onnx_policy"])
@pytest.mark.parametrize("name", CALLS)
def test_an_argument(name: str, exported: bool, world: World) -> None:
    policy = load_policy(world.onnx if exported else world.run)
    values, call = CALLS[name]
    for value in [*ODD, *values]:
        must_be_refused(lambda value=value: call(policy, value), ValueError, *MORE.get(name, ()))


ODD_PATHS = [None, 5, "", "a\0b", "x" * 5000, [], "missing", "/", b"x", "\udcff", "/dev/null"]
LOADED: list[dict[str, Any]] = [
    {"rollout": "x"}, {"rollout": 5}, {"rollout_context": 1, "rollout": "window"}, {"rollout_context": "4"},
    {"rollout_context": 2.5, "rollout": "staggered"}, {"rollout_context": -4}, {"weights": "x"}, {"weights": 5},
    {"device": "gpu"}, {"device": "cuda:99"}, {"rollout_context": 10**14, "rollout": "window"},
]  # fmt: skip


def test_what_is_loaded(world: World, empty: Path) -> None:
    for path in ODD_PATHS:
        for call in (load_policy, from_pretrained, runtime.load_policy):
            must_be_refused(lambda call=call, path=path: call(path), CheckpointError, TypeError)
    for options in LOADED:
        must_be_refused(lambda of=options: load_policy(world.run, **of).initial_state(1, 1.0), CheckpointError)
    for threads in (0, -1, "x", None, 1.5, 10**9):
        must_be_refused(lambda threads=threads: load_policy(world.onnx, threads=threads), ArgumentError)


UNMADE = SimulationError, ArgumentError


def test_stable_baselines(world: World) -> None:
    policy = load_policy(world.run)
    made = [("Nothing-v0", 2, 0), ("os:Nothing-v0", 2, 0), ("Good-v0", 0, 0), ("Good-v0", -1, 0), ("Good-v0", 2, -5),
            ("Good-v0", 2, "x"), ("OddMakeRaises-v0", 2, 0), ("OddMakeExit-v0", 2, 0)]  # fmt: skip
    for name, envs, seed in made:
        must_be_refused(lambda of=(name, envs, seed): make_vec_env(of[0], n_envs=of[1], seed=of[2]), *UNMADE)
    env = make_vec_env("Good-v0", n_envs=2, seed=0)
    for target in ("best", np.nan, [1.0, 2.0, 3.0]):
        must_be_refused(lambda target=target: SB3Policy(policy, env, target_return=target), ArgumentError)
    first = env.reset()
    odd = [("abc",), (None,), (np.ones((2, SIZE)),), ({"a": np.ones((2, SIZE))},), (first, "x"),
           (first, None, np.ones(3, bool)), (first, None, "yes")]  # fmt: skip
    for arguments in odd:
        must_be_refused(lambda a=arguments: SB3Policy(policy, env, target_return=1.0).predict(*a), ValueError)
