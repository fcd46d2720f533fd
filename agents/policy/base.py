"""What every engine of a policy has in common: its state, the checks of its arguments, episodes that begin. No torch.

Shape suffixes: B environments, O observation, A action, R environments that begin an episode.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError, NonFiniteActionError
from ...base.ranges import ENVS
from . import arguments as check
from .discrete import choose, next_seeds


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
    previous_action: npt.NDArray[Any] | None
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

    def initial_state(
        self,
        batch_size: int,
        target_return: Any = None,  # noqa: ANN401  what numpy converts
        *,
        seed: Any = 0,  # noqa: ANN401
    ) -> PolicyState:
        """The state at the beginning of an episode with this target return.

        `target_return` is one number for all environments or one for each, (B,), in the environment's units; None: the
        policy's own. "auto" is, at every step, the maximum achievable return by the training data; in an array it is
        infinity. Where the policy has a temperature, environment i draws from `seed` + i, or from its own of several,
        (B,); it is not read elsewhere.

        Raises:
            ArgumentError: the target return is none of these, not finite, or "auto" and the policy holds no estimate of
                it; or a seed is none.
        """
        batch = check.integer("batch_size", batch_size, ENVS)
        wanted = self._targets(target_return, batch)
        seeds = None if self.temperature is None else check.seeds("seed", seed, batch)
        return PolicyState(0, wanted, None, self._new_memory(batch), seeds)

    def reset(
        self,
        state: PolicyState,
        indices: Any,  # noqa: ANN401
        target_return: Any = None,  # noqa: ANN401
    ) -> PolicyState:
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
        index = check.rows("indices", indices, batch)
        begun = self._targets(target_return, len(index))
        previous = state.previous_action
        if previous is None:
            none = np.zeros((batch, self.sizes[1]), np.float32)
            previous = np.full(batch, self.action_start, np.int64) if self.discrete else none
        return PolicyState(
            _replaced(np.full(batch, state.timestep, np.int64), index, 0),
            _replaced(state.return_to_go, index, begun),
            previous,
            self._memory_for_reset(state.memory),
            None if state.seeds is None else _replaced(state.seeds, index, next_seeds(state.seeds[index])),
        )

    def act(self, observation: Any, reward: Any, state: PolicyState) -> tuple[npt.NDArray[Any], PolicyState]:  # noqa: ANN401
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

    def logits(self, observation: Any, reward: Any, state: PolicyState) -> tuple[npt.NDArray[np.float32], PolicyState]:  # noqa: ANN401
        """The logits (B, n) of discrete actions in place of a choice; all else as `act`.

        Raises:
            ArgumentError: as `act`, or the actions are continuous.
        """
        if not self.discrete:
            raise ArgumentError("logits: are of discrete actions, and this policy's are continuous")
        return self._advance(observation, reward, state)

    def select(self, state: PolicyState, rows: Any) -> PolicyState:  # noqa: ANN401
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        timestep, to_go, previous, memory, seeds = self._checked(state)
        index = check.rows("rows", rows, len(to_go))
        return PolicyState(
            timestep[index] if isinstance(timestep, np.ndarray) else timestep,
            to_go[index],
            None if previous is None else previous[index],
            self._memory_of(memory, index, len(to_go)),
            None if seeds is None else seeds[index],
        )

    def _advance(
        self,
        observation: Any,  # noqa: ANN401
        reward: Any,  # noqa: ANN401
        state: PolicyState,
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        """The actions or logits of the engine, and the new state, with the actions to take."""
        state = self._checked(state)
        batch = len(state.return_to_go)
        if self.flatten is not None:
            observation = self.flatten(observation, self.observation_dtype)
        observed = check.array("observation", observation, self.observation_dtype, (batch, self.sizes[0]))
        rewards = check.array("reward", reward, np.float64, (batch,))
        to_go = state.return_to_go - rewards if _finite(rewards) else np.full(batch, np.nan)
        if not (_finite(to_go) or self._can_follow(to_go)):
            raise NonFiniteActionError(self._blame(observed, rewards, state))
        out, memory = self._act(observed, to_go, state)
        if not _finite(out):
            raise NonFiniteActionError(self._blame(observed, rewards, state, out))
        action: npt.NDArray[Any] = out
        if self.discrete:
            action = choose(out, self.action_start, self.temperature, state.seeds, state.timestep)
        return out, PolicyState(state.timestep + 1, to_go, action, memory, state.seeds)

    def _can_follow(self, to_go: npt.NDArray[np.float64]) -> bool:
        """Whether returns-to-go are finite, or infinite where the target is the maximum achievable return."""
        return bool((np.isfinite(to_go) | (np.isposinf(to_go) & self.estimates_maximum)).all())

    def _blame(self, observed: Any, rewards: Any, state: PolicyState, action: Any = None) -> str:  # noqa: ANN401
        wanted = state.return_to_go
        if self.estimates_maximum:  # which infinity stands for
            wanted = np.where(np.isposinf(wanted), 0.0, wanted)
        given = {"observation": observed, "reward": rewards, "previous_action": state.previous_action}
        return check.blame({**given, "state: return_to_go": wanted}, state.timestep, action)

    def _checked(self, state: Any) -> PolicyState:  # noqa: ANN401  what a caller hands back, parts perhaps replaced
        if not isinstance(state, PolicyState):
            raise ArgumentError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
        timestep, to_go, previous, memory, seeds = state
        memory, batch = self._checked_memory(memory)
        if previous is not None:
            if self.discrete:
                previous = check.choices("previous_action", previous, batch, self.action_start, self.sizes[1])
            else:
                previous = check.array("previous_action", previous, np.float32, (batch, self.sizes[1]))
        elif not (isinstance(timestep, int) and timestep == 0):
            raise ArgumentError("previous_action: is None after the first step")
        to_go = check.array("state: return_to_go", to_go, np.float64, (batch,))
        if seeds is not None or self.temperature is not None:
            seeds = check.seeds("state: seeds", seeds, batch)
        return PolicyState(check.timestep(timestep, batch), to_go, previous, memory, seeds)

    def _targets(self, target_return: Any, count: int) -> npt.NDArray[np.float64]:  # noqa: ANN401
        wanted = self.target_return if target_return is None else target_return
        return check.targets(wanted, count, self.return_scale, infinite=self.estimates_maximum)

    @abstractmethod
    def _new_memory(self, batch: int) -> Any:  # noqa: ANN401  the engine's own
        """The memory before any step."""

    @abstractmethod
    def _checked_memory(self, memory: Any) -> tuple[Any, int]:  # noqa: ANN401
        """The memory as `_act` reads it, and B; raises ArgumentError if it is not this policy's."""

    @abstractmethod
    def _memory_of(self, memory: Any, index: npt.NDArray[np.int64], batch: int) -> Any:  # noqa: ANN401
        """The memory of the environments at `index` among `batch`."""

    def _memory_for_reset(self, memory: Any) -> Any:  # noqa: ANN401
        """The memory of environments that are from now on at different steps."""
        return memory

    @abstractmethod
    def _act(
        self, observed: npt.NDArray[Any], to_go: npt.NDArray[np.float64], state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], Any]:
        """Actions (B, A), or logits (B, n), of observations (B, O) and returns-to-go (B,), and the memory after it."""


def _finite(array: npt.NDArray[Any]) -> bool:
    """Whether all numbers are finite: if their sum is, which is found faster."""
    return math.isfinite(np.add.reduce(array, None)) or bool(np.isfinite(array).all())


def _replaced(values: npt.NDArray[Any], index: npt.NDArray[np.int64], new: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    """A copy with new values at `index`."""
    values = values.copy()
    values[index] = new
    return values
