"""What a policy is, whatever computes its actions: its state, its arguments, episodes that begin. No torch.

An invalid argument raises ArgumentError, a ValueError, whose message names it.

Shape suffixes: B environments, O observation, A action, n discrete actions, R environments that begin an episode.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError, NonFiniteActionError
from ...base.fields import AUTO, COUNT_FROM_0, ENVS, TEMPERATURE, Range

Array: TypeAlias = npt.NDArray[Any]

# Dtype kinds that convert to a type without loss, and the name of the type in messages.
_KINDS = {"f": ("biuf", "numbers"), "i": ("biu", "integers"), "b": ("b", "bool")}
# Philox counts its samples in the lower 64 bits. Above is the time step, or this for the seed of the next episode.
_STEP, _EPISODE = 64, 1 << 192


class PolicyState(NamedTuple):
    """The state of a policy between two steps of B environments, in their units.

    Attributes:
        timestep: steps taken so far in the episode: one number, or int64 (B,) after `reset`.
        return_to_go: remaining target return, float64 (B,); infinite for the maximum achievable one.
        previous_action: the last returned action, float32 (B, A), or int64 (B,) if discrete; None before the first.
            Replace it (`state._replace(previous_action=...)`) if a different action was executed.
        memory: the memory of the rollout mode: tensors on the device of the policy, or an array of an exported one.
        seeds: int64 (B,), the seeds of a policy with a temperature; None for any other.
    """

    timestep: int | npt.NDArray[np.int64]
    return_to_go: npt.NDArray[np.float64]
    previous_action: Array | None
    memory: Any
    seeds: npt.NDArray[np.int64] | None = None


class BasePolicy(ABC):
    """A policy acts in B environments at once, one call per step. A subclass is an engine: it computes the action.

    Attributes:
        rollout: "recurrent", "staggered" or "window".
        context_length: K of "staggered" and "window", in steps.
        return_scale: returns-to-go are divided by it, as in training.
        target_return: where `initial_state` gets none: a number, "auto" or None, no default.
        action_start: the smallest of discrete actions, which are all integers from there on.
        temperature: discrete actions are sampled from softmax(logits / temperature); None: the most likely one.
        flatten: makes (B, O) of observations that are not, and of the type given second; None: `act` takes no others.
        sizes: O and A.
        discrete: whether an action is an integer.
        observation_dtype: the type in which `act` reads observations: float64 where a column is far from zero.
        estimates_maximum: whether it estimates the maximum achievable return, which the target "auto" needs.
    """

    rollout: str
    context_length: int
    return_scale: float
    target_return: float | str | None
    action_start: int
    temperature: float | None
    flatten: Callable[[Any, Any], Any] | None
    sizes: tuple[int, int]
    discrete: bool
    observation_dtype: type[np.float32 | np.float64]
    estimates_maximum: bool

    @property
    def supports_reset(self) -> bool:
        """Whether `reset` can begin episodes in some environments: not where the memory grows, as a cache does."""
        return True

    def initial_state(self, batch_size: int, target_return: Any = None, *, seed: Any = 0) -> PolicyState:
        """The state at the beginning of an episode with this target return.

        `target_return` is one number for all environments or one for each, (B,), in the environment's units; None: the
        policy's own. "auto" is, at every step, the maximum achievable return by the training data; in an array it is
        infinity. Where the policy has a temperature, environment i draws from `seed` + i, or from its own of several,
        (B,); it is not read elsewhere.

        Raises:
            ArgumentError: the target return is none of these, not finite, or "auto" and the policy holds no estimate of
                it; or a seed is none.
        """
        batch = integer("batch_size", batch_size, ENVS)
        wanted = self._targets(target_return, batch)
        seeds = None if self.temperature is None else seeds_of(seed, batch)
        return PolicyState(0, wanted, None, self._new_memory(batch), seeds)

    def reset(self, state: PolicyState, indices: Any, target_return: Any = None) -> PolicyState:
        """The state with new episodes begun in some environments; the others' actions stay what they would have been.

        Args:
            state: of all environments.
            indices: of the environments that begin an episode, (R,): `np.flatnonzero(ended)`, not the mask itself.
            target_return: of their new episodes, one number, "auto" or (R,), as in `initial_state`.

        Raises:
            ArgumentError: as `initial_state`; an index is none of the state's; or the policy cannot (`supports_reset`).
        """
        if not self.supports_reset:
            raise ArgumentError(
                "the memory of this rollout mode grows with the episode: begin a batch by initial_state"
            )
        state = self._checked(state)
        batch = len(state.return_to_go)
        index = _rows("indices", indices, batch)
        times, to_go = np.full(batch, state.timestep, np.int64), state.return_to_go.copy()
        times[index], to_go[index] = 0, self._targets(target_return, len(index))
        seeds = None if state.seeds is None else state.seeds.copy()
        if seeds is not None:
            seeds[index] = next_seeds(seeds[index])
        previous = self._no_action(batch) if state.previous_action is None else state.previous_action
        return PolicyState(times, to_go, previous, self._memory_for_reset(state.memory), seeds)

    def act(self, observation: Any, reward: Any, state: PolicyState) -> tuple[Array, PolicyState]:
        """The next action of every environment.

        Args:
            observation: (B, O), raw; or as the environment gives them, see `flatten`.
            reward: (B,), of the step before; 0 at the first.
            state: from `initial_state` or the last `act`.

        Returns:
            Actions, float32 (B, A) in the environment's units or int64 (B,), and the new state.

        Raises:
            ArgumentError: a shape is not the policy's and the state's, or the state is of another rollout mode.
            NonFiniteActionError: the action is NaN or infinite; the message names the argument that is, if one is.
        """
        _, after = self._advance(observation, reward, state)
        action: Any = after.previous_action
        # A copy: the caller may write to it.
        return action.copy(), after

    def logits(self, observation: Any, reward: Any, state: PolicyState) -> tuple[Array, PolicyState]:
        """The logits (B, n), float32, of discrete actions in place of a choice; all else as `act`.

        Raises:
            ArgumentError: as `act`, or the actions are continuous.
        """
        if not self.discrete:
            raise ArgumentError("logits: are of discrete actions, and this policy's are continuous")
        return self._advance(observation, reward, state)

    def select(self, state: PolicyState, rows: Any) -> PolicyState:
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        timestep, to_go, previous, memory, seeds = self._checked(state)
        index = _rows("rows", rows, len(to_go))
        return PolicyState(
            timestep[index] if isinstance(timestep, np.ndarray) else timestep,
            to_go[index],
            None if previous is None else previous[index],
            self._memory_of(memory, index),
            None if seeds is None else seeds[index],
        )

    def _advance(self, observation: Any, reward: Any, state: PolicyState) -> tuple[Array, PolicyState]:
        """The actions or logits of the engine, and the new state, with the actions to take."""
        state = self._checked(state)
        batch = len(state.return_to_go)
        if self.flatten is not None:
            observation = self.flatten(observation, self.observation_dtype)
        observed = array("observation", observation, self.observation_dtype, (batch, self.sizes[0]))
        rewards = array("reward", reward, np.float64, (batch,))
        to_go = state.return_to_go - rewards if _finite(rewards) else np.full(batch, np.nan)
        # Infinite is the maximum achievable return.
        if not (_finite(to_go) or (np.isfinite(to_go) | (np.isposinf(to_go) & self.estimates_maximum)).all()):
            raise NonFiniteActionError(self._blame(observed, rewards, state))
        out, memory = self._act(observed, to_go, state)
        if not _finite(out):
            raise NonFiniteActionError(self._blame(observed, rewards, state, out))
        action: Array = out
        if self.discrete:
            action = choose(out, self.action_start, self.temperature, state.seeds, state.timestep)
        return out, PolicyState(state.timestep + 1, to_go, action, memory, state.seeds)

    def _blame(self, observed: Array, rewards: Array, state: PolicyState, action: Array | None = None) -> str:
        """Why there is no finite action: the first argument that is not finite, with its row, or else the policy."""
        wanted, times = state.return_to_go, np.broadcast_to(state.timestep, len(rewards))
        if self.estimates_maximum:  # which infinity stands for
            wanted = np.where(np.isposinf(wanted), 0.0, wanted)
        given = {"observation": observed, "reward": rewards, "previous_action": state.previous_action}
        for name, values in {**given, "state: return_to_go": wanted}.items():
            if values is not None and not np.isfinite(values).all():
                row, *column = np.argwhere(~np.isfinite(values))[0].tolist()
                place = f"row {row}" + (f", column {column[0]}" if column else "")
                return f"{name}: {place} is {values[(row, *column)]} at step {times[row]}; no action follows from it"
        if action is None:
            return f"reward: the return-to-go that it leaves is not finite at step {times.min()}; no action follows"
        return f"the policy's action at step {times[np.argwhere(~np.isfinite(action))[0][0]]} is not finite"

    def _checked(self, state: Any) -> PolicyState:  # what a caller hands back, parts perhaps replaced
        if not isinstance(state, PolicyState):
            raise ArgumentError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
        timestep, to_go, previous, memory, seeds = state
        memory, batch = self._checked_memory(memory)
        if previous is None:
            if not (isinstance(timestep, int) and timestep == 0):
                raise ArgumentError("previous_action: is None after the first step")
        elif self.discrete:
            previous = array("previous_action", previous, np.int64, (batch,))
            low, high = self.action_start, self.action_start + self.sizes[1] - 1
            if (outside := previous[(previous < low) | (previous > high)]).size:
                raise ArgumentError(f"previous_action: must be actions from {low} to {high}, not {outside[0]}")
        else:
            previous = array("previous_action", previous, np.float32, (batch, self.sizes[1]))
        to_go = array("state: return_to_go", to_go, np.float64, (batch,))
        if seeds is not None or self.temperature is not None:
            seeds = _from_0("state: seeds", seeds, batch)
        if isinstance(timestep, np.ndarray) and timestep.ndim:
            timestep = _from_0("state: timestep", timestep, batch)
        else:
            timestep = integer("state: timestep", timestep, COUNT_FROM_0)
            previous = previous if timestep else None  # nothing came before the first step, whatever a caller put there
        return PolicyState(timestep, to_go, previous, memory, seeds)

    def _no_action(self, batch: int) -> Array:
        """In the place of the action before the first, which is not read."""
        if self.discrete:
            return np.full(batch, self.action_start, np.int64)
        return np.zeros((batch, self.sizes[1]), np.float32)

    def _targets(self, target_return: Any, count: int) -> npt.NDArray[np.float64]:
        wanted = self.target_return if target_return is None else target_return
        return targets(wanted, count, self.return_scale, infinite=self.estimates_maximum)

    @abstractmethod
    def _new_memory(self, batch: int) -> Any:  # the engine's own
        """The memory before any step."""

    @abstractmethod
    def _checked_memory(self, memory: Any) -> tuple[Any, int]:
        """The memory as `_act` reads it, and B; raises ArgumentError if it is not this policy's."""

    @abstractmethod
    def _memory_of(self, memory: Any, index: npt.NDArray[np.int64]) -> Any:
        """The memory of the environments at `index`."""

    def _memory_for_reset(self, memory: Any) -> Any:
        """The memory of environments that are from now on at different steps."""
        return memory

    @abstractmethod
    def _act(self, observed: Array, to_go: Array, state: PolicyState) -> tuple[Array, Any]:
        """Actions (B, A), or logits (B, n), of observations (B, O) and returns-to-go (B,), and the memory after it."""


