"""Command lines, paths, environments and arguments that should not be: each ends with one line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bad_inputs
import numpy as np
import pytest
from bad_inputs import ANY, OWN, REGISTER, TINY, Case, World, must_be_refused, must_end_well, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_environments import ACTIONS, CLOSING, HANGING, KINDS, MAKES, SIZE

from aaren_rl import load_policy
from aaren_rl.hub import from_pretrained
from aaren_rl.runtime import load
from aaren_rl.sb3 import SB3Policy, make_vec_env
from aaren_rl.vector import VectorPolicy

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
NUMBERS = ("nan", "-inf", "1e400", "-1", "", " ", "1,5", "0x10", "1e3x", "--", "½", "None", "1" * 5000)
INTEGERS = (*NUMBERS, "1.5", "1e3", "99999999999999999999999", "-0x1", "²", "true", "[]")
NAMES = ("", " ", "hopper medium", "höpper-médium", "../hopper-medium", "hopper-medium/", "\u202ehopper", "h\nopper",
         "-", "~", "a" * 5000, "\x1b[2J", "🤖", "hopper-medium;rm", "%s%n", "{env}")  # fmt: skip
# Command -> options of floats, options of integers.
OPTIONS = {
    "train": (
        "--learning-rate --weight-decay --clip-norm --dropout --held-out --best-fraction --return-scale "
        "--average-decay --timestep-std --tree-budget",
        "--updates --seed --width --layers --heads --eval-every --steps-per-update --context-length --rollout-context "
        "--warmup-updates --eval-seed --rem-dilation --threads --max-episode-steps",
    ),
    "evaluate RUN": ("--budget --guidance", "--episodes --seed --rollout-context"),
    "compare": ("--gpus-per-run", "--seeds --jobs --episodes"),
    "collect --env Good-v0": ("--updates-per-step", "--steps --envs --seed"),
    "export RUN --out x.onnx": ("", "--episodes --seed --rollout-context"),
    "hub RUN hub": ("", "--episodes --seed"),
    "import-weights DATA p": ("--return-scale", "--heads --context"),
    "bench rollout": ("", "--steps --threads --width"),
    "sweep paper": ("--gpus-per-run", "--jobs"),
}
GIVEN = [
    (command, option, values)
    for command, both in OPTIONS.items()
    for options, values in zip(both, (NUMBERS, INTEGERS), strict=True)
    for option in options.split()
]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(GIVEN).flatmap(lambda of: st.tuples(st.just(of[0]), st.just(of[1]), st.sampled_from(of[2]))))
def test_a_number_that_is_none(world: World, empty: Path, line: tuple[str, str, str]) -> None:
    command, option, value = line
    paths = {"RUN": str(world.run), "DATA": str(world.data)}
    must_end_well([*(paths.get(word, word) for word in command.split()), f"{option}={value}"], {2})


def lines() -> Iterator[Case]:
    """Names, modules, devices, and settings of which each may be."""
    for name in NAMES:
        shown = f"{name[:20]!a}"
        yield Case(f"env {shown}", lambda w, n=name: ["train", *OWN, "--source", str(w.data), *TINY, f"--env={n}"], {2})
        yield Case(f"info {shown}", lambda w, n=name: ["datasets", "info", "--", n], {2, 3, 7})
        yield Case(f"source {shown}", lambda w, n=name: ["train", "--env", "hopper-medium", f"--source={n}"], {2, 3, 7})
    for name in ("", "x", "../../x-v0", "a/b-v99", "x" * 300 + "-v0", "é-v0"):
        yield Case(f"info minari:{name[:30]}", lambda w, n=name: ["datasets", "info", f"minari:{n}"], {2, 3, 5, 7})
    for option, values in {
        "--register": ("", ".", "..", "os.path.nothing", "a b", "1", "énv", "json.decoder.", "antigravity1", "-m"),
        "--device": ("", "cuda:99", "mps", "cpu:-1", "meta", "cuda:x", "gpu", "xla"),
        "--rollout": ("Nothing",), "--weights": ("Nothing",), "--attention": ("Nothing",), "--sampler": ("Nothing",),
    }.items():  # fmt: skip
        for value in values:
            yield Case(f"{option} {value!a}", lambda w, o=option, v=value: ["evaluate", str(w.run), f"{o}={v}"], {2})
    for option in "agent preset context rollout optimizer schedule precision".split():
        yield Case(f"--{option}", lambda w, o=option: ["train", "--env", "hopper-medium", f"--{o}=../default"], {2})
    for more in TOGETHER.strip().splitlines():
        yield Case(more, lambda w, m=more: ["train", *OWN, "--source", str(w.data), "--out", "runs", *TINY, *m.split()])
    for more in EVALUATED.strip().splitlines():
        yield Case(more, lambda w, m=more: ["evaluate", str(w.run), *REGISTER, *m.split()])
    for more in OTHERS.strip().splitlines():
        yield Case(more, lambda w, m=more: m.split())


TOGETHER = """
--width 7 --heads 2
--heads 3 --width 8
--rem-counts 1,2,3 --agent decision-rsa
--rem-counts 9,0,0,0,0,0 --agent decision-rsa
--rem-gate 4 --agent decision-rsa
--rem-dilation 1 --agent decision-aaren-rsa
--tree-budget 2 --agent decision-transformer-tree
--ref-min-score 5
--ref-min-score 5 --ref-max-score 1
--source nothing.hdf5
--best-fraction 1e-30 --held-out 0.5 --max-episode-steps 0
--resume
--width 1000000 --layers 1000
--steps-per-update 9007199254740992
--layers 9007199254740992
--context episode --steps-per-update 1000000000000
--learning-rate 1e30 --updates 30 --precision float32
--rollout window --rollout-context 9007199254740992
--env-id
--register nobody_has_this
--seed 3 --seed x
--no-such
positional
"""
EVALUATED = """
--attention tree
--budget 0.5
--sampler edh
--target-return 1 two
--json x.json --episodes 0
--video x.avi
--video missing/x.gif --json missing/x.json
--held-out missing.hdf5
--record-minari nothing
--record-minari ../x-v0
--rollout window --rollout-context 9007199254740992
--rollout rolling --rollout-context 1
--env-id CartPole-v1
--env-id Hopper-v4
--env-id gymnasium:Hopper-v4
--env-id Pendulum-v1
"""
OTHERS = """
compare --out c --seeds 1 --updates 0
compare --out c --agents nobody
compare --out c --source a.hdf5 b.hdf5
compare --out c --env a --source a b --env-id Good-v0
bench
bench nothing
bench rollout --modes x:y
bench rollout --steps 3
bench scan --lengths 0
bench scan --lengths x
bench steering missing
bench learning --plot x.xyz
bench rollout --plot missing/x.png
bench rollout --json /
bench train --threads 0
"""


@pytest.mark.parametrize("case", sample(lines(), 12))
def test_a_command_line(case: Case, world: World, empty: Path) -> None:
    must_end_well(case.make(world), case.codes)


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
bench steering PATH
"""
WRITTEN = """
export RUN --register odd_environments --force --out PATH
hub RUN PATH --register odd_environments --episodes 1
train --env hopper-medium --source DATA --out PATH
evaluate RUN --register odd_environments --episodes 1 --json PATH
datasets info DATA --picture PATH
datasets convert DATA PATH
"""


