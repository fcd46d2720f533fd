"""A trained decision model made into a policy: normalisation, return-to-go bookkeeping and the rollout modes.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from .arguments import blame, check_inputs, check_memory, check_targets
from .fast.rollout import for_rollout
from .fast.rollout_step import CompiledStep, StepState
from .model.best_return import BestReturn
from .model.block import TrunkState
from .model.decision import DecisionModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float32]
    Targets: TypeAlias = npt.NDArray[np.float64]

ROLLOUTS = ("carry", "rolling", "window")

StepperState: TypeAlias = TrunkState | StepState
State = TypeVar("State")


class Carry(NamedTuple):
    """One state, from the first step on."""

    state: StepperState


class Rolling(NamedTuple):
    """Two staggered states: actions come from the older; every K / 2 steps it is dropped and a fresh one begun."""

    older: StepperState
    younger: StepperState | None


class Window(NamedTuple):
    """The last K steps, raw material for recomputing; the newest action is not known yet and stands as zeros.

    Attributes:
        observations: (B, n, O), normalised, n <= K.
        actions: (B, n, A).
        returns_to_go: (B, n), scaled.
        timesteps: (B, n).
    """

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor


Memory: TypeAlias = Carry | Rolling | Window | None
_MEMORIES: dict[str, type[object]] = {"carry": Carry, "rolling": Rolling, "window": Window}


class PolicyState(NamedTuple):
    """What a policy remembers between two steps of B environments.

    Attributes:
        timestep: steps taken so far.
        return_to_go: return still to come, (B,), in the environment's units; infinite where the best in reach is asked
            for.
        previous_action: the action handed out last, (B, A), in the environment's units. Replace it
            (`state._replace(previous_action=...)`, an array will do) if something else was executed.
        memory: what the rollout mode keeps.
    """

    timestep: int
    return_to_go: Tensor
    previous_action: Tensor | None
    memory: Memory


class NonFiniteActionError(FloatingPointError):
    """The model's action is NaN or infinite; it was not handed out."""


class Stepper(Protocol[State]):
    """A decision model, or what stands for it at rollout; a state belongs to the one that made it."""

    def initial_state(self, batch_size: int) -> State:
        """As `DecisionModel.initial_state`."""
        ...

    def step(
        self,
        observation: Tensor,
        return_to_go: Tensor,
        timestep: int,
        previous_action: Tensor | None,
        state: State,
    ) -> tuple[Tensor, State]:
        """As `DecisionModel.step`."""
        ...


