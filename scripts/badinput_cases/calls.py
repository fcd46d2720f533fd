"""The Python API: `Policy`, `VectorPolicy`, `runtime.Runner`, `aaren_rl.sb3`, `load_policy` and `from_pretrained`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .environments import ACTIONS, SIZE
from .world import Case, World

B = 4


def cases(world: World) -> Iterator[Case]:
    """All of them."""
    for name, policy in {"policy": lambda: _policy(world), "runner": lambda: _runner(world)}.items():
        for what, call in _acts().items():
            yield _case(f"{name}: {what}", lambda call=call, policy=policy: call(policy()))
        for what, call in _vectors().items():
            yield _case(f"vector of {name}: {what}", lambda call=call, policy=policy: call(policy()))
    for what, call in _loads(world).items():
        yield _case(f"load: {what}", call)
    for what, call in _sb3(world).items():
        yield _case(f"sb3: {what}", call)


def _case(name: str, call: Callable[[], object]) -> Case:
    """Fails where nothing is raised, or what is raised is none of the documented kinds or no single line."""

    def tried() -> int:
        from aaren_rl.errors import CommandError

        try:
            call()
        except (ValueError, TypeError, FloatingPointError, CommandError) as error:
            text = str(error)
            if not text or "\n" in text or not text.isprintable() or len(text) > 6000:
                print(f"no single line: {text!a:.300}", file=sys.stderr)
                return 1
            internal = (
                "broadcast",
                "mat1",
                "size of tensor",
                "setting an array element",
                "numpy.core",
                "Unsupported ufunc",
            )
            if any(word in text for word in internal):
                print(f"of inner matters: {text:.300}", file=sys.stderr)
                return 1
            print(f"error: {text}", file=sys.stderr)
            return 2
        print("accepted", file=sys.stderr)
        return 0

    return Case(name, tried, frozenset({2}))


def _policy(world: World) -> Any:  # noqa: ANN401
    from aaren_rl import load_policy

    return load_policy(world.run)


def _runner(world: World) -> Any:  # noqa: ANN401
    from aaren_rl.runtime import load

    return load(world.onnx)


def _given() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((B, SIZE), np.float32), np.zeros(B, np.float32)


def _acts() -> dict[str, Callable[[Any], object]]:
    """Calls of `initial_state`, `act`, `restart` and `select`."""

    def observed(value: Any) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: policy.act(value, np.zeros(B), policy.initial_state(B, 1.0))

    def rewarded(value: Any) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: policy.act(np.zeros((B, SIZE)), value, policy.initial_state(B, 1.0))

    def executed(value: Any) -> Callable[[Any], object]:  # noqa: ANN401
        def call(policy: Any) -> object:  # noqa: ANN401
            _, state = policy.act(*_given(), policy.initial_state(B, 1.0))
            return policy.act(*_given(), state._replace(previous_action=value))

        return call

    def asked(batch: Any, target: Any) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: policy.initial_state(batch, target)

    def stated(**changes: Any) -> Callable[[Any], object]:  # noqa: ANN401
        def call(policy: Any) -> object:  # noqa: ANN401
            _, state = policy.act(*_given(), policy.initial_state(B, 1.0))
            return policy.act(*_given(), state._replace(**changes))

        return call

    def restarted(rows: Any, target: Any = 1.0) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: policy.restart(policy.initial_state(B, 1.0), rows, target)

    def selected(rows: Any) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: policy.select(policy.initial_state(B, 1.0), rows)

    row = np.zeros((B, SIZE))
    odd_observations = {
        "None": None, "text": "abc", "a dict": {"observation": row}, "a set": {1, 2}, "an object": object(),
        "objects": np.array([[None] * SIZE] * B), "ragged": [[1.0], [1.0, 2.0], []], "complex": row + 1j, "dates":
        np.zeros((B, SIZE), "datetime64[D]"), "strings": np.full((B, SIZE), "a"), "numbers as text": np.full((B, SIZE), "1"),
        "bytes": b"abc", "scalar": 1.0, "empty": [], "one row less": row[1:], "four axes": row[None, None],
        "transposed": row.T, "a generator": (x for x in row), "beyond float32": row + 1e300, "inf": row + np.inf,
        "records": np.zeros((B, SIZE), [("x", "f4")]), "a range": range(9), "a huge integer": [[10**400] * SIZE] * B,
    }  # fmt: skip
    odd_rewards = {
        "None": None, "text": "abc", "one": 1.0, "a row": np.zeros((1, B)), "two": np.zeros(2), "empty": [],
        "NaN": [np.nan] * B, "-inf": np.array([0, 0, 0, -np.inf]), "inf": np.array([np.inf, 0, 0, 0]), "complex": np.zeros(B, complex),
        "objects": [None, {}, []], "strings": ["a"] * B, "huge integers": [10**400] * B, "dates": np.zeros(B, "datetime64[s]"),
    }  # fmt: skip
    odd_actions = {
        "text": "a", "NaN": np.full((B, ACTIONS), np.nan), "a row": np.zeros(ACTIONS), "wide": np.zeros((B, 9)),
        "inf": np.full((B, ACTIONS), np.inf), "objects": [[None] * ACTIONS] * B, "a dict": {}, "complex": np.zeros((B, ACTIONS)) + 1j,
    }  # fmt: skip
    odd_targets = {
        "text": "best", "NaN": np.nan, "-inf": -np.inf, "1e300": 1e300, "two": [1.0, 2.0],
        "a column": np.zeros((B, 1)), "empty": [], "one NaN": [1.0, np.nan, 2.0, 3.0], "complex": 1j, "a dict": {}, "a date":
        np.datetime64("2020-01-01"), "an object": object(), "10^400": 10**400,
    }  # fmt: skip
    found: dict[str, Callable[[Any], object]] = {}
    found |= {f"observation {what}": observed(value) for what, value in odd_observations.items()}
    found |= {f"reward {what}": rewarded(value) for what, value in odd_rewards.items()}
    found |= {f"previous action {what}": executed(value) for what, value in odd_actions.items()}
    found |= {f"target {what}": asked(B, value) for what, value in odd_targets.items()}
    found |= {f"batch {size!r}": asked(size, 1.0) for size in (0, -1, 1.5, "3", None, [3], 10**12, 10**30, True + 0.5)}
    found |= {
        f"restart {rows!r:.20}": restarted(rows) for rows in ([B], [-1], 0, None, "a", [[0]], [1.5], [10**30], {0})
    }
    found |= {f"restart for {target!r:.20}": restarted([0, 1], target) for target in ([1.0], "x", np.nan, -np.inf)}
    found |= {f"select {rows!r:.20}": selected(rows) for rows in ([B], [-B - 1], "a", None, [10**30], [[0]], 1.5)}
    return found | {
        "state None": lambda policy: policy.act(*_given(), None),
        "state of text": lambda policy: policy.act(*_given(), "state"),
        "state a tuple": lambda policy: policy.act(*_given(), (0, 1, 2, 3)),
        "state a dict": lambda policy: policy.act(*_given(), {}),
        "memory None": stated(memory=None),
        "memory of text": stated(memory="x"),
        "memory of another size": lambda policy: policy.act(
            *_given(), policy.initial_state(B, 1.0)._replace(memory=policy.initial_state(B + 1, 1.0).memory)
        ),
        "timestep of text": stated(timestep="3"),
        "timestep None": stated(timestep=None),
        "timestep below": stated(timestep=-5),
        "timestep beyond": stated(timestep=10**30),
        "timestep 1.5": stated(timestep=1.5),
        "timestep a list": stated(timestep=[1, 2]),
        "return-to-go None": stated(return_to_go=None),
        "return-to-go of text": stated(return_to_go="x"),
        "return-to-go NaN": stated(return_to_go=np.full(B, np.nan)),
    }


def _vectors() -> dict[str, Callable[[Any], object]]:
    """Calls of `VectorPolicy`."""
    from aaren_rl.vector import VectorPolicy

    def acted(*given: Any, first: bool = True, state: Any = None) -> Callable[[Any], object]:  # noqa: ANN401
        def call(policy: Any) -> object:  # noqa: ANN401
            agent = VectorPolicy(policy, n_envs=B, target_return=1.0)
            after = agent.act(*_given())[1] if first else state
            return agent.act(*given, after)

        return call

    def made(envs: Any, target: Any) -> Callable[[Any], object]:  # noqa: ANN401
        return lambda policy: VectorPolicy(policy, n_envs=envs, target_return=target).act(*_given())

    o, r = np.zeros((B, SIZE)), np.zeros(B)
    none, every = np.zeros(B, bool), np.ones(B, bool)
    return {
        "no environments": made(0, 1.0),
        "-1 environments": made(-1, 1.0),
        "1.5 environments": made(1.5, 1.0),
        "environments of text": made("3", 1.0),
        "two targets": made(B, [1.0, 2.0]),
        "targets of text": made(B, "best"),
        "targets NaN": made(B, np.nan),
        "target -inf": made(B, -np.inf),
        "observations of two": acted(o[:2], r, none),
        "observations of four": acted(np.zeros((B + 1, SIZE)), r, none),
        "observations flat": acted(o.ravel(), r, none),
        "observations of text": acted("abc", r, none),
        "observations None": acted(None, r, none),
        "observations NaN": acted(o * np.nan, r, none),
        "rewards of two": acted(o, r[:2], none),
        "rewards one": acted(o, 1.0, none),
        "rewards of text": acted(o, "abc", none),
        "rewards NaN": acted(o, r * np.nan, none),
        "rewards -inf": acted(o, r - np.inf, none),
        "started of two": acted(o, r, none[:2]),
        "started of text": acted(o, r, "yes"),
        "started one": acted(o, r, True),
        "started indices": acted(o, r, np.array([0, 2])),
        "started a column": acted(o, r, every[:, None]),
        "started numbers": acted(o, r, np.array([0.5, np.nan, 1, 0])),
        "state of text": acted(o, r, none, first=False, state="x"),
        "state empty": acted(o, r, none, first=False, state=()),
        "state a number": acted(o, r, none, first=False, state=3),
        "state of others": lambda policy: VectorPolicy(policy, n_envs=B, target_return=1.0).act(
            *_given(), none, VectorPolicy(policy, n_envs=2, target_return=1.0).act(o[:2], r[:2])[1]
        ),
        "first observations of two": acted(o[:2], r[:2], None, first=False),
        "a policy of text": lambda _: VectorPolicy("policy", n_envs=B, target_return=1.0).act(o, r),
    }


def _loads(world: World) -> dict[str, Callable[[], object]]:
    """Calls of `load_policy`, `from_pretrained` and `runtime.load`."""
    from aaren_rl import load_policy
    from aaren_rl.hub import from_pretrained
    from aaren_rl.runtime import load

    odd: dict[str, Any] = {"None": None, "a number": 5, "nothing": "", "NUL": "a\0b", "long": "x" * 5000, "list": [],
                           "missing": "missing", "root": "/", "bytes": b"x", "surrogate": "\udcff", "zeros": "/dev/null"}  # fmt: skip
    found: dict[str, Callable[[], object]] = {}
    for what, path in odd.items():
        for name, call in {"load_policy": load_policy, "from_pretrained": from_pretrained, "runtime": load}.items():
            found[f"{name} {what}"] = lambda call=call, path=path: call(path)
    for what, options in {
        "rollout": {"rollout": "x"}, "rollout 5": {"rollout": 5}, "context": {"rollout_context": 1, "rollout": "window"},
        "context text": {"rollout_context": "4"}, "context 1.5": {"rollout_context": 2.5, "rollout": "rolling"},
        "context below": {"rollout_context": -4}, "weights": {"weights": "x"}, "weights 5": {"weights": 5},
        "device": {"device": "gpu"}, "device none": {"device": "cuda:99"},
        "context beyond": {"rollout_context": 10**14, "rollout": "window"},
    }.items():  # fmt: skip
        found[f"load_policy, {what}"] = lambda options=options: load_policy(world.run, **options).initial_state(1, 1.0)
    for threads in (0, -1, "x", None, 1.5, 10**9):
        found[f"runtime threads {threads!r}"] = lambda threads=threads: load(world.onnx, threads=threads)
    return found


def _sb3(world: World) -> dict[str, Callable[[], object]]:
    """Calls of `aaren_rl.sb3`."""
    from aaren_rl.sb3 import SB3Policy, make_vec_env

    def predicted(*given: Any) -> Callable[[], object]:  # noqa: ANN401
        def call() -> object:
            env = make_vec_env("Good-v0", n_envs=2, seed=0)
            agent = SB3Policy(_policy(world), env, target_return=1.0)
            first = env.reset()
            return agent.predict(*(first if part is Ellipsis else part for part in given))

        return call

    def made(env_id: Any, envs: Any = 2, seed: Any = 0) -> Callable[[], object]:  # noqa: ANN401
        return lambda: make_vec_env(env_id, n_envs=envs, seed=seed)

    def agent(target: Any, policy: Any = None) -> Callable[[], object]:  # noqa: ANN401
        return lambda: SB3Policy(
            policy or _policy(world), make_vec_env("Good-v0", n_envs=2, seed=0), target_return=target
        )

    found: dict[str, Callable[[], object]] = {
        "an unknown environment": made("Nothing-v0"),
        "an environment to import": made("os:Nothing-v0"),
        "no environments": made("Good-v0", 0),
        "-1 environments": made("Good-v0", -1),
        "a seed below": made("Good-v0", 2, -5),
        "a seed of text": made("Good-v0", 2, "x"),
        "environments that raise": made("OddMakeRaises-v0"),
        "environments that exit": made("OddMakeExit-v0"),
        "a target of text": agent("best"),
        "a target NaN": agent(np.nan),
        "three targets": agent([1.0, 2.0, 3.0]),
        "an observation of text": predicted("abc"),
        "no observation": predicted(None),
        "another observation": predicted(np.ones((2, SIZE))),
        "a dict": predicted({"a": np.ones((2, SIZE))}),
        "a state of text": predicted(..., "x"),
        "starts of three": predicted(..., None, np.ones(3, bool)),
        "starts of text": predicted(..., None, "yes"),
    }
    return found