def at(line: str, kind: str) -> Callable[[World], list[str]]:
    def make(world: World) -> list[str]:
        path = Path("odd").absolute()
        PATHS[kind](path)
        shown = {"below a file": str(path / "x"), "zeros without end": "/dev/zero", "not readable": "/proc/self/mem"}
        words = {"PATH": shown.get(kind, str(path)), "RUN": str(world.run), "DATA": str(world.data)}
        return [words.get(word, word) for word in line.split()]

    return make


def paths() -> Iterator[Case]:
    for line in PLACES.strip().splitlines():
        yield from (Case(f"{line}, {kind}", at(line, kind)) for kind in PATHS)
    for line in WRITTEN.strip().splitlines():
        # Never a device of the machine's. A link may be replaced.
        yield from (Case(f"{line}, {kind}", at(line, kind)) for kind in ("below a file", "pipe"))
        yield Case(f"{line}, link to itself", at(line, "link to itself"), {0, *ANY})


@pytest.mark.parametrize("case", sample(paths(), 12))
def test_a_path(case: Case, world: World, empty: Path) -> None:
    must_end_well(case.make(world), case.codes)


# What the policy's own sizes and range rule out, or what is checked only where data of one's own are named.
FINE_TO_PLAY = {"MakeWide", "MakeIntegers", "MakeUnbounded", "MakeFixed", "StepRewardMasked", "MakeTextSpace"}
OFTEN = (*MAKES, "ResetShort", "ResetNan", "ResetExit", "StepExit", "StepNan", "StepRewardText", "StepOld")
SAC = "--steps 60 --random-steps 10 --checkpoint-every 30 --envs 1 --dataset-steps 20 --out out".split()