@dataclass(frozen=True)
class Policy:
    """Acts in B environments at once, one call a step.

    Attributes:
        model: the decision model; put into evaluation mode. "carry" and "rolling" act with a copy of the weights it has
            when the policy is made.
        observation_mean: (O,), of the training data.
        observation_std: (O,), of the training data.
        return_scale: returns-to-go are divided by it, as in training.
        rollout: "carry": one state from the first step on, constant cost; train on long contexts for it. "rolling": two
            staggered states, ages K/2 to K, constant cost. "window": recompute the last K steps.
        context_length: K of "rolling" and "window".
        action_low: the smallest actions of the environment, (A,) or one for all; the model's -1.
        action_high: the largest actions, likewise; the model's 1.
        compiled: act through the compiled step where there is one for the model; otherwise in PyTorch's operations.
    """

    model: DecisionModel
    observation_mean: Tensor
    observation_std: Tensor
    return_scale: float
    rollout: str
    context_length: int
    action_low: Tensor | float = -1.0
    action_high: Tensor | float = 1.0
    compiled: bool = True
    _stepper: Stepper[Any] = field(init=False, repr=False, compare=False)
    _units: tuple[Tensor, Tensor] = field(init=False, repr=False, compare=False)
    _best_return: BestReturn | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown rollout mode, a context under 2 steps or statistics of the wrong size."""
        if self.rollout not in ROLLOUTS:
            raise ValueError(f"rollout {self.rollout!r} is not one of {', '.join(ROLLOUTS)}")
        if self.context_length < 2:
            raise ValueError(f"context_length must be at least 2, not {self.context_length}")
        size = (self.model.config.observation_dim,)
        if self.observation_mean.shape != size or self.observation_std.shape != size:
            raise ValueError(f"observation statistics must have shape {size}")
        self.model.eval()
        stepper: Stepper[Any] = self.model
        if self.rollout != "window":
            stepper = for_rollout(self.model, compiled=self.compiled)
        object.__setattr__(self, "_stepper", stepper)
        best = self.model.best_return
        # In float64, whose sums, rounded, do not depend on how many environments there are.
        object.__setattr__(self, "_best_return", None if best is None else copy.deepcopy(best).double())
        # Tensors, of which operations take half as long as of numbers.
        low, high = (
            torch.as_tensor(x, device=self.observation_mean.device) for x in (self.action_low, self.action_high)
        )
        object.__setattr__(self, "_units", ((high + low) / 2, (high - low) / 2))

    @property
    def rows_independent(self) -> bool:
        """Whether an environment's actions are the same, to the last bit, however many others are acted for."""
        return isinstance(self._stepper, CompiledStep)

    @torch.no_grad()
    def initial_state(self, batch_size: int, target_return: float | Targets | Tensor) -> PolicyState:
        """The state at the begin of an episode in which `target_return` is asked for.

        One number for all environments or one for each, (B,), in the environment's units. Infinity asks, at every step
        anew, for the best return in reach as the training data had it; the model must hold an estimate of that.

        Raises:
            ValueError: it is neither, not finite, or infinity is asked for and the model holds no estimate.
        """
        asking = self._best_return is not None
        device = self.observation_mean.device
        wanted = check_targets(target_return, batch_size, self.return_scale, device, infinite=asking)
        fresh = self._stepper.initial_state(batch_size)
        memory: Memory = {"carry": Carry(fresh), "rolling": Rolling(fresh, None), "window": None}[self.rollout]
        return PolicyState(0, wanted, None, memory)

    @torch.no_grad()
    def act(self, observation: Array | Tensor, reward: Array | Tensor, state: PolicyState) -> tuple[Array, PolicyState]:
        """The next action of every environment.

        Args:
            observation: (B, O), raw.
            reward: (B,), of the step before; 0 at the first.
            state: from `initial_state` or the last `act`.

        Returns:
            float32 actions (B, A) in the environment's units, and the new state.

        Raises:
            ValueError: a shape is not the policy's and the state's, or the state is of another rollout mode.
            NonFiniteActionError: the action is NaN or infinite; the message names the argument that is, if one is.
        """
        config = self.model.config
        given = check_inputs(
            observation,
            reward,
            state.previous_action,
            batch=len(state.return_to_go),
            sizes=(config.observation_dim, config.action_dim),
            device=self.observation_mean.device,
        )
        return_to_go = state.return_to_go - given.reward
        normalised = (given.observation - self.observation_mean) / self.observation_std
        middle, half = self._units
        step = _Step(
            normalised,
            self._asked(return_to_go, normalised),
            state.timestep,
            None if given.previous_action is None else (given.previous_action - middle) / half,
        )
        memory = state.memory
        if memory is not None or self.rollout != "window":
            check_memory(memory, _MEMORIES[self.rollout], self.rollout)
        if self.rollout == "window":
            action, memory = self._window(step, memory)
        elif self.rollout == "rolling":
            action, memory = self._rolling(step, memory)
        else:
            action, memory = self._carry(step, memory)
        if not math.isfinite(action.sum().item()):  # actions are in (-1, 1): only what is not finite makes it so
            raise NonFiniteActionError(blame(given, state.return_to_go, state.timestep))
        action = middle + half * action
        # A copy: on the CPU the array would share its memory with the state, and the caller may write to it.
        handed_out = action.detach().to("cpu", torch.float32, copy=True).numpy()
        return handed_out, PolicyState(state.timestep + 1, return_to_go, action, memory)

    def select(self, state: PolicyState, rows: npt.NDArray[np.int64]) -> PolicyState:
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        index = torch.as_tensor(rows, device=self.observation_mean.device)
        return PolicyState(*(_rows(part, index) for part in state))

    def _asked(self, return_to_go: Tensor, observed: Tensor) -> Tensor:
        """What the model sees, (B,), scaled: the return-to-go, or the best in reach where that is infinite."""
        scaled = return_to_go / self.return_scale
        if self._best_return is not None and math.isinf(scaled.sum().item()):
            scaled = torch.where(scaled.isposinf(), self._best_return(observed), scaled)
        return scaled.float()

    def _carry(self, step: _Step, memory: Memory) -> tuple[Tensor, Carry]:
        assert isinstance(memory, Carry)
        action, state = self._stepper.step(*step, memory.state)
        return action, Carry(state)

    def _rolling(self, step: _Step, memory: Memory) -> tuple[Tensor, Rolling]:
        assert isinstance(memory, Rolling)
        older, younger = memory
        half = self.context_length // 2
        fresh = step.timestep > 0 and step.timestep % half == 0
        if fresh and younger is not None:
            older = younger
        action, older = self._stepper.step(*step, older)
        if fresh:
            step, younger = step._replace(previous_action=None), self._stepper.initial_state(len(action))
        if younger is not None:
            _, younger = self._stepper.step(*step, younger)
        return action, Rolling(older, younger)

    def _window(self, step: _Step, memory: Memory) -> tuple[Tensor, Window]:
        batch, device = len(step.observation), step.observation.device
        unknown = torch.zeros(batch, 1, self.model.config.action_dim, device=device)
        new = Window(
            step.observation.unsqueeze(1),
            unknown,
            step.return_to_go.unsqueeze(1),
            torch.full((batch, 1), step.timestep, device=device),
        )
        if memory is not None:
            assert isinstance(memory, Window) and step.previous_action is not None
            known = torch.cat([memory.actions[:, :-1], step.previous_action.unsqueeze(1)], 1)
            old = memory._replace(actions=known)
            new = Window(*(torch.cat(pair, 1)[:, -self.context_length :] for pair in zip(old, new, strict=True)))
        actions, _ = self.model(*new)
        return actions[:, -1], new


class _Step(NamedTuple):
    """The arguments of `DecisionModel.step` but the state."""

    observation: Tensor
    return_to_go: Tensor
    timestep: int
    previous_action: Tensor | None


def _rows(part: Any, index: Tensor) -> Any:  # noqa: ANN401  every part of a state
    """The batch's rows at `index` of every tensor in a part of the state."""
    if isinstance(part, Tensor):
        return part[index]
    if isinstance(part, tuple):
        parts = [_rows(inner, index) for inner in part]
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
    return part
