"""Guidance: a policy that acts on what asking for a return changes, more than it changes.

A policy trained on the data of one behaviour does nearly the same whatever is asked for. Here the model runs twice at
every step, once asked for the return that is wanted and once for the one to expect (`ReturnEstimate`), and acts on

    a = a_expected + W (a_asked - a_expected),

within the environment's limits: classifier-free guidance (Ho & Salimans 2022), but away from the ordinary instead of
from a model that sees no return. Both runs see the action that was taken, and their states are one batch.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .model.return_estimate import ReturnEstimate
from .policy import Policy, _exact
from .policy_state import CHECK, PolicyState
from .ranges import ENVS

if TYPE_CHECKING:
    import numpy.typing as npt

    from .policy import Numbers


def with_guidance(policy: Policy, guidance: float) -> Policy:
    """A copy of the policy that acts with guidance W; at 1 the policy as it is.

    Raises:
        ValueError: the guidance is not finite or below 1, or the model holds no estimate of the return to expect.
    """
    if not (math.isfinite(guidance) and guidance >= 1):
        raise ValueError(f"guidance must be a number from 1, not {guidance}")
    if guidance == 1:
        return policy
    own = {part.name: getattr(policy, part.name) for part in fields(Policy) if part.init}
    return GuidedPolicy(**own, guidance=float(guidance))


@dataclass(frozen=True)
class GuidedPolicy(Policy):
    """A policy with guidance, which acts in B environments as `Policy` does.

    Its states hold 2 B rows: of the environments, and then of the runs that ask for what is to expect, whose
    `return_to_go` is not read. A `previous_action` that replaces the state's may be (B, A).

    Attributes:
        guidance: W.
    """

    guidance: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError as `Policy`, or if the model holds no estimate of the return to expect."""
        super().__post_init__()
        if self._typical_return is None:
            raise ValueError("this policy holds no estimate of the return to expect, which guidance goes away from")

    @cached_property
    def _typical_return(self) -> ReturnEstimate | None:
        return _exact(self.model.typical_return)

    def initial_state(self, batch_size: int, target_return: Numbers | None = None) -> PolicyState:
        wanted = self._targets(target_return, CHECK.integer("batch_size", batch_size, ENVS))
        return super().initial_state(2 * batch_size, np.concatenate([wanted, np.zeros(batch_size)]))

    def restart(self, state: PolicyState, rows: Numbers, target_return: Numbers | None = None) -> PolicyState:
        index, batch = self._rows(state, rows)
        return super().restart(super().restart(state, index, target_return), index + batch, 0.0)

    def act(
        self, observation: Numbers, reward: Numbers, state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        state = self._checked(state)
        batch = len(state.return_to_go) // 2
        observation = CHECK.array("observation", observation, np.float32, (batch, self._sizes[0]))
        reward = CHECK.array("reward", reward, np.float64, (batch,))
        both, after = super().act(np.tile(observation, (2, 1)), np.tile(reward, 2), state)
        asked, expected = np.split(both, 2)
        middle, half = (x.cpu().numpy() for x in (self._scaling.action_middle, self._scaling.action_half))
        action = np.clip(expected + np.float32(self.guidance) * (asked - expected), middle - half, middle + half)
        return action, after._replace(previous_action=np.tile(action, (2, 1)))

    def select(self, state: PolicyState, rows: Numbers) -> PolicyState:
        index, batch = self._rows(state, rows)
        return super().select(state, np.concatenate([index, index + batch]))

    def _asked(
        self, return_to_go: npt.NDArray[np.float64], observation: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """The first half asks for what is wanted, the second for what is to expect."""
        assert self._typical_return is not None
        batch = len(return_to_go) // 2
        wanted = super()._asked(return_to_go[:batch], observation[:batch])
        return np.concatenate([wanted, self._estimate(self._typical_return, observation[batch:])])

    def _rows(self, state: PolicyState, rows: Numbers) -> tuple[npt.NDArray[np.int64], int]:
        """Indices of environments, (R,), and B."""
        batch = len(self._checked(state).return_to_go) // 2
        return CHECK.rows(rows, batch), batch

    def _checked(self, state: PolicyState) -> PolicyState:
        """The state, checked, with previous actions of both halves, where a caller replaced them by (B, A)."""
        previous = getattr(state, "previous_action", None)
        if previous is not None and len(previous) * 2 == len(state.return_to_go):
            state = state._replace(previous_action=np.tile(np.asarray(previous), (2, 1)))
        return super()._checked(state)