def environments() -> Iterator[Case]:
    """evaluate in every kind; the other commands in those that they meet otherwise."""

    def evaluated(env_id: str, onnx: bool = False) -> Callable[[World], list[str]]:
        return lambda w: ["evaluate", str(w.onnx if onnx else w.run), *REGISTER, "--episodes", "2", "--env-id", env_id]

    def trained(name: str) -> Callable[[World], list[str]]:
        return lambda w: ["train", "--env-id", name, "--source", str(w.data), "--out", "runs", *TINY, *REGISTER]

    for kind in KINDS:
        yield Case(f"evaluate {kind}", evaluated(f"Odd{kind}-v0"), {0, *ANY} if kind in FINE_TO_PLAY else ANY)
    for kind in CLOSING:
        yield Case(f"evaluate {kind}", evaluated(f"Odd{kind}-v0"), {0, 5})
    for kind in ("ResetExit", "StepExit", "StepNan", "ResetMatrix", "StepKey", "MakeRaises"):
        yield Case(f"exported {kind}", evaluated(f"Odd{kind}-v0", onnx=True), {5})
    for env_id in ("BadEntry-v0", "NotAnEnv-v0", "Argument-v0", "Good-v99", "", "good-v0", "../Good-v0"):
        yield Case(f"evaluate {env_id!r}", evaluated(env_id), {2, 5})
    for kind in OFTEN:
        codes = {0, *ANY} if kind in FINE_TO_PLAY or kind == "ResetNan" else ANY
        name = f"Odd{kind}-v0"
        yield Case(f"train {kind}", trained(name), codes)
        yield Case(f"collect {kind}", lambda w, n=name: ["collect", "--env", n, *SAC, *REGISTER], codes)
    for kind in ("MakeRaises", "MakeExit", "MakeNoSpaces", "MakeDiscrete", "MakeOdd"):
        own = ["--env-id", f"Odd{kind}-v0", *REGISTER]
        yield Case(f"info {kind}", lambda w, own=own: ["datasets", "info", str(w.data), *own], {2, 3, 5})
        one = [*own, "--seeds", "1", "--out", "c", "--jobs", "1"]
        yield Case(f"compare {kind}", lambda w, one=one: ["compare", *one, "--source", str(w.data), "--", *TINY])


@pytest.mark.parametrize("case", sample(environments(), 12))
def test_an_environment(case: Case, world: World, empty: Path) -> None:
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
OBSERVATIONS = [
    None, "abc", {"observation": ROW}, {1, 2}, object(), np.array([[None] * SIZE] * B), [[1.0], [1.0, 2.0], []],
    ROW + 1j, np.zeros((B, SIZE), "datetime64[D]"), np.full((B, SIZE), "a"), np.full((B, SIZE), "1"), b"abc", 1.0, [],
    ROW[1:], ROW[None, None], ROW.T, iter(ROW), ROW + 1e300, ROW + np.inf, np.zeros((B, SIZE), [("x", "f4")]), range(9),
    [[10**400] * SIZE] * B,
]  # fmt: skip
REWARDS = [None, "abc", 1.0, np.zeros((1, B)), np.zeros(2), [], [np.nan] * B, [0, 0, 0, -np.inf], [np.inf, 0, 0, 0],
           np.zeros(B, complex), [None, {}, []], ["a"] * B, [10**400] * B, np.zeros(B, "datetime64[s]")]  # fmt: skip
EXECUTED = ["a", np.full((B, ACTIONS), np.nan), np.zeros(ACTIONS), np.zeros((B, 9)), np.full((B, ACTIONS), np.inf),
            [[None] * ACTIONS] * B, {}, np.zeros((B, ACTIONS)) + 1j]  # fmt: skip
TARGETS = ["best", np.nan, -np.inf, 1e300, [1.0, 2.0], np.zeros((B, 1)), [], [1.0, np.nan, 2.0, 3.0], 1j, {},
           np.datetime64("2020-01-01"), object(), 10**400]  # fmt: skip
BATCHES = [0, -1, 1.5, "3", None, [3], 10**12, 10**30]
ROWS = [[B], [-B - 1], "a", None, [10**30], [[0]], 1.5]
CHANGES = [("memory", None), ("memory", "x"), ("timestep", "3"), ("timestep", None), ("timestep", -5),
           ("timestep", 10**30), ("timestep", 1.5), ("timestep", [1, 2]), ("return_to_go", None), ("return_to_go", "x"),
           ("return_to_go", np.full(B, np.nan))]  # fmt: skip
