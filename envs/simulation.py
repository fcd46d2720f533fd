"""Rollouts of anything that has `initial_state` and `act`, in several environments at once.

Resets and steps of the user's environments are checked; an error names the environment and the step.

Shape suffixes: B environments, n of them, T steps, O observation, A action.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from ..base.errors import SimulationError, one_line
from ..base.files import core_count
from .data.episodes import Episode
from .tasks.environment import RAISED, close_env, make_env, told

State = TypeVar("State")
Env: TypeAlias = gym.Env[Any, Any]
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Called with the numbers of running environments (n,), in rising order, and the actions they are about to take, (n, A)
# or integers (n,).
OnAction = Callable[[Indices, npt.NDArray[Any]], None]

# Matrix kernels add up in another order for a handful of rows than for many, and contacts amplify the last bit into
# another episode. From 16 rows on, and in multiples of it, a row's result does not depend on how many there are
# (measured in float32 on x86 for 16 to 128 rows), so that an episode is the same alone and beside others. A policy
# whose `batch_invariant` is true needs no such padding.
ROWS = 16

# Environments at once; more are played in turns. A simulator takes 0.7 MB and more, and from here on a larger batch
# saves a policy nothing.
AT_ONCE = 256


class SequencePolicy(Protocol[State]):
    """What a rollout needs of a policy; with `select(state, rows)` too, ended episodes cost nothing (see `ROWS`)."""

    def initial_state(self, batch_size: int, target_return: npt.NDArray[np.float64]) -> State:
        """The state at the beginning of episodes in which `target_return` (B,) is asked for."""
        ...

    def act(
        self, observation: npt.NDArray[np.float32], reward: npt.NDArray[np.float32], state: State
    ) -> tuple[npt.NDArray[np.float32], State]:
        """Actions (B, A) from observations (B, O), the last rewards (B,) and the state."""
        ...


@dataclass(frozen=True)
class Rollouts:
    """The outcome of one episode an environment.

    `returns` (B,) are undiscounted, in the environment's units; `lengths` (B,) are steps; `actions_per_second` counts
    actions of running episodes over the wall time, simulation included, of which `policy_seconds` went to the policy.
    """

    returns: npt.NDArray[np.float64]
    lengths: Indices
    actions_per_second: float
    policy_seconds: float


class Steps(NamedTuple):
    """Step outputs of n environments, (n, O) and (n,); `ended` by a terminal state or by a time limit."""

    observations: Floats
    rewards: Floats
    ended: npt.NDArray[np.bool_]


def rollout(
    policy: SequencePolicy[State],
    env_id: str,
    *,
    episodes: int,
    target_return: float | npt.ArrayLike,
    seed: int,
    env_kwargs: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
    on_action: OnAction | None = None,
) -> Rollouts:
    """Plays each environment's first episode to its end, up to `AT_ONCE` environments in step.

    The outcome of an episode depends on its seed and target alone, not on how many others run beside it or where.

    Args:
        policy: acts for many environments in one call.
        env_id: a Gymnasium id; its own time limit ends an episode.
        episodes: B, the number of environments.
        target_return: asked of the policy, in the environment's units: a number, or several, (R,). For each of them
            `episodes` are played; the outcome is then (R * B,), target by target.
        seed: environment i is reset with seed + i, the same for every target.
        env_kwargs: passed on to `gymnasium.make`.
        workers: threads that simulate, MuJoCo in parallel; 0: this one; None: one per core and 16 episodes.
        on_step: called after every step with (step of the episodes that are played, episodes that have not ended).
        on_action: called with every action, see `OnAction`.

    Raises:
        ValueError: no episode, or no target return.
        SimulationError: the environment is unknown, or raised (the message is its own).
    """
    targets, seeds = _asked(episodes, target_return, seed)
    returns, lengths = np.zeros(len(targets)), np.zeros(len(targets), np.int64)
    seconds = policy_seconds = 0.0
    for first in range(0, len(targets), AT_ONCE):
        turn = np.arange(first, min(first + AT_ONCE, len(targets)))
        with ExitStack() as stack:
            groups = _groups(policy, partial(make_env, env_id, **(env_kwargs or {})), turn, workers, stack)
            began = time.perf_counter()
            for group in groups:
                group.reset(targets, seeds)
            for step in count():
                for group in groups:
                    if group.running.size and step > 0:
                        group.receive(returns, lengths)
                    if group.running.size:
                        group.act(on_action)
                running = sum(group.running.size for group in groups)
                if on_step is not None and step > 0:
                    on_step(step, running + len(targets) - first - len(turn))
                if not running:
                    break
            seconds += time.perf_counter() - began
        policy_seconds += sum(group.seconds for group in groups)
    return Rollouts(returns, lengths, float(lengths.sum() / seconds), policy_seconds)


def _asked(episodes: int, target_return: float | npt.ArrayLike, seed: int) -> tuple[Floats, Indices]:
    returns = np.atleast_1d(np.asarray(target_return, dtype=np.float64))
    if episodes < 1 or not returns.size:
        raise ValueError(f"{episodes} episodes, {returns.size} target returns: ask for one at least")
    return np.repeat(returns, episodes), np.tile(np.arange(seed, seed + episodes), returns.size)


def _groups(
    policy: SequencePolicy[State], make: Callable[[], Any], turn: Indices, workers: int | None, stack: ExitStack
) -> "list[_Group[State]]":
    """The environments `turn` (n,) in groups, each simulated by a thread of its own where there are workers."""
    most = min(core_count(), len(turn) // ROWS) if workers is None else min(workers, len(turn))
    notes = list[str]()
    groups = [_Group(policy, make, which, stack, notes) for which in np.array_split(turn, max(1, most))]
    if len(groups) > 1:
        for group in groups:
            group.thread = stack.enter_context(ThreadPoolExecutor(1))
    return groups


def executed(space: Any, actions: npt.NDArray[Any], state: Any, told: list[str]) -> tuple[npt.NDArray[Any], Any]:
    """Actions (B, ...) within the bounds of an environment, and the state of the policy, which sees them as executed.

    Where some were clipped, a line says so once: `told` has it then.
    """
    if not isinstance(space, Box) or space.shape != actions.shape[1:]:
        return actions, state
    within = np.clip(actions, space.low, space.high).astype(actions.dtype)
    if np.array_equal(within, actions, equal_nan=True):
        return within, state
    if not told:
        told.append("note: actions were clipped to the bounds of the environment, which are narrower")
        print(told[0], file=sys.stderr)
    return within, state._replace(previous_action=within) if hasattr(state, "previous_action") else state


class _Group(Generic[State]):
    """Environments that one call of the policy acts for; `running` are those whose episode goes on, (n,)."""

    thread: ThreadPoolExecutor | None = None  # simulates, where it is not the caller

    def __init__(
        self, policy: SequencePolicy[State], make: Callable[[], Any], which: Indices, stack: ExitStack, notes: list[str]
    ) -> None:
        """`which` (n,) are the environments' numbers; `stack` closes them; `notes` are those of all groups."""
        self._policy, self.running, self.seconds, self._notes = policy, which, 0.0, notes
        self._multiple, self._steps, self._envs = row_multiple(policy), 0, dict[int, Env]()
        for e in which.tolist():
            self._envs[e] = make()
            stack.callback(close_env, self._envs[e])

    def reset(self, targets: Floats, seeds: Indices) -> None:
        """Begins the episodes. `targets` and `seeds` are those of all."""
        self._seeds, targets = seeds.tolist(), targets[self.running]
        seen = [begin(env, self._where(e), seed=self._seeds[e])[0].copy() for e, env in self._envs.items()]
        observations = np.array(seen, np.float64)
        rows = padded(np.arange(len(seen)), self._multiple)
        self._places = np.arange(len(seen))  # the running environments' rows
        dtype = getattr(self._policy, "observation_dtype", np.float32)
        self._observations, self._rewards = observations[rows].astype(dtype), np.zeros(len(rows), np.float32)
        # What samples its actions draws from the episode's seed.
        sampled = getattr(self._policy, "temperature", None) is not None
        more: dict[str, Any] = {"seed": seeds[self.running][rows]} if sampled else {}
        self._state = self._policy.initial_state(len(rows), targets[rows], **more)

    def _where(self, e: int) -> str:
        return f"reset with seed {self._seeds[e]}, step {self._steps}"

    def _step(self, which: Indices, actions: npt.NDArray[Any]) -> Steps:
        """What environments `which` (n,) answer to actions, (n, A) or (n,)."""
        self._steps += 1
        answers = []
        for e, action in zip(which.tolist(), actions, strict=True):  # copies: an environment may write into its own
            seen, *answer = take(self._envs[e], action.copy(), self._where(e))
            answers.append((seen.copy(), *answer[:3]))
        observations, rewards, terminated, truncated = map(np.array, zip(*answers, strict=True))
        return Steps(observations.astype(np.float64), rewards, terminated | truncated)

    def act(self, on_action: OnAction | None) -> None:
        """Lets the policy act, and begins the step of the running environments."""
        began = time.perf_counter()
        actions, self._state = self._policy.act(self._observations, self._rewards, self._state)
        self.seconds += time.perf_counter() - began
        space = next(iter(self._envs.values())).action_space
        actions, self._state = executed(space, actions, self._state, self._notes)
        actions = actions[self._places]
        if on_action is not None:
            on_action(self.running, actions)
        step = partial(self._step, self.running, actions)
        self._answer = step if self.thread is None else self.thread.submit(step).result

    def receive(self, returns: Floats, lengths: Indices) -> None:
        """Waits for the step and counts it in the `returns` and `lengths` of all environments."""
        answer = self._answer()
        returns[self.running] += answer.rewards
        lengths[self.running] += 1
        self._observations[self._places], self._rewards[self._places] = answer.observations, answer.rewards
        if answer.ended.any():
            self._keep(np.flatnonzero(~answer.ended))

    def _keep(self, going: Indices) -> None:
        """Goes on with these of the running environments, (n,)."""
        self.running, self._places = self.running[going], self._places[going]
        select = getattr(self._policy, "select", None)
        if select is None or going.size == 0 or _round_up(going.size, self._multiple) == len(self._rewards):
            return
        rows = padded(self._places, self._multiple)
        self._observations, self._rewards = self._observations[rows], self._rewards[rows]
        self._state, self._places = select(self._state, rows), np.arange(going.size)


