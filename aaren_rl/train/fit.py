"""What is fitted to the whole dataset before the first gradient step: the return estimators and the critic.

Q_j(s, a) of the critic is fitted to the discounted return of the data after (s, a), by regression: no bootstrapping,
and so no estimate of an action that the data do not have (Brandfonbrener et al. 2021, "Offline RL without off-policy
evaluation").

Shape suffixes: N steps, E episodes, O observation, A action.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from scipy.signal import lfilter
from torch import Tensor, nn

from ..agents import DecisionModel, ReturnEstimate, expectile_loss
from ..agents.model.critic import LARGEST_DEVIATION, Critic
from ..agents.model.decision import MAX_EXPECTILE, MEAN_EXPECTILE
from ..base.errors import NumericsError
from ..envs import Episodes
from .config import RunConfig
from .data.batches import StepData
from .data.load import TrainingData

RETURN_UPDATES = 1500  # a few seconds on one core
RETURN_RECIPE = (1280, 3e-3, 1e-4)  # steps per gradient step, peak rate with cosine decay to zero, weight decay
CRITIC_UPDATES = 4500
CRITIC_RECIPE = (512, 1e-3, 1e-3)
PER_UPDATE = 3  # of a critic, at most so many for each gradient step of the policy
GAMMA = 0.997  # with 0.99 a hopper falls 300 steps later, where its critic does not see it
CUT = 250  # last steps of an episode that a time limit ended: their returns lack what would have come
AT_ONCE = 65536  # steps of a held-out measurement


def fit_estimators(model: DecisionModel, ema: DecisionModel, data: TrainingData) -> float | None:
    """Fit the return estimators and the critic of a model, and copy them to its EMA.

    Returns R^2 of the critic on held-out episodes. Raises NumericsError if a loss is not finite.
    """
    seed, updates = data.config.seed, data.config.optimizer.updates
    for name, expectile in (("max_return_estimate", MAX_EXPECTILE), ("mean_return_estimate", MEAN_EXPECTILE)):
        if (estimate := getattr(model, name)) is not None:  # at most as many gradient steps as the policy
            fit_return(estimate, data.steps, expectile, seed, min(RETURN_UPDATES, updates))
            getattr(ema, name).load_state_dict(estimate.state_dict())
    if model.critic is None or ema.critic is None:
        return None
    held_out = None if data.held_out is None else data.held_out.episodes
    count = min(CRITIC_UPDATES, PER_UPDATE * updates)
    fit = fit_critic(model.critic, data.steps, data.steps.episodes, held_out, seed=seed, updates=count)
    ema.critic.load_state_dict(model.critic.state_dict())
    return fit


def notes_on_fewer_steps(config: RunConfig) -> list[str]:
    """Notes on what a run of so few updates has fitted in fewer steps than a longer one would have."""
    fitted, network = config.optimizer.updates, config.model(1, 1, 1)
    notes = []
    if fitted < RETURN_UPDATES and (network.max_return_estimate or network.mean_return_estimate):
        notes.append(
            f"note: the return estimates of this run, for auto and --guidance, were fitted for at most {fitted} "
            f"steps, not {RETURN_UPDATES:,}; a new run of so many updates fits them better"
        )
    if network.critic and PER_UPDATE * fitted < CRITIC_UPDATES:
        notes.append(
            f"note: the critic of this run was fitted for {PER_UPDATE * fitted:,} steps, not {CRITIC_UPDATES:,}; "
            f"a new run of {CRITIC_UPDATES // PER_UPDATE:,} updates fits it better"
        )
    return notes


def fit_return(
    model: ReturnEstimate, data: StepData, expectile: float, seed: int, updates: int = RETURN_UPDATES
) -> None:
    """Fit an estimator of an expectile of the returns-to-go, such as MAX_EXPECTILE, to a whole dataset.

    Raises NumericsError if the final loss is not finite.
    """

    def loss(rows: Tensor) -> Tensor:
        return expectile_loss(model(data.observed(rows)), data.returns_to_go[rows], expectile)

    if not math.isfinite(_regress(model, loss, len(data), RETURN_RECIPE, data.device, seed, updates)):
        raise NumericsError(
            "returns-to-go of the dataset are too large for the return estimators: raise --return-scale, or turn "
            "them off with --no-max-return-estimate --no-mean-return-estimate"
        )


def fit_critic(
    critic: Critic,
    data: StepData,
    episodes: Episodes,
    held_out: Episodes | None,
    *,
    seed: int,
    updates: int = CRITIC_UPDATES,
) -> float | None:
    """Fit a critic, drawn by the seed, to the discounted returns of episodes, standardized to mean 0 and deviation 1.

    `data` has the steps of `episodes`. The last `CUT` steps of episodes that a time limit ended are left out; if no
    other is left they count, which is printed. Returns R^2 of the mean of the networks on the episodes `held_out`; None
    without them, or if their returns are all equal. Raises NumericsError if the final loss is not finite.
    """
    returns, rows = discounted_returns(episodes, GAMMA), whole_steps(episodes)
    if not rows.size:
        print(f"critic: a time limit ended all episodes within {CUT} steps; it is fitted to the returns until then")
        rows = np.arange(len(returns))
    mean, std = float(returns[rows].mean()), float(returns[rows].std()) or 1.0
    target = torch.tensor((returns - mean) / std, dtype=torch.float32, device=data.device)
    steps = torch.from_numpy(rows).to(data.device)

    def loss(drawn: Tensor) -> Tensor:
        chosen = steps[drawn]
        errors: Tensor = critic(data.observed(chosen), data.scaled_actions(chosen)) - target[chosen]
        return errors.square().mean()

    critic.draw(seed)
    if not math.isfinite(_regress(critic, loss, len(steps), CRITIC_RECIPE, data.device, seed, updates)):
        raise NumericsError("the loss of the critic is not finite: turn it off with --no-critic")
    return None if held_out is None else _r_squared(critic, data, held_out, mean, std)


def _regress(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    n_rows: int,
    recipe: tuple[int, float, float],
    device: torch.device,
    seed: int,
    updates: int,
) -> float:
    """Minimize the loss of random rows with AdamW. Returns the last loss."""
    count, rate, decay = recipe
    generator = torch.Generator(device).manual_seed(seed)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        loss = loss_of(torch.randint(n_rows, (count,), generator=generator, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(False)
    return loss.item()


def discounted_returns(episodes: Episodes, gamma: float) -> npt.NDArray[np.float64]:
    """The discounted return of every step within its own episode, (N,), in the environment's units."""
    parts = np.split(episodes.rewards.astype(np.float64), episodes.offsets[1:-1])
    return np.concatenate([lfilter([1.0], [1.0, -gamma], part[::-1])[::-1] for part in parts])


def whole_steps(episodes: Episodes) -> npt.NDArray[np.int64]:
    """The steps whose discounted return the data have: all but the last `CUT` of episodes that a time limit ended."""
    left = np.repeat(episodes.lengths, episodes.lengths) - episodes.timesteps()
    return np.flatnonzero(np.repeat(episodes.terminated, episodes.lengths) | (left > CUT))


@torch.no_grad()
def _r_squared(critic: Critic, data: StepData, held_out: Episodes, mean: float, std: float) -> float | None:
    returns, rows = discounted_returns(held_out, GAMMA), whole_steps(held_out)
    rows = rows if rows.size else np.arange(len(returns))
    target, predicted = (returns[rows] - mean) / std, []
    for chosen in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        observed = torch.from_numpy(data.from_origin(held_out.observations[chosen])).to(data.device)
        acted = data.scaling.unit_actions(torch.from_numpy(held_out.actions[chosen]).to(data.device))
        values = critic(data.scaling.normalized(observed), acted)
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