STARTED = [[False, True], "yes", True, np.array([0, 2]), np.ones((B, 1), bool), np.array([0.5, np.nan, 1, 0])]


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
    "restart": ([[B], [-1], 0, None, "a"], lambda policy, x: policy.restart(policy.initial_state(B, 1.0), x, 1.0)),
    "restart for": (TARGETS[:4], lambda policy, x: policy.restart(policy.initial_state(B, 1.0), [0, 1], x)),
    "select": (ROWS, lambda policy, x: policy.select(policy.initial_state(B, 1.0), x)),
    "state": ([None, "state", (0, 1, 2, 3), {}], lambda policy, x: policy.act(ROW, NOTHING, x)),
    "changed state": (CHANGES, lambda policy, x: after_a_step(policy, **dict([x]))),
    "vector, environments": ([0, -1, 1.5, "3"], lambda policy, x: vector(policy, ROW, NOTHING, n_envs=x)),
    "vector, target": ([[1.0, 2.0], "best", np.nan, -np.inf], lambda policy, x: vector(policy, ROW, NOTHING, target=x)),
    "vector, observation": ([ROW[:2], ROW.ravel(), "abc", None], lambda policy, x: vector(policy, x, NOTHING, None)),
    "vector, reward": ([NOTHING[:2], 1.0, "abc", NOTHING - np.inf], lambda policy, x: vector(policy, ROW, x, None)),
    "vector, started": (STARTED, lambda policy, x: vector(policy, ROW, NOTHING, x)),
    "vector, state": (["x", (), 3], lambda policy, x: vector(policy, ROW, NOTHING, NOTHING > 0, state=x)),
}


@pytest.mark.parametrize("exported", [False, True], ids=["policy", "runner"])
@pytest.mark.parametrize("name", CALLS)
def test_an_argument(name: str, exported: bool, world: World) -> None:
    policy = load(world.onnx) if exported else load_policy(world.run)
    values, call = CALLS[name]
    for value in values:
        must_be_refused(lambda value=value: call(policy, value))


ODD_PATHS = [None, 5, "", "a\0b", "x" * 5000, [], "missing", "/", b"x", "\udcff", "/dev/null"]
LOADED: list[dict[str, Any]] = [
    {"rollout": "x"}, {"rollout": 5}, {"rollout_context": 1, "rollout": "window"}, {"rollout_context": "4"},
    {"rollout_context": 2.5, "rollout": "rolling"}, {"rollout_context": -4}, {"weights": "x"}, {"weights": 5},
    {"device": "gpu"}, {"device": "cuda:99"}, {"rollout_context": 10**14, "rollout": "window"},
]  # fmt: skip


def test_what_is_loaded(world: World, empty: Path) -> None:
    for path in ODD_PATHS:
        for call in (load_policy, from_pretrained, load):
            must_be_refused(lambda call=call, path=path: call(path))
    for options in LOADED:
        must_be_refused(lambda options=options: load_policy(world.run, **options).initial_state(1, 1.0))
    for threads in (0, -1, "x", None, 1.5, 10**9):
        must_be_refused(lambda threads=threads: load(world.onnx, threads=threads))


def test_stable_baselines(world: World) -> None:
    policy = load_policy(world.run)
    made = [("Nothing-v0", 2, 0), ("os:Nothing-v0", 2, 0), ("Good-v0", 0, 0), ("Good-v0", -1, 0), ("Good-v0", 2, -5),
            ("Good-v0", 2, "x"), ("OddMakeRaises-v0", 2, 0), ("OddMakeExit-v0", 2, 0)]  # fmt: skip
    for name, envs, seed in made:
        must_be_refused(lambda of=(name, envs, seed): make_vec_env(of[0], n_envs=of[1], seed=of[2]))
    env = make_vec_env("Good-v0", n_envs=2, seed=0)
    for target in ("best", np.nan, [1.0, 2.0, 3.0]):
        must_be_refused(lambda target=target: SB3Policy(policy, env, target_return=target))
    first = env.reset()
    odd = [("abc",), (None,), (np.ones((2, SIZE)),), ({"a": np.ones((2, SIZE))},), (first, "x"),
           (first, None, np.ones(3, bool)), (first, None, "yes")]  # fmt: skip
    for arguments in odd:
        must_be_refused(lambda a=arguments: SB3Policy(policy, env, target_return=1.0).predict(*a))


def leaving(_: list[str]) -> int:
    subprocess.Popen(["sleep", "9"])
    print("error: x", file=sys.stderr)
    return 2


@pytest.mark.parametrize(
    ("main", "said"),
    [
        (lambda _: 0, "exit code 0"),
        (lambda _: 1, "exit code 1"),
        (lambda _: 3, "no line says why"),
        (lambda _: print("error: x\nerror: y", file=sys.stderr) or 3, "error: y"),
        (lambda _: print("Traceback\nerror: x", file=sys.stderr) or 3, "Traceback"),
        (leaving, "left behind"),
    ],
)
def test_what_ends_badly_is_noticed(main: Callable[..., int], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_inputs, "main", main)
    with pytest.raises(AssertionError, match=said):
        must_end_well([])
