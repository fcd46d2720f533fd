"""A trained decision model made into a policy: normalisation, return-to-go bookkeeping and the rollout modes.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from .arguments import blame, check_batch, check_index, check_inputs, check_state, check_targets
from .fast.rollout import for_rollout, for_windows
from .fast.rollout_graph import GraphedCallable
from .fast.rollout_step import CompiledStep
from .model.decision import DecisionModel
from .model.return_estimate import ReturnEstimate
from .policy_state import MEMORIES, Carry, Memory, PolicyState, Rolling, Step, Window, where
from .scan.rows import each

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float32]
    Targets: TypeAlias = npt.NDArray[np.float64]

ROLLOUTS = tuple(MEMORIES)
LONGEST = 2**20  # context: a window holds so many steps from the first on

State = TypeVar("State")


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
        timestep: int | Tensor,
        previous_action: Tensor | None,
        state: State,
        begins: Tensor | None = None,
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
        compiled: act through the compiled step on a CPU, through recorded graphs on a GPU, where there are such for the
            model; otherwise in PyTorch's operations.
        target_return: asked for where `initial_state` is told none, as there.
        card: how the policy was made, where it comes from a file: `aaren_rl.policies.card.PolicyCard`.
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
    target_return: float | None = None
    card: Any = field(default=None, repr=False, compare=False)
    _stepper: Stepper[Any] = field(init=False, repr=False, compare=False)
    _windows: GraphedCallable | None = field(init=False, repr=False, compare=False)
    _units: tuple[Tensor, Tensor] = field(init=False, repr=False, compare=False)
    _best_return: ReturnEstimate | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown rollout mode, a context under 2 steps or statistics of the wrong size."""
        if self.rollout not in ROLLOUTS:
            raise ValueError(f"rollout {self.rollout!r} is not one of {', '.join(ROLLOUTS)}")
        if not isinstance(self.context_length, int) or not 2 <= self.context_length <= LONGEST:
            raise ValueError(f"context_length must be an integer from 2 to {LONGEST:,}, not {self.context_length}")
        size = (self.model.config.observation_dim,)
        if self.observation_mean.shape != size or self.observation_std.shape != size:
            raise ValueError(f"observation statistics must have shape {size}")
        self.model.eval()
        stepper: Stepper[Any] = self.model
        if self.rollout != "window":
            stepper = for_rollout(self.model, compiled=self.compiled)
        object.__setattr__(self, "_stepper", stepper)
        windows = for_windows(self.model) if self.rollout == "window" and self.compiled else None
        object.__setattr__(self, "_windows", windows)
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

    @property
    def restarts(self) -> bool:
        """Whether some environments can begin another episode while others go on, by `restart`: not where the memory
        grows with the episode, as attention's cache does.
        """
        config = self.model.config
        constant = config.mixer == "aaren" or (config.mixer == "aaren-rsa" and not config.rem_max_power)
        return constant or self.rollout == "window"

    @torch.no_grad()
    def initial_state(self, batch_size: int, target_return: float | Targets | Tensor | None = None) -> PolicyState:
        """The state at the begin of an episode in which `target_return` is asked for.

        One number for all environments or one for each, (B,), in the environment's units. Infinity asks, at every step
        anew, for the best return in reach as the training data had it; the model must hold an estimate of that. None
        asks for the policy's own `target_return`.

        Raises:
            ValueError: it is neither, not finite, or infinity is asked for and the model holds no estimate.
        """
        target_return = self.target_return if target_return is None else target_return
        asking, batch_size = self._best_return is not None, check_batch(batch_size)
        device = self.observation_mean.device
        wanted = check_targets(target_return, batch_size, self.return_scale, device, infinite=asking)
        memory: Memory
        if self.rollout == "window":
            memory = Window.empty(batch_size, self._sizes, self.context_length, device)
        else:
            fresh = self._stepper.initial_state(batch_size)
            memory = Carry(fresh) if self.rollout == "carry" else Rolling(fresh, None)
        return PolicyState(0, wanted, None, memory)

    @torch.no_grad()
    def restart(
        self, state: PolicyState, rows: npt.ArrayLike, target_return: float | Targets | Tensor | None = None
    ) -> PolicyState:
        """The state with new episodes begun in some environments; the others' actions stay what they would have been.

        Args:
            state: from `initial_state`, `act` or `restart`.
            rows: the environments' indices, (R,).
            target_return: asked for in their new episodes, one number or (R,); as in `initial_state`.

        Raises:
            ValueError: as `initial_state`; an index is none of the state's; or the policy cannot (`restarts`).
        """
        if not self.restarts:
            raise ValueError("the memory of this rollout mode grows with the episode: begin a batch by initial_state")
        state = self._checked(state)
        device, batch = self.observation_mean.device, len(state.return_to_go)
        index = check_index(rows, batch, device)
        asking = self._best_return is not None
        target_return = self.target_return if target_return is None else target_return
        wanted = check_targets(target_return, len(index), self.return_scale, device, infinite=asking)
        begins = torch.zeros(batch, dtype=torch.bool, device=device)
        begins[index] = True
        times = torch.as_tensor(state.timestep, device=device).expand(batch).masked_fill(begins, 0)
        previous = torch.zeros(batch, self._sizes[1], device=device)
        if state.previous_action is not None:
            previous = torch.as_tensor(state.previous_action, dtype=torch.float32, device=device)
        memory = state.memory
        if isinstance(memory, Rolling) and memory.younger is None:
            memory = Rolling(memory.older, memory.older)
        return PolicyState(times, state.return_to_go.index_put((index,), wanted), previous, memory)

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
        state = self._checked(state)
        memory = state.memory
        given = check_inputs(
            observation,
            reward,
            state.previous_action,
            batch=len(state.return_to_go),
            sizes=self._sizes,
            device=self.observation_mean.device,
        )
        return_to_go = state.return_to_go - given.reward
        normalised = (given.observation - self.observation_mean) / self.observation_std
        middle, half = self._units
        step = Step(
            normalised,
            self._asked(return_to_go, normalised, given.reward),
            state.timestep,
            None if given.previous_action is None else (given.previous_action - middle) / half,
        )
        if self.rollout == "window":
            action, memory = self._window(step, memory)
        elif self.rollout == "rolling":
            action, memory = self._rolling(step, memory)
        else:
            action, memory = self._carry(step, memory)
        if not math.isfinite(action.sum().item()):  # actions are in (-1, 1): only what is not finite makes it so
            raise NonFiniteActionError(blame(given, state.return_to_go, state.timestep, action))
        action = middle + half * action
        # A copy: on the CPU the array would share its memory with the state, and the caller may write to it.
        handed_out = action.float().cpu().numpy().copy()
        return handed_out, PolicyState(state.timestep + 1, return_to_go, action, memory)

    def select(self, state: PolicyState, rows: npt.NDArray[np.int64] | Tensor) -> PolicyState:
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        state = self._checked(state)
        index = check_index(rows, len(state.return_to_go), self.observation_mean.device)
        selected: PolicyState = each(lambda parts: parts[0][index], [state])
        return selected

    def _checked(self, state: PolicyState) -> PolicyState:
        return check_state(state, MEMORIES[self.rollout], self.rollout, self.observation_mean.device)

    @property
    def _sizes(self) -> tuple[int, int]:
        """O and A."""
        return self.model.config.observation_dim, self.model.config.action_dim

    def _asked(self, return_to_go: Tensor, observed: Tensor, reward: Tensor) -> Tensor:
        """What the model sees, (B,), scaled: the return-to-go, or the best in reach where that is infinite.

        A return-to-go that a reward made infinite asks for nothing: it stays, and the action is not finite.
        """
        scaled = return_to_go / self.return_scale
        if self._best_return is not None and math.isinf(scaled.sum().item()):
            asking = scaled.isposinf() & reward.isfinite()
            scaled = torch.where(asking, self._best_return(observed), scaled)
        return scaled.float()

    def _carry(self, step: Step, memory: Memory) -> tuple[Tensor, Carry]:
        assert isinstance(memory, Carry)
        action, state = self._stepper.step(*step, memory.state, _is_zero(step.timestep))
        return action, Carry(state)

    def _rolling(self, step: Step, memory: Memory) -> tuple[Tensor, Rolling]:
        assert isinstance(memory, Rolling)
        older, younger = memory
        half = self.context_length // 2
        if isinstance(step.timestep, Tensor):
            turns = step.timestep % half == 0
            older = where(turns, younger, older)
            action, older = self._stepper.step(*step, older, step.timestep == 0)
            return action, Rolling(older, self._stepper.step(*step, younger, turns)[1])
        fresh = step.timestep > 0 and step.timestep % half == 0
        if fresh and younger is not None:
            older = younger
        action, older = self._stepper.step(*step, older)
        if fresh:
            step, younger = step._replace(previous_action=None), self._stepper.initial_state(len(action))
        if younger is not None:
            _, younger = self._stepper.step(*step, younger)
        return action, Rolling(older, younger)

    def _window(self, step: Step, memory: Memory) -> tuple[Tensor, Window]:
        assert isinstance(memory, Window)
        window, place = memory.push(step)
        if self._windows:
            (actions,) = self._windows(*window)
        else:
            # Where all environments are at one step, without the places that are empty yet: less work, and how many
            # there are does not show in the last bits.
            seen = step.timestep + 1 if isinstance(step.timestep, int) else None
            actions, _ = self.model(*(part[:, :seen] for part in window))
        return actions[torch.arange(len(place), device=place.device), place], window


def _is_zero(timestep: int | Tensor) -> Tensor | None:
    """Where environments that are at different steps begin an episode, bool (B,); None where they are all at one."""
    return timestep == 0 if isinstance(timestep, Tensor) else None
