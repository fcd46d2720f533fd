"""The data of a run: read, scaled, without the held-out episodes, on the training device."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ...base.errors import DataError
from ...base.ranges import RETURN_SCALE
from ...envs import Episodes, Reference, Task, load_task
from ...envs.data.episodes import Statistics, draw_weights, effective, held_out
from ...evaluate.held_out import READING, HeldOut, if_moved, keep_out
from ...policies.names import DRAWN, return_words
from ..config import RunConfig
from .batches import StepData
from .sampling import settle_context

NAMED = 12  # most columns of a note


@dataclass(frozen=True)
class TrainingData:
    """The data of a run, and the configuration that suits them."""

    config: RunConfig  # with the return scale, and the context in place of "auto"
    task: Task
    steps: StepData  # to train on
    held_out: HeldOut | None  # None if there are too few episodes
    returns: dict[str, float]  # as in the policy card; of all episodes
    sha256: str  # of all episodes
    longest: int  # length of the longest of all episodes
    drawn: str  # what is drawn of which episodes, in words


def load_data(
    config: RunConfig, source: str | list[str], device: torch.device, *, memory_map: bool, resumed: bool
) -> TrainingData:
    """Read the data of a run from `source`. They are mapped from the disk with `memory_map`.

    Raises the errors of `envs.load_task` and of `StepData`.
    """
    data, reference = config.data, None
    if data.ref_min_score is not None and data.ref_max_score is not None:
        reference = Reference("reference returns given by the user", data.ref_min_score, data.ref_max_score)
    options = {name: getattr(data, name) for name in READING} | {"memory_map": memory_map}
    try:
        task, episodes = load_task(data.env, source, reference=reference, **options)
    except DataError as error:
        raise DataError(f"{error}{if_moved(source) if resumed else ''}") from error
    if (scale := data.return_scale) is None:
        scale = choose_return_scale(episodes)
        config = replace(config, data=replace(data, return_scale=scale))
        print(f"return scale: {scale:g}, from the returns of the data (--return-scale X sets another)")
    returns, lengths, asked = episodes.returns, episodes.lengths, (data.draws, data.draw_share)
    # By all episodes, so that it does not depend on which the seed holds out: runs of one comparison have the same.
    config = settle_context(config, float(np.average(lengths, weights=draw_weights(returns, lengths, *asked))))
    others = np.setdiff1d(np.arange(len(episodes)), held_out(len(episodes), data.held_out, config.seed))
    kept, weights = draw_weights(returns[others], lengths[others], *asked), np.zeros(len(episodes))
    weights[others] = kept
    actions = {name: getattr(task, name) for name in ("action_low", "action_high", "n_actions", "action_start")}
    steps = StepData(episodes, scale, device, **actions, weights=weights)
    best_first = np.sort(returns)[::-1]
    tenth = best_first[: max(1, round(0.1 * len(episodes)))]
    found = {"mean": best_first.mean(), "best_tenth": tenth.mean(), "best": best_first[0]}
    told = {name: float(value) for name, value in found.items()}
    if episodes.source in ("file", "minari"):  # the task's own target is for other data
        task = replace(task, target_returns=(float(f"{told['best_tenth']:.4g}"),))
    mean, drawn_mean = (return_words(np.average(returns[others], weights=each)) for each in (None, kept))
    drawn = f"{lengths[others].sum():,} steps, {DRAWN[data.draws]}: {effective(kept):.0f} of {len(others)} episodes "
    drawn += f"effective, mean return {drawn_mean} of {mean}"
    apart = keep_out(episodes, data.held_out, config.seed, *asked)
    return TrainingData(config, task, steps, apart, told, episodes.sha256(), int(lengths.max()), drawn)


def choose_return_scale(episodes: Episodes) -> float:
    """The return scale for data of your own, with two digits: what tells episodes apart becomes about 1.

    That is the spread of the returns, 5% to 95%, between a tenth of the size of the returns-to-go and their size. The
    size is their 95% quantile, signs and zeros left out: returns are rare in some data, and a few may be huge.
    """
    sizes = np.abs(episodes.returns_to_go())
    if not (sizes := sizes[(sizes > 0) & np.isfinite(sizes)]).size:
        return 1.0
    size = float(np.quantile(sizes, 0.95))
    low, high = np.quantile(episodes.returns, [0.05, 0.95])
    scale = min(max(float(high - low), size / 10), size)
    return float(f"{min(max(scale, RETURN_SCALE.low), RETURN_SCALE.high):.2g}")


def constant_columns(found: Statistics) -> str | None:
    """A note of the observation columns that are taken as constant, with what they hold; None: no column is."""
    columns = np.flatnonzero(found.constant)
    shown = ", ".join(f"{column} ({found.mean[column]:.9g})" for column in columns[:NAMED])
    more = "" if len(columns) <= NAMED else f" and {len(columns) - NAMED} more"
    whole = "" if found.mean.dtype == np.float64 else "; float32 holds 7 digits: store what moves less as float64"
    return f"observation columns taken as constant: {shown}{more}{whole}" if columns.size else None
