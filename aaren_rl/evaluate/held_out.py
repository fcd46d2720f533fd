"""Held-out action MSE: how well a policy imitates held-out episodes, step by step (teacher-forced).

For discrete actions: the negative log-likelihood and the accuracy.

Scores of two training seeds may differ by 30 points while these errors differ by a percent, so use them to judge a
recipe.

Shape suffixes: E episodes, B of them at once, T steps of an episode, N steps of all, O observation, A action.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from scipy.special import log_softmax

from ..agents.policy.base import BasePolicy
from ..base.errors import DataError, UsageError, one_line
from ..base.files import read_small
from ..cli import progress_bar
from ..envs import load_task
from ..envs.data.episodes import Episodes, draw_weights, held_out
from ..envs.load import OF_THE_TABLE
from ..envs.local.behavior import action_noise_variance
from ..policies.card import PolicyCard
from .scores import ActionError

# Settings of a run that `load_task` takes.
READING = (
    *("env_id", "env_kwargs", "clip_actions", "max_episode_steps"),
    *("local_steps", "actions", "columns", "observation_keys"),
)

AT_ONCE = 64  # episodes per batch: more save no time per step
SAME_MEAN = 1e-6  # relative difference of the same mean return on another processor


@dataclass(frozen=True)
class HeldOut:
    """Episodes that a policy is not trained on."""

    episodes: Episodes
    floor: float | None = None  # the mean noise variance of the behavior policy in their states, if known
    weights: npt.NDArray[np.float64] | None = None  # (E,), of their errors; None: all the same


def hold_out(
    episodes: Episodes, share: float, seed: int, draws: str = "uniform", draw_share: float = 1.0
) -> HeldOut | None:
    """The episodes that `envs.data.episodes.held_out` chooses, with their noise variance if known; None: too few.

    The drawn distribution is the dataset: each has the weight with which it would be drawn. If all of those weights are
    0, the best of the held-out episodes count.
    """
    chosen = held_out(len(episodes), share, seed)
    if not chosen.size:
        return None
    weights = draw_weights(episodes.returns, episodes.lengths, draws, draw_share)[chosen]
    if not weights.any():
        weights = draw_weights(episodes.returns[chosen], episodes.lengths[chosen], "best", draw_share)
    try:
        variance = action_noise_variance(episodes)
    except DataError:  # data options modified the local dataset, so steps no longer match its stored noise variance
        variance = None
    floor = None
    if variance is not None:
        of_steps = np.repeat(weights, episodes.lengths[chosen])
        floor = float(np.average(variance[episodes.rows(chosen)], weights=of_steps))
    return HeldOut(episodes.take(chosen), floor, weights)


def held_out_episodes(run: Path, card: PolicyCard) -> HeldOut | None:
    """The held-out episodes of a run, read again from its dataset; None if it has none.

    `run` is a run folder or a policy folder in it, `card` is of a policy of the run.

    Raises:
        UsageError: there is no run, or its configuration cannot be read.
        DataError: the data cannot be read, or their mean return differs from that of the training data.
    """
    if not card.held_out:
        return None
    return hold_out(all_episodes(run, card), card.held_out, card.seed, card.draws, card.draw_share)


def all_episodes(run: Path, card: PolicyCard) -> Episodes:
    """The dataset of a run, as it was in training. Arguments and errors are those of `held_out_episodes`."""
    file = next((file for folder in (run, run.resolve().parent) if (file := folder / "config.yaml").is_file()), None)
    if file is None:
        raise UsageError(f"{run} is not in a run folder")
    try:
        data = yaml.safe_load(read_small(file))["data"]
        source = card.same_source(data["source"])
        try:
            episodes = load_task(data["env"], source, **{name: data[name] for name in READING if name in data})[1]
        except DataError as error:
            raise DataError(f"{error}{if_moved(source)}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file} is not the configuration of a run ({one_line(error)})") from error
    now, then = float(episodes.returns.mean()), card.data_returns.get("mean")
    if then is not None and not math.isclose(now, then, rel_tol=SAME_MEAN):
        raise DataError(
            f"{run}: {episodes.dataset} differs from the training data (mean return {now:.7g}, then {then:.7g}); train "
            "the run again"
        )
    return episodes


def if_moved(source: object) -> str:
    """What ends the message of data that cannot be read where a run says; nothing if they are there."""
    gone = isinstance(source, str) and source not in OF_THE_TABLE and not Path(source).exists()
    return "; where they have moved, train --resume --source NEW tells the run" if gone else ""


def action_error(
    policy: BasePolicy, held_out: HeldOut, action_low: npt.ArrayLike = -1.0, action_high: npt.ArrayLike = 1.0
) -> ActionError:
    """Run `policy.act` over every episode from its first step, in the rollout mode of the policy.

    The target is the return of the episode. The policy gets its observations, rewards and executed actions, not its own
    actions. The bounds are those of the environment, (A,) or one for all; discrete actions have none.

    Raises:
        NonFiniteActionError: the policy returns NaN.
    """
    episodes = held_out.episodes
    half = (np.asarray(action_high, dtype=np.float64) - np.asarray(action_low, dtype=np.float64)) / 2
    longest_first = np.argsort(-episodes.lengths, kind="stable")
    sums, correct = np.zeros(len(episodes)), np.zeros(len(episodes), np.int64)
    step = policy.logits if policy.discrete else policy.act
    bar = progress_bar(total=episodes.n_steps, desc="held-out episodes", unit="step", leave=False)
    for at in range(0, len(episodes), AT_ONCE):
        chosen = longest_first[at : at + AT_ONCE]
        first, lengths = episodes.offsets[chosen], episodes.lengths[chosen]
        state = policy.initial_state(len(chosen), episodes.returns[chosen])
        rewards = np.zeros(len(chosen), np.float32)
        for t in range(int(lengths[0])):
            running = int((lengths > t).sum())
            if running < len(rewards):
                state, rewards = policy.select(state, np.arange(running)), rewards[:running]
            rows = first[:running] + t
            predicted, state = step(episodes.observations[rows], rewards, state)
            executed, rewards = episodes.actions[rows], episodes.rewards[rows]
            if policy.discrete:
                taken = executed - policy.action_start
                sums[chosen[:running]] -= log_softmax(predicted.astype(np.float64), 1)[np.arange(running), taken]
                correct[chosen[:running]] += predicted.argmax(1) == taken
            else:
                squares = np.square((predicted.astype(np.float64) - executed) / half)
                sums[chosen[:running]] += squares.mean(1)
            state = state._replace(previous_action=executed)
            bar.update(running)
    bar.close()
    right = correct.tolist() if policy.discrete else None
    weights = None if held_out.weights is None else held_out.weights.tolist()
    return ActionError(sums.tolist(), episodes.lengths.tolist(), held_out.floor, right, weights)