def array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
    """An array of this type and shape, from anything that numpy converts, or from a tensor on any device."""
    found: Array = value
    if type(value) is not np.ndarray or value.dtype != dtype:  # fast path: the conversion below takes microseconds
        kinds, words = _KINDS[np.dtype(dtype).kind]
        try:
            found = _as_array(value)
            # Conversion would parse text, drop imaginary parts and fractions, and take numbers as booleans.
            if found.size and found.dtype.kind not in kinds:
                raise TypeError(str(found.dtype))
            with np.errstate(over="ignore"):  # reported as not finite elsewhere
                found = found.astype(dtype, copy=False)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ArgumentError(f"{name}: must be {words}, not {type(value).__name__}") from error
    if shape is not None and found.shape != shape:
        raise ArgumentError(f"{name}: must have shape {shape} for this policy and state, not {found.shape}")
    return found if found.flags.c_contiguous else found.copy()  # PyTorch takes no negative strides


def integer(name: str, value: Any, limits: Range) -> int:
    """An integer of this range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: must be an integer, not {type(value).__name__}") from None
    if problem := limits.problem(number):
        raise ArgumentError(f"{name}: {problem}")
    return number


def check_temperature(value: Any, *, discrete: bool) -> None:
    """Raises ArgumentError unless it is None, or a temperature for sampling discrete actions."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"temperature: must be a number, not {type(value).__name__}")
    if problem := TEMPERATURE.problem(value):
        raise ArgumentError(f"temperature: {problem}")
    if not discrete:
        raise ArgumentError("temperature: needs discrete actions, but this policy has continuous ones; leave it out")