def row_multiple(policy: object) -> int:
    """The number of environments that a call of the policy is for is a multiple of this."""
    return 1 if getattr(policy, "batch_invariant", False) else ROWS


def padded(rows: Indices, multiple: int) -> Indices:
    """`rows` up to a multiple, by repeating the last."""
    return np.pad(rows, (0, _round_up(len(rows), multiple) - len(rows)), mode="edge")


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


# Resets and steps, checked

Observation: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]  # (O,)

_OLD = (
    "; since Gym 0.26 reset returns (observation, info), and step (observation, reward, terminated, truncated, info): "
    "if this one is older, wrap it in shimmy's GymV21CompatibilityV0"
)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def begin(env: Env, where: str = "", **options: Any) -> tuple[Observation, dict[str, Any]]:
    """Resets an environment and returns the first observation (O,), and `info`.

    `where` names the environment and its step for messages ("reset with seed 1003, step 3"); `options` are passed to
    `gymnasium.Env.reset`.

    SimulationError: it raised, or the observation is not a finite vector of its observation space's shape.
    """
    try:
        observation, info = env.reset(**options)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", _OLD if "to unpack" in str(error) else "") from error
    return _observation(env, where, observation), info


def take(env: Env, action: Any, where: str = "") -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Takes a step with an action, (A,) or an integer.

    Returns the observation (O,), the reward, whether the episode terminated, whether it was truncated, and `info`. The
    other arguments are those of `begin`.

    SimulationError: as in `begin`, or the reward is not a finite number, or a flag is neither true nor false.
    """
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", _OLD if "to unpack" in str(error) else "") from error
    ended, cut, number = _number(terminated), _number(truncated), _number(reward)
    if ended is None or cut is None:
        name, value = ("terminated", terminated) if ended is None else ("truncated", truncated)
        raise _fault(env, where, f"returned {type(value).__name__} as {name}, which is neither true nor false")
    if number is None:
        raise _fault(env, where, f"returned the reward {one_line(repr(reward), 60)}, which is not a number")
    if not abs(number) <= _LARGEST_FLOAT32:
        in_float32 = " in float32" if math.isfinite(number) else ""
        raise _fault(env, where, f"returned a reward that is not finite{in_float32}: {number}")
    return _observation(env, where, observation), number, bool(ended), bool(cut), info


def play_episode(env: Env, act: Callable[[Any], Any], seed: int, limit: int, dtype: Any = np.float32) -> Episode:
    """An episode from a seed, of `limit` steps at most, with the action, (A,) or an integer, of each observation (O,).

    Observations are of `dtype`, for `act`, too. SimulationError: as in `take`.
    """
    observation, _ = begin(env, f"reset with seed {seed}", seed=seed)
    rows = []
    for step in range(limit):
        action = np.array(act(seen := observation.astype(dtype)))
        where = f"reset with seed {seed}, step {step + 1}"
        observation, reward, terminated, truncated, _ = take(env, action.copy()[()], where)
        rows.append((seen, action, reward))
        if terminated or truncated:
            break
    observations, actions, rewards = (np.array(column) for column in zip(*rows, strict=True))
    actions = actions.astype(np.float32 if actions.dtype.kind == "f" else np.int64)
    return Episode(observations, actions, rewards.astype(np.float32), terminated)


def _number(value: Any) -> float | None:
    """A number, a truth value or a 0-d array of one as a float; None for anything else."""
    if type(value) in (bool, float):
        return float(value)
    try:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None
    except Exception:  # an object that is not a number may raise any error here
        return None


def _observation(env: Env, where: str, observation: Any) -> Observation:
    try:
        with np.errstate(over="ignore"):  # reported below
            array = np.asarray(observation)
            if array.dtype.kind not in "biufO":  # numpy would parse text and drop an imaginary part
                raise TypeError(str(array.dtype))
            # Wider numbers are kept: a policy may subtract their mean first.
            array = array.astype(np.float32 if np.can_cast(array.dtype, np.float32) else np.float64, copy=False)
            finite = np.isfinite(array.astype(np.float32, copy=False))
    except Exception as error:  # likewise
        kind = type(observation).__name__
        raise _fault(env, where, f"returned an observation that is a {kind}, not a vector of numbers") from error
    if array.shape != (wanted := env.observation_space.shape):
        shapes = f"{array.shape}, but its observation space has {wanted}"
        raise _fault(env, where, f"returned an observation of shape {shapes}")
    if not finite.all():
        column = int(np.argmin(finite))
        value = np.asarray(observation).ravel()[column]
        raise _fault(env, where, f"returned an observation that is not finite: column {column} is {value}")
    return array


def _fault(env: Env, where: str, what: str, way_out: str = "; fix the environment") -> SimulationError:
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    return SimulationError(f"the environment {name} {what}{where and f' ({where})'}{way_out}")
