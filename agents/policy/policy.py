"""A trained decision model made into a policy that acts in PyTorch, or in one compiled call per step.

The rollout modes say what it remembers between two steps.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...base.errors import ArgumentError
from ...base.fields import CONTEXT
from ..mixers.tree import TreeConfig, plant_trees
from ..model.decision import Array, DecisionModel, ModelStep, ReturnEstimate, ReturnRange, Scaling, Step, to_array
from ..scan.rows import batch_size, each, where
from .base import BasePolicy, PolicyState, check_temperature
from .compiled import CompiledStep, PlainStep, Stepper, can_compile

StepperState: TypeAlias = Any  # a stepper knows its own: `TrunkState`, or one tensor


class Recurrent(NamedTuple):
    """One state since the first step."""

    state: StepperState


class Staggered(NamedTuple):
    """Two staggered states. Actions come from the older; every K / 2 steps it is dropped and a new one starts.

    In the first K / 2 steps, the younger is None, or a copy of the older if environments are at different steps.
    """

    older: StepperState
    younger: StepperState


class Window(NamedTuple):
    """The last K steps, oldest first; zeros after the newest while there are fewer, and for the newest action.

    Attributes:
        observations: (B, K, O), normalized; likewise actions (B, K, A), scaled returns_to_go and timesteps (B, K).
    """

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor

    @staticmethod
    def empty(batch_size: int, sizes: tuple[int, int], context_length: int, device: torch.device) -> Window:
        """The window before any step, for `sizes` O and A."""
        how: dict[str, Any] = {"dtype": torch.float32, "device": device}
        observations, actions = (torch.zeros(batch_size, context_length, size, **how) for size in sizes)
        returns_to_go = torch.zeros(batch_size, context_length, **how)
        return Window(observations, actions, returns_to_go, torch.zeros_like(returns_to_go, dtype=torch.long))

    def push(self, step: ModelStep) -> tuple[Window, Tensor]:
        """The window with one more step, and its index in it, (B,). Steps before the first of an episode are masked."""
        (batch, length), (observation, to_go, timestep, previous) = self.returns_to_go.shape, step
        every = torch.arange(batch, device=self.timesteps.device)
        times = torch.as_tensor(timestep, device=every.device).expand(batch)
        full, place = times >= length, times.clamp(max=length - 1)
        after = Window(*(where(full, part.roll(-1, 1), part) for part in self))
        if previous is not None:
            after.actions[every, place - 1] = previous  # at a first step the last index, which is masked
        new = (observation, torch.zeros_like(after.actions[:, 0]), to_go, times)
        for part, value in zip(after, new, strict=True):
            part[every, place] = value
        return after, place


Memory: TypeAlias = Recurrent | Staggered | Window
MEMORIES: dict[str, type[Memory]] = {"recurrent": Recurrent, "staggered": Staggered, "window": Window}
ROLLOUTS = tuple(MEMORIES)


@dataclass(frozen=True)
class Policy(BasePolicy):
    """Acts in B environments at once, one call per step.

    Attributes:
        model: put into evaluation mode; "recurrent" and "staggered" act with a copy of the weights that it has now.
        observation_mean, observation_std: (O,), of the training data; in float64 where `exact`.
        return_scale: returns-to-go are divided by it, as in training.
        rollout: "recurrent": one state from the first step on, constant cost; train on long contexts for it.
            "staggered": two staggered states, ages K/2 to K, constant cost. "window": recompute the last K steps.
        context_length: K of "staggered" and "window".
        action_low, action_high: the environment's limits, (A,) or one for all; the model's -1 and 1.
        return_range: of the training data's returns-to-go, by time step: the model is fed none outside of it.
        compiled: act through the compiled step on a CPU, where the model has one.
        target_return, action_start, temperature, flatten: as in `BasePolicy`.
        exact: observations are read in float64, and the mean is subtracted before they become float32, as in training
            on float64 data.
        tree: attend through a tree of the episode so far in place of softmax attention; None: do not. To change it:
            `dataclasses.replace(policy, tree=...)`.

    Raises:
        ValueError: an unknown rollout mode, or a context, statistics, a temperature or a tree that cannot be; the
            message names it.
    """

    model: DecisionModel
    observation_mean: Tensor
    observation_std: Tensor
    return_scale: float
    rollout: str
    context_length: int
    action_low: Tensor | float = -1.0
    action_high: Tensor | float = 1.0
    return_range: ReturnRange | None = None
    compiled: bool = True
    target_return: float | str | None = None
    action_start: int = 0
    temperature: float | None = None
    flatten: Callable[[Any, Any], Any] | None = field(default=None, repr=False, compare=False)
    tree: TreeConfig | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        config = self.model.config
        vars(self).update(  # the class is frozen
            sizes=(config.observation_dim, config.action_dim),
            discrete=config.discrete,
            observation_dtype=np.float64 if self.exact else np.float32,
            estimates_maximum=self.model.max_return_estimate is not None,
        )
        if self.rollout not in ROLLOUTS:
            raise ValueError(f"rollout {self.rollout!r} is not one of {', '.join(ROLLOUTS)}")
        if not isinstance(self.context_length, int) or CONTEXT.problem(self.context_length):
            raise ValueError(
                f"context_length must be an integer from 2 to {CONTEXT.high:,}, not {self.context_length!r}"
            )
        observations, actions = self.sizes
        if self.observation_mean.shape != (observations,) or self.observation_std.shape != (observations,):
            raise ValueError(f"observation statistics must have shape {(observations,)}")
        if any(torch.as_tensor(x).shape not in ((), (1,), (actions,)) for x in (self.action_low, self.action_high)):
            raise ValueError(f"action_low and action_high must be numbers or have shape ({actions},)")
        check_temperature(self.temperature, discrete=self.discrete)
        if self.tree is not None and self.rollout == "window":
            raise ValueError("tree attention needs a growing memory: use rollout recurrent or staggered, not window")
        self.model.eval()
        # Now, with the weights that the model has.
        _ = self._max_return, self.rollout == "window" or self._stepper

    @property
    def batch_invariant(self) -> bool:
        """Whether an environment's actions are the same, to the last bit, however many others are acted for."""
        return self.rollout != "window" and isinstance(self._stepper, CompiledStep)

    @property
    def supports_reset(self) -> bool:
        """Whether `reset` can begin episodes in some environments: not where the memory grows, as a cache does."""
        return self.rollout == "window" or (self.tree is None and self.model.trunk.mixer.constant_state)

    @cached_property
    def scaling(self) -> Scaling:
        """How the model sees the environment."""
        exact: dict[str, Any] = {"dtype": torch.float64, "device": self.observation_mean.device}
        low, high = (torch.as_tensor(x, **exact).expand(self.sizes[1]) for x in (self.action_low, self.action_high))
        origin = self.observation_mean.double().cpu().numpy() if self.exact else None
        return Scaling.of(self.observation_mean, self.observation_std, self.return_scale, low, high, origin)

    @cached_property
    def _stepper(self) -> Stepper:
        if self.compiled and self.tree is None and can_compile(self.model):
            return CompiledStep(self.model, self.scaling)
        copied = copy.deepcopy(self.model).eval().requires_grad_(False)
        if self.tree is not None:
            plant_trees(copied.trunk, self.tree)
        return PlainStep(copied, self.scaling)

    @cached_property
    def _max_return(self) -> ReturnEstimate | None:
        # In float64 sums, rounded, do not depend on how many environments there are.
        estimate = self.model.max_return_estimate
        return None if estimate is None else copy.deepcopy(estimate).double()

    def _new_memory(self, batch: int) -> Memory:
        if self.rollout == "window":
            return Window.empty(batch, self.sizes, self.context_length, self.observation_mean.device)
        fresh = self._stepper.initial_state(batch)
        return Recurrent(fresh) if self.rollout == "recurrent" else Staggered(fresh, None)

    def _checked_memory(self, memory: Any) -> tuple[Memory, int]:
        if not isinstance(memory, MEMORIES[self.rollout]):
            other = type(memory).__name__.lower()
            if other in MEMORIES:
                raise ArgumentError(f"state: is of the rollout mode {other}, and this policy's is {self.rollout}")
            raise ArgumentError(f"state: memory must be what act gave, not {other}; keep states by pickle, not JSON")
        return memory, batch_size(memory)

    def _memory_of(self, memory: Memory, index: Array) -> Memory:
        places = torch.from_numpy(index)
        return each(lambda parts: parts[0][places.to(parts[0].device)], [memory])  # type: ignore[no-any-return]

    def _memory_for_reset(self, memory: Memory) -> Memory:
        alone = isinstance(memory, Staggered) and memory.younger is None
        return Staggered(memory.older, memory.older) if alone else memory  # type: ignore[union-attr]

    def _act(self, observed: Array, to_go: Array, state: PolicyState) -> tuple[Array, Memory]:
        observed, previous = self.scaling.from_origin(observed), state.previous_action
        if self._max_return is not None and math.isinf(np.add.reduce(to_go)):
            to_go = np.where(np.isposinf(to_go), self._estimated(self._max_return, observed), to_go)
        if self.discrete and previous is not None:
            choices = np.arange(self.action_start, self.action_start + self.sizes[1])
            previous = np.equal(previous[:, None], choices).astype(np.float32)
        if self.return_range is not None:
            to_go = self.return_range.clamp(to_go, state.timestep)
        step, memory = Step(observed, to_go, state.timestep, previous), state.memory
        if isinstance(memory, Window):
            return self._act_on_window(step, memory)
        if isinstance(memory, Staggered):
            return self._act_staggered(step, memory)
        action, after = self._stepper.step(step, memory.state, step.begins())
        return action, Recurrent(after)

    @torch.no_grad()
    def _estimated(self, estimate: ReturnEstimate, observed: Array) -> Array:
        """A return-to-go (B,) in the environment's units."""
        seen = torch.tensor(observed, device=self.scaling.observation_mean.device)
        scaled: Tensor = estimate(self.scaling.normalized(seen))
        return (scaled * self.return_scale).cpu().numpy()

    def _act_staggered(self, step: Step, memory: Staggered) -> tuple[Array, Staggered]:
        """Acts with the older state, which the younger replaces every K / 2 steps."""
        (older, younger), stepper, half = memory, self._stepper, self.context_length // 2
        if isinstance(step.timestep, np.ndarray):
            turns = step.timestep % half == 0
            older = where(torch.from_numpy(turns).to(self.observation_mean.device), younger, older)
            action, older = stepper.step(step, older, step.begins())
            return action, Staggered(older, stepper.step(step, younger, turns)[1])
        fresh = step.timestep > 0 and step.timestep % half == 0
        if fresh and younger is not None:
            older = younger
        action, older = stepper.step(step, older)
        if fresh:
            step, younger = step._replace(previous_action=None), stepper.initial_state(len(action))
        if younger is not None:
            _, younger = stepper.step(step, younger)
        return action, Staggered(older, younger)

    @torch.no_grad()
    def _act_on_window(self, step: Step, memory: Window) -> tuple[Array, Window]:
        """Acts with the model on the last K steps."""
        window, place = memory.push(self.scaling.to_model(step))
        # Where all environments are at one step, without the places that are empty yet: less work, and how many there
        # are does not show in the last bits.
        seen = step.timestep + 1 if isinstance(step.timestep, int) else None
        actions, _ = self.model(*(part[:, :seen] for part in window))
        newest = actions[torch.arange(len(place), device=place.device), place]
        return to_array(self.scaling.actions(newest)), window
