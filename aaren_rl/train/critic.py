"""Fits a critic to the returns of a dataset, and sets how far its candidates are from the policy's own actions.

Q_j(s, a) is fitted to the discounted return of the data after (s, a), by regression: no bootstrapping, and so no
estimate of an action that the data do not have (Brandfonbrener et al. 2021, "Offline RL without off-policy
evaluation").

Shape suffixes: N steps, E episodes, O observation, A action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from scipy.signal import lfilter
from torch import Tensor

from ..agents.model.critic import LARGEST_DEVIATION, Critic
from ..base.errors import NumericsError

if TYPE_CHECKING:
    from ..envs import Episodes
    from .data.batches import StepData

GAMMA = 0.997  # with 0.99 a hopper falls 300 steps later, where its critic does not see it
CUT = 250  # last steps of an episode that a time limit ended: their returns lack what would have come
FIT_UPDATES = 4500
PER_UPDATE = 3  # at most so many for each gradient step of the policy
FIT_STEPS = 512  # per gradient step
FIT_RATE = 1e-3  # peak; cosine decay to zero
FIT_DECAY = 1e-3
AT_ONCE = 65536  # steps of a held-out measurement


def fit_critic(
    critic: Critic,
    data: StepData,
    episodes: Episodes,
    held_out: Episodes | None,
    *,
    seed: int,
    updates: int = FIT_UPDATES,
    gamma: float = GAMMA,
) -> float | None:
    """Fit a critic to the discounted returns of episodes, standardized to mean 0 and deviation 1, with AdamW.

    Args:
        critic: its weights are drawn again, by the seed.
        data: the steps of `episodes`, whose normalization and device it has.
        episodes: what it is fitted to. The last `CUT` steps of episodes that a time limit ended are left out; if
            nothing else is left they count, which is printed.
        held_out: other episodes to measure the fit on; None: it is not measured.
        seed: of the weights and of the batches.
        updates: gradient steps.
        gamma: the discount of a step.

    Returns:
        R^2 of the mean of the networks on the held-out episodes; None without them, or if their returns are all equal.

    Raises:
        NumericsError: the final loss is not finite.
    """
    returns, rows = discounted_returns(episodes, gamma), whole_steps(episodes)
    if not rows.size:
        print(f"critic: a time limit ended all episodes within {CUT} steps; it is fitted to the returns until then")
        rows = np.arange(len(returns))
    mean, std = float(returns[rows].mean()), float(returns[rows].std()) or 1.0
    target = torch.tensor((returns - mean) / std, dtype=torch.float32, device=data.device)
    _fit(critic, data, target, torch.from_numpy(rows).to(data.device), seed, updates)
    return None if held_out is None else _r_squared(critic, data, held_out, mean, std, gamma)


def _fit(critic: Critic, data: StepData, target: Tensor, rows: Tensor, seed: int, updates: int) -> None:
    generator = torch.Generator(data.device).manual_seed(seed)
    critic.draw(seed)
    critic.requires_grad_(True)
    optimizer = torch.optim.AdamW(critic.parameters(), lr=FIT_RATE, weight_decay=FIT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        chosen = rows[torch.randint(len(rows), (FIT_STEPS,), generator=generator, device=data.device)]
        loss = (critic(data.observed(chosen), data.scaled_actions(chosen)) - target[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    critic.requires_grad_(False)
    if not math.isfinite(loss.item()):
        raise NumericsError("the loss of the critic is not finite: turn it off with --no-critic")


def discounted_returns(episodes: Episodes, gamma: float) -> npt.NDArray[np.float64]:
    """The discounted return of every step within its own episode, (N,), in the environment's units."""
    parts = np.split(episodes.rewards.astype(np.float64), episodes.offsets[1:-1])
    return np.concatenate([lfilter([1.0], [1.0, -gamma], part[::-1])[::-1] for part in parts])


def whole_steps(episodes: Episodes) -> npt.NDArray[np.int64]:
    """The steps whose discounted return the data have: all but the last `CUT` of episodes that a time limit ended."""
    left = np.repeat(episodes.lengths, episodes.lengths) - episodes.timesteps()
    return np.flatnonzero(np.repeat(episodes.terminated, episodes.lengths) | (left > CUT))


@torch.no_grad()
def _r_squared(
    critic: Critic, data: StepData, held_out: Episodes, mean: float, std: float, gamma: float
) -> float | None:
    returns, rows = discounted_returns(held_out, gamma), whole_steps(held_out)
    rows = rows if rows.size else np.arange(len(returns))
    target, predicted = (returns[rows] - mean) / std, []
    for chosen in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        observed = torch.from_numpy(data.from_origin(held_out.observations[chosen])).to(data.device)
        acted = data.in_model_units(torch.from_numpy(held_out.actions[chosen]).to(data.device))
        values = critic(data.normalized(observed), acted)
        predicted.append(values.mean(0).double().cpu().numpy())
    spread = np.square(target - target.mean()).sum()
    return None if spread == 0 else float(1 - np.square(np.concatenate(predicted) - target).sum() / spread)


def set_deviation(critics: Iterable[Critic], squared_error: npt.ArrayLike) -> None:
    """Set how far candidates are from a policy's actions by its squared error, (A,) or one for all, in model units.

    The deviation is the root of it, at most `LARGEST_DEVIATION`.
    """
    deviation = np.minimum(np.sqrt(np.asarray(squared_error, np.float64)), LARGEST_DEVIATION)
    for critic in critics:
        critic.deviation.copy_(torch.tensor(deviation, dtype=torch.float32).expand(len(critic.deviation)))
