"""A trained decision model made into a policy: normalization, return-to-go bookkeeping and the rollout modes.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...base.errors import NonFiniteActionError
from ...base.ranges import CONTEXT, ENVS
from ..fast.choice import Choice, for_choice
from ..fast.compiled_step import CompiledStep
from ..fast.stepper import Stepper, for_rollout
from ..model.decision import DecisionModel, ReturnEstimate
from ..model.scaling import FAR, ReturnRange, Scaling, Step, middle_and_half
from ..scan.rows import batch_size, each
from .arguments import blame
from .discrete import choose, next_seeds, one_hot
from .memory import CHECK, MEMORIES, Memory, PolicyState, Recurrent, Staggered, Window
from .modes import act_on_window, act_staggered

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Numbers: TypeAlias = npt.ArrayLike | Tensor

ROLLOUTS = tuple(MEMORIES)


@dataclass(frozen=True)
class Policy:
    """Acts in B environments at once, one call a step.

    Attributes:
        model: put into evaluation mode; "recurrent" and "staggered" act with a copy of the weights that it has now.
        observation_mean, observation_std: (O,), of the training data; in float64 where a column is far from zero.
        return_scale: returns-to-go are divided by it, as in training.
        rollout: "recurrent": one state from the first step on, constant cost; train on long contexts for it.
            "staggered": two staggered states, ages K/2 to K, constant cost. "window": recompute the last K steps.
        context_length: K of "staggered" and "window".
        action_low, action_high: the environment's limits, (A,) or one for all; the model's -1 and 1.
        return_range: of the training data's returns-to-go, by time step: the model is fed none outside of it.
        compiled: act through the compiled step on a CPU, where the model has one.
        target_return: where `initial_state` gets none: a number, "auto" or None, no default.
        action_start: the smallest of discrete actions, which are all integers from there on.
        temperature: discrete actions are sampled from softmax(logits / temperature); None: the most likely one.
        flatten: makes (B, O) of observations that are not, and of the type given second; None: `act` takes no others.
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
    return_range: ReturnRange | None = None
    compiled: bool = True
    target_return: float | str | None = None
    action_start: int = 0
    temperature: float | None = None
    card: Any = field(default=None, repr=False, compare=False)
    flatten: Callable[[Any, Any], Any] | None = field(default=None, repr=False, compare=False)

    runs: ClassVar[int] = 1  # of the model at every step, which share one memory

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown rollout mode or a context, statistics or a temperature that cannot be."""
        if self.rollout not in ROLLOUTS:
            raise ValueError(f"rollout {self.rollout!r} is not one of {', '.join(ROLLOUTS)}")
        if not isinstance(self.context_length, int) or CONTEXT.problem(self.context_length):
            raise ValueError(
                f"context_length must be an integer from 2 to {CONTEXT.high:,}, not {self.context_length!r}"
            )
        size = (self.model.config.observation_dim,)
        if self.observation_mean.shape != size or self.observation_std.shape != size:
            raise ValueError(f"observation statistics must have shape {size}")
        actions = self._sizes[1]
        if any(torch.as_tensor(x).shape not in ((), (1,), (actions,)) for x in (self.action_low, self.action_high)):
            raise ValueError(f"action_low and action_high must be numbers or have shape ({actions},)")
        CHECK.temperature(self.temperature, discrete=self.discrete)
        self.model.eval()
        # Now, with the weights that the model has.
        _ = self._max_return_estimate, self._scaling, self.rollout == "window" or self._stepper, self._choice

    @cached_property
    def _scaling(self) -> Scaling:
        exact: dict[str, Any] = {"dtype": torch.float64, "device": self.observation_mean.device}
        low, high = (torch.as_tensor(x, **exact).expand(self._sizes[1]) for x in (self.action_low, self.action_high))
        mean = self.observation_mean.float() if self.origin is None else torch.zeros_like(self.observation_std)
        statistics = mean.float(), self.observation_std.float(), self.return_scale
        return Scaling(*statistics, *middle_and_half(low, high), self.return_range)

    @cached_property
    def origin(self) -> npt.NDArray[np.float64] | None:
        """What is subtracted from observations before they become float32, (O,); None: nothing.

        It is their mean, where a column is so far from zero that float32 would lose digits.
        """
        mean, std = (x.double().cpu() for x in (self.observation_mean, self.observation_std))
        loses = (mean.abs() > FAR * std) & (mean != mean.float())
        return mean.numpy() if bool(loses.any()) else None

    @property
    def observation_dtype(self) -> type[np.float32 | np.float64]:
        """The type in which `act` reads observations."""
        return np.float32 if self.origin is None else np.float64

    @cached_property
    def _stepper(self) -> Stepper:
        return for_rollout(self.model, self._scaling, compiled=self.compiled)

    @cached_property
    def _max_return_estimate(self) -> ReturnEstimate | None:
        return _exact(self.model.max_return_estimate)

    @cached_property
    def _choice(self) -> Choice | None:
        critic = self.model.critic
        return None if critic is None else for_choice(critic, self._scaling, compiled=self.batch_invariant)

    @property
    def candidates(self) -> int:
        """How many candidate actions its critic chooses among; 1: it has no critic."""
        return 1 if self.model.critic is None else len(self.model.critic.offsets) + 1

    @cached_property
    def discrete(self) -> bool:
        """Whether an action is an integer."""
        return self.model.config.discrete

    @property
    def batch_invariant(self) -> bool:
        """Whether an environment's actions are the same, to the last bit, however many others are acted for."""
        return self.rollout != "window" and isinstance(self._stepper, CompiledStep)

    @property
    def supports_reset(self) -> bool:
        """Whether `reset` can begin episodes in some environments: not where the memory grows, as a cache does."""
        return self.model.trunk.mixer.constant_state or self.rollout == "window"

    def initial_state(
        self,
        batch_size: int,
        target_return: Numbers | None = None,
        *,
        seed: Numbers = 0,
        candidates: int | None = None,
    ) -> PolicyState:
        """The state at the beginning of an episode with this target return.

        `target_return` is one number for all environments or one for each, (B,), in the environment's units; None: the
        policy's own. "auto" is, at every step, the maximum achievable return by the training data; in an array it is
        infinity. Where the policy has a temperature, environment i draws from `seed` + i, or from its own of several,
        (B,); it is not read elsewhere.

        A policy with a critic takes the best of `candidates` actions, 1 or `Policy.candidates`. None: 1 where the
        target return is a number, which is followed exactly as without a critic; all where it is "auto" or not given.

        Raises:
            ValueError: the target return is none of these, not finite, or "auto" and the model holds no estimate of it;
                or a seed is none, or `candidates` is neither.
        """
        batch_size = CHECK.integer("batch_size", batch_size, ENVS)
        wanted = self._targets(target_return, batch_size)
        memory: Memory
        rows = self.runs * batch_size
        if self.rollout == "window":
            memory = Window.empty(rows, self._sizes, self.context_length, self.observation_mean.device)
        else:
            fresh = self._stepper.initial_state(rows)
            memory = Recurrent(fresh) if self.rollout == "recurrent" else Staggered(fresh, None)
        seeds = None if self.temperature is None else CHECK.seeds("seed", seed, batch_size)
        improves = CHECK.improves(candidates, self.candidates, wanted, named=target_return is not None)
        return PolicyState(0, wanted, None, memory, seeds, improves)

    def reset(
        self,
        state: PolicyState,
        indices: Numbers,
        target_return: Numbers | None = None,
        *,
        candidates: int | None = None,
    ) -> PolicyState:
        """The state with new episodes begun in some environments; the others' actions stay what they would have been.

        Args:
            state: of all environments.
            indices: of the environments that begin an episode, (R,): `np.flatnonzero(ended)`, not the mask itself.
            target_return: of their new episodes, one number, "auto" or (R,), as in `initial_state`.
            candidates: of their new episodes, as in `initial_state`.

        Raises:
            ValueError: as `initial_state`; an index is none of the state's; or the policy cannot (`supports_reset`).
        """
        if not self.supports_reset:
            raise ValueError("the memory of this rollout mode grows with the episode: begin a batch by initial_state")
        state = self._checked(state)
        batch = len(state.return_to_go)
        index = CHECK.rows("indices", indices, batch)
        to_go, times = state.return_to_go.copy(), np.full(batch, state.timestep, np.int64)
        to_go[index], times[index] = self._targets(target_return, len(index)), 0
        previous, memory, seeds, improves = state.previous_action, state.memory, state.seeds, state.improves
        begun = CHECK.improves(candidates, self.candidates, to_go[index], named=target_return is not None)
        if improves is not None:
            improves = improves.copy()
            improves[index] = begun
        if previous is None:
            none = np.zeros((batch, self._sizes[1]), np.float32)
            previous = np.full(batch, self.action_start, np.int64) if self.discrete else none
        if seeds is not None:
            seeds = seeds.copy()
            seeds[index] = next_seeds(seeds[index])
        if isinstance(memory, Staggered) and memory.younger is None:
            memory = Staggered(memory.older, memory.older)
        return PolicyState(times, to_go, previous, memory, seeds, improves)

    def act(self, observation: Numbers, reward: Numbers, state: PolicyState) -> tuple[npt.NDArray[Any], PolicyState]:
        """The next action of every environment.

        Args:
            observation: (B, O), raw; or as the environment gives them, see `flatten`.
            reward: (B,), of the step before; 0 at the first.
            state: from `initial_state` or the last `act`.

        Returns:
            Actions, float32 (B, A) in the environment's units or int64 (B,), and the new state.

        Raises:
            ValueError: a shape is not the policy's and the state's, or the state is of another rollout mode.
            NonFiniteActionError: the action is NaN or infinite; the message names the argument that is, if one is.
        """
        _, after = self._advance(observation, reward, state)
        action: Any = after.previous_action
        # A copy: the caller may write to it.
        return action.copy(), after

    def logits(
        self, observation: Numbers, reward: Numbers, state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        """The logits (B, n) of discrete actions in place of a choice; all else as `act`.

        Raises:
            ValueError: as `act`, or the actions are continuous.
        """
        if not self.discrete:
            raise ValueError("logits: are of discrete actions, and this policy's are continuous")
        return self._advance(observation, reward, state)

    def _advance(
        self, observation: Numbers, reward: Numbers, state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        # The model's actions or logits, and the new state, with the actions to take.
        state = self._checked(state)
        batch = len(state.return_to_go)
        if self.flatten is not None:
            observation = self.flatten(observation, self.observation_dtype)
        given: dict[str, Any] = {
            "observation": CHECK.array("observation", observation, self.observation_dtype, (batch, self._sizes[0])),
            "reward": CHECK.array("reward", reward, np.float64, (batch,)),
            "previous_action": state.previous_action,
        }
        observed, rewards, previous = given.values()
        if self.origin is not None:
            observed = (observed - self.origin).astype(np.float32)
        if not np.isfinite(rewards).all():  # infinity minus infinity is NaN, and infinity is the automatic target
            raise NonFiniteActionError(blame(given, state.return_to_go, state.timestep))
        asked = return_to_go = state.return_to_go - rewards
        if self._max_return_estimate is not None and math.isinf(np.add.reduce(return_to_go)):
            asked = np.where(
                np.isposinf(return_to_go), self._estimate(self._max_return_estimate, observed), return_to_go
            )
        discrete, time, seeds, improves = self.discrete, state.timestep, state.seeds, state.improves
        if discrete and previous is not None:
            previous = one_hot(previous, self.action_start, self._sizes[1])
        out, memory = self._act(Step(observed, asked, time, previous), state.memory)
        if not np.isfinite(out).all():
            raise NonFiniteActionError(blame(given, state.return_to_go, time, out))
        action = choose(out, self.action_start, self.temperature, seeds, time) if discrete else out
        if self._choice is not None and improves is not None and improves.any():
            action = self._choice(observed, out, improves)
        return out, PolicyState(time + 1, return_to_go, action, memory, seeds, improves)

    def select(self, state: PolicyState, rows: npt.ArrayLike) -> PolicyState:
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        timestep, to_go, previous, memory, seeds, improves = self._checked(state)
        index = CHECK.rows("rows", rows, len(to_go))
        places = torch.from_numpy(np.concatenate([index + run * len(to_go) for run in range(self.runs)]))
        return PolicyState(
            timestep[index] if isinstance(timestep, np.ndarray) else timestep,
            to_go[index],
            None if previous is None else previous[index],
            each(lambda parts: parts[0][places.to(parts[0].device)], [memory]),
            None if seeds is None else seeds[index],
            None if improves is None else improves[index],
        )

    def _checked(self, state: Any) -> PolicyState:  # noqa: ANN401  what a caller hands back, parts perhaps replaced
        if not isinstance(state, PolicyState):
            raise ValueError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
        timestep, to_go, previous, memory, seeds, improves = state
        if not isinstance(memory, MEMORIES[self.rollout]):
            other = type(memory).__name__.lower()
            raise ValueError(f"state: is of the rollout mode {other}, and this policy's is {self.rollout}")
        batch = batch_size(memory) // self.runs
        if previous is not None:
            if self.discrete:
                previous = CHECK.choices("previous_action", previous, batch, self.action_start, self._sizes[1])
            else:
                previous = CHECK.array("previous_action", previous, np.float32, (batch, self._sizes[1]))
        elif not (isinstance(timestep, int) and timestep == 0):
            raise ValueError("previous_action: is None after the first step")
        to_go = CHECK.array("state: return_to_go", to_go, np.float64, (batch,))
        if seeds is not None or self.temperature is not None:
            seeds = CHECK.seeds("state: seeds", seeds, batch)
        if self.model.critic is not None:
            improves = CHECK.array("state: improves", improves, np.bool_, (batch,))
        return PolicyState(CHECK.timestep(timestep, batch), to_go, previous, memory, seeds, improves)

    def _targets(self, target_return: Numbers | None, count: int) -> npt.NDArray[np.float64]:
        wanted = self.target_return if target_return is None else target_return
        return CHECK.targets(wanted, count, self.return_scale, infinite=self._max_return_estimate is not None)

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.model.config.observation_dim, self.model.config.action_dim

    @torch.no_grad()
    def _estimate(self, estimate: ReturnEstimate, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        scaling = self._scaling
        seen = torch.tensor(observation, device=scaling.observation_mean.device)
        scaled: Tensor = estimate((seen - scaling.observation_mean) / scaling.observation_std)
        return (scaled * self.return_scale).cpu().numpy()

    def _act(self, step: Step, memory: Memory) -> tuple[npt.NDArray[np.float32], Memory]:
        if isinstance(memory, Window):
            return act_on_window(step, memory, self.model, self._scaling)
        if isinstance(memory, Staggered):
            return act_staggered(step, memory, self._stepper, self.context_length // 2, self.observation_mean.device)
        action, state = self._stepper.step(step, memory.state, step.begins())
        return action, Recurrent(state)


def _exact(estimate: ReturnEstimate | None) -> ReturnEstimate | None:
    # In float64 sums, rounded, do not depend on how many environments there are.
    return None if estimate is None else copy.deepcopy(estimate).double()