def targets(value: Any, batch: int, scale: float = 1.0, *, infinite: bool = True) -> npt.NDArray[np.float64]:
    """Target returns, one or (B,), as (B,): finite, also divided by the policy's return scale, as float32.

    "auto", in an array infinity, is the maximum achievable return, where the policy is able to: `infinite`.
    """
    if value is None:
        raise ArgumentError('target_return: this policy names none of its own; give a number or "auto"')
    automatic = isinstance(value, str)
    if automatic and value != AUTO:
        raise ArgumentError(f'target_return: must be a number or "{AUTO}", not {value[:40]!r}')
    wanted = array("target_return", math.inf if automatic else value, np.float64)
    if wanted.shape not in ((), (batch,)):
        raise ArgumentError(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
    asking = np.isposinf(wanted)
    if asking.ndim == 0 and asking and not automatic:
        raise ArgumentError(f'target_return: must be finite; the maximum achievable return is "{AUTO}"')
    if not infinite and asking.any():
        raise ArgumentError(
            "this policy holds no estimate of the maximum achievable return: give a target return, as a number"
        )
    if not (asking | (np.abs(wanted / scale) <= np.finfo(np.float32).max)).all():  # NaN is not
        raise ArgumentError(f"target_return: must be finite, in float32 and divided by {scale:g}, too")
    return np.broadcast_to(wanted, (batch,)).copy()


def seeds_of(seed: Any, batch: int) -> npt.NDArray[np.int64]:
    """Seeds of a sampling policy, (B,), as they are or from one number s: s, s + 1, ..."""
    found = array("seed", seed, np.int64)
    # A copy: the caller's may change.
    return _from_0("seed", found + np.arange(batch) if found.shape == () else found.copy(), batch)


def choose(logits: Array, start: int, temperature: float | None, seeds: Array | None, timestep: int | Array) -> Array:
    """The actions for logits (B, n), int64 (B,) from `start` on: the most likely, or samples of softmax(logits / T).

    A sample is argmax(logits / T + g) with Gumbel noise g (the Gumbel-max trick, Maddison et al. 2014). The noise of
    environment i depends only on its seed and time step.

    Args:
        logits: finite.
        start: the smallest action.
        temperature: T; None: the most likely action, the smallest one on ties.
        seeds: (B,); ignored without a temperature.
        timestep: one number for all, or (B,).
    """
    if temperature is not None:
        assert seeds is not None
        # At most 0, so that the quotient of the largest is finite.
        scaled = (logits - logits.max(1, keepdims=True)).astype(np.float64)
        with np.errstate(over="ignore"):
            scaled /= temperature
        for row, seed, time in zip(scaled, seeds, np.broadcast_to(timestep, len(logits)), strict=True):
            source = np.random.Philox(key=int(seed), counter=int(time) << _STEP)
            row += np.random.Generator(source).gumbel(size=len(row))
        logits = scaled
    chosen: npt.NDArray[np.int64] = logits.argmax(1) + np.int64(start)
    return chosen


def next_seeds(seeds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The seeds (R,) of the next episodes after those with these seeds."""
    drawn = [np.random.Philox(key=int(seed), counter=_EPISODE).random_raw() for seed in seeds]
    return (np.array(drawn, np.uint64) >> np.uint64(1)).astype(np.int64)


def _as_array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _finite(values: Array) -> bool:
    """Whether all numbers are finite: if their sum is, which is found faster."""
    return math.isfinite(np.add.reduce(values, None)) or bool(np.isfinite(values).all())


def _from_0(name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:
    found = array(name, value, np.int64, (batch,))
    if (found < 0).any():
        raise ArgumentError(f"{name}: must be at least 0, not {found.min()}")
    return found


def _rows(name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:
    """Indices of environments, (R,)."""
    found = array(name, value, np.int64)
    if _as_array(value).dtype == bool:  # True and False would be 1 and 0
        raise ArgumentError(f"{name}: must be indices of environments, not a mask; np.flatnonzero makes them of one")
    if found.ndim != 1 or ((found < 0) | (found >= batch)).any():
        raise ArgumentError(f"{name}: must be indices of {batch} environments, in one dimension")
    return found
