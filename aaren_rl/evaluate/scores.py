"""Scores, with everything needed to reproduce them, and as text: tables of one policy and of several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cli import aligned
from ..envs.data.draws import effective
from ..envs.tasks.table import Reference, is_d4rl_scale, normalized_score
from ..policies.card import SOURCES, Origin, draws_words, return_words, target_words, weights_words

MEASURES = ("action MSE", "negative log-likelihood")  # for continuous actions, and for discrete ones


@dataclass(frozen=True)
class ActionError:
    """Action errors of held-out episodes: squared, in units in which actions span [-1, 1].

    For discrete actions, the negative log-likelihood in nats, and the accuracy.
    """

    sums: list[float]  # (E,), per episode, sum over steps of the mean over action dimensions
    lengths: list[int]  # (E,), steps
    floor: float | None = None  # the mean noise variance of the behavior policy on these steps, where it is known
    correct: list[int] | None = None  # (E,), for discrete actions: steps with the most likely action in the data
    weights: list[float] | None = None  # (E,), with which the episodes would be drawn in training; None: all the same
    without_looking: dict[str, float] = field(default_factory=dict)  # what trivial rules get: `play.without_looking`

    @property
    def measure(self) -> str:
        return MEASURES[self.correct is not None]

    @property
    def mean(self) -> float:
        """Weighted mean over all steps."""
        return self._mean(self.sums)

    def _mean(self, sums: Sequence[float]) -> float:
        weights = self.weights or [1.0] * len(sums)
        return float(np.dot(weights, sums) / np.dot(weights, self.lengths))

    @property
    def accuracy(self) -> float | None:
        """The fraction of steps with the most likely action in the data; None for continuous actions."""
        return None if self.correct is None else self._mean(self.correct)

    @property
    def above_floor(self) -> float | None:
        """The excess MSE: the error minus the noise variance; None if that is unknown."""
        return None if self.floor is None else self.mean - self.floor

    def episodes(self) -> npt.NDArray[np.float64]:
        """Weighted sums and numbers of steps, (E, 2), of the episodes that have a weight."""
        weights = np.array(self.weights or [1.0] * len(self.sums))[:, None]
        found: npt.NDArray[np.float64] = (weights * np.stack([self.sums, self.lengths], 1))[weights[:, 0] > 0]
        return found

    def interval(self) -> tuple[float, float]:
        """A 95% bootstrap interval of the mean, over episodes."""
        episodes = self.episodes()
        return bootstrap(lambda drawn: episodes_mean(episodes[drawn]), [np.arange(len(episodes))])

    def scalars(self) -> dict[str, float]:
        """Tag -> value, as in metrics.jsonl; the same tags for every agent."""
        if self.accuracy is not None:
            return {"val/nll": self.mean, "val/accuracy": self.accuracy}
        excess = {} if self.above_floor is None else {"val/excess_mse": self.above_floor}
        return {"val/action_mse": self.mean, **excess}

    def on_card(self) -> dict[str, Any]:
        """Fields of the policy card, name -> value."""
        if self.accuracy is not None:
            return {"action_nll": self.mean, "action_accuracy": self.accuracy}
        return {"action_error": self.mean, "action_error_floor": self.floor}

    def short(self) -> str:
        """The measure, its mean, and the excess MSE or the accuracy."""
        own = "" if self.above_floor is None else f" (excess MSE {self.above_floor:.4f})"
        return f"{self.measure} {self.mean:.4f}" + (own if self.accuracy is None else f", accuracy {self.accuracy:.3f}")

    def __str__(self) -> str:
        low, high = self.interval()
        own = "" if self.above_floor is None else f"; excess MSE {self.above_floor:.4f}"
        own += "" if self.accuracy is None else f"; accuracy {self.accuracy:.3f}"
        rules = ", ".join(f"{name} {value:.4f}" for name, value in self.without_looking.items())
        measured = "rules" if self.accuracy is None else "accuracy of rules"
        own += f"; {measured} without observations: {rules}" if rules else ""
        of = f"{len(self.sums)} episodes, {sum(self.lengths):,} steps"
        if self.weights and min(self.weights) < max(self.weights):
            of += f", weighted as they would be drawn ({effective(np.array(self.weights)):.0f} episodes effective)"
        return f"{self.mean:.4f} [{low:.4f}, {high:.4f}] over {of}{own}"


@dataclass(frozen=True, kw_only=True)
class Score(Origin):
    """The result of one evaluation, with everything needed to reproduce it. `Origin` describes the policy.

    Returns are in units of the environment. Normalized scores are 100 (R - random) / (expert - random), or None without
    reference returns. Standard deviations are over episodes.
    """

    training_seed: int
    episodes: int
    seed: int  # of the first episode
    return_mean: float
    return_std: float
    normalized_score_mean: float | None
    normalized_score_std: float | None
    length_mean: float
    actions_per_second: float
    returns: list[float]
    lengths: list[int]  # steps of every episode
    attention: str = "softmax"  # for tree attention: how it was computed
    action_error: ActionError | None = None  # on held-out episodes, if measured
    data_returns: dict[str, float] = field(default_factory=dict)
    temperature: float | None = None  # for sampling discrete actions; None: no sampling

    def interval(self) -> tuple[float, float]:
        """A 95% bootstrap interval of the mean return, over episodes. For one episode, its return twice."""
        return bootstrap(lambda drawn: drawn.mean(-1), [np.array(self.returns)])

    def normalized(self, value: float) -> float | None:
        """A return as a normalized score; None without reference returns."""
        if self.reference is None or self.reference_returns is None:
            return None
        return float(normalized_score(Reference(self.reference, *self.reference_returns), value))

    def acting(self) -> str:
        """The rollout mode with its options."""
        parts = [describe_rollout(self.rollout, self.rollout_context)]
        parts += [] if self.attention == "softmax" else [self.attention]
        return ", ".join([*parts, *([] if self.temperature is None else [f"temperature {self.temperature:g}"])])

    def data(self) -> str | None:
        """The dataset returns for comparison, as a line; None if unknown."""
        known = [key for key in ("mean", "best_tenth") if key in self.data_returns]
        own = [f"{key.replace('_', ' ')} {self._shown(key)}" for key in known]
        parts = [f"data: {', '.join(own)}"] if own else []
        if "mode" in self.data_returns:
            parts.append(f"deterministic behavior policy {self._shown('mode')}")
        return "; ".join(parts) or None

    def data_headlines(self) -> dict[str, float]:
        """The dataset returns in units of `headline`; empty if unknown."""
        scores = {key: self.normalized(value) for key, value in self.data_returns.items()}
        return {key: self.data_returns[key] if score is None else score for key, score in scores.items()}

    def _shown(self, key: str) -> str:
        value = self.data_returns[key]
        score, shown = self.normalized(value), f"{value:.0f}" if 100 <= abs(value) < 1e9 else return_words(value)
        return shown if score is None else f"{shown} ({score:.1f})"

    @property
    def headline(self) -> float:
        """The number for comparing policies of a task: the normalized score if known, else the return."""
        return self.return_mean if self.normalized_score_mean is None else self.normalized_score_mean

    @property
    def headline_words(self) -> str:
        score = self.normalized_score_mean
        return return_words(self.return_mean) if score is None else score_words(score)

    def scalars(self) -> dict[str, float]:
        """Tag -> value, as in metrics.jsonl; the same tags for every agent."""
        score = self.normalized_score_mean
        return {
            **({} if score is None else {"eval/normalized_score": score}),
            "eval/mean_return": self.return_mean,
            "eval/std_return": self.return_std,
            "eval/mean_ep_length": self.length_mean,
            "time/actions_per_second": self.actions_per_second,
            **({} if self.action_error is None else self.action_error.scalars()),
        }


@dataclass(frozen=True)
class Unplayed:
    """The result of an evaluation where there is no environment to play: an action error, if it was measured."""

    updates: int
    action_error: ActionError | None = None

    @property
    def headline(self) -> float:
        """What is compared, higher is better: the error's negative; later weights where none was measured."""
        return float(self.updates) if self.action_error is None else -self.action_error.mean

    @property
    def headline_words(self) -> str:
        return "-" if self.action_error is None else f"{self.action_error.mean:.4f}"

    def scalars(self) -> dict[str, float]:
        """Tag -> value, as in metrics.jsonl."""
        return {"eval/episodes": 0.0, **({} if self.action_error is None else self.action_error.scalars())}


@dataclass(frozen=True)
class Estimate:
    """A number and its 95% bootstrap interval (low, high); None where there are too few numbers for one."""

    value: float
    interval: tuple[float, float] | None


def bootstrap(
    statistic: Callable[..., Any], samples: Sequence[npt.NDArray[Any]], resamples: int = 2000
) -> tuple[float, float]:
    """A 95% interval of a statistic by the percentile bootstrap. Each sample, (N,), is resampled on its own.

    `statistic` takes the samples, (..., N) each, and returns (...). The same samples give the same interval.
    """
    from scipy import stats  # a second

    # A sample of one, which is always drawn, would be refused.
    several = [sample if len(sample) > 1 else np.repeat(sample, 2) for sample in samples]
    # At most 8 MB of each sample at once.
    batch = max(1, 2**20 // max(map(len, several)))
    how: dict[str, Any] = {"method": "percentile", "vectorized": True, "batch": batch, "n_resamples": resamples}

    def of_samples(*drawn: npt.NDArray[Any], axis: int) -> Any:  # noqa: ANN401  SciPy's
        return statistic(*(part[..., : len(sample)] for part, sample in zip(drawn, samples, strict=True)))

    found = stats.bootstrap(several, of_samples, rng=np.random.default_rng(0), **how).confidence_interval
    return float(found.low), float(found.high)


def episodes_mean(episodes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean over all steps of episodes, sums and numbers of steps (..., E, 2): (...)."""
    return np.asarray(episodes[..., 0].sum(axis=-1) / episodes[..., 1].sum(axis=-1))


def describe_rollout(mode: str, context: int) -> str:
    """A rollout mode, with K if it has one."""
    return mode if mode == "recurrent" else f"{mode}, K = {context}"


def score_words(value: float | None) -> str:
    """A normalized score as text; "-" without one."""
    return "-" if value is None else f"{value:.1f}"


def format_table(scores: Sequence[Score], *, speed: bool = True) -> str:
    """The scores of one policy as a table, below a line about the evaluation. `speed`: with actions per second."""
    first = scores[0]
    drawn = draws_words(first.draws, first.draw_share)
    made = (
        f"{first.updates} gradient steps on {first.context} contexts, episodes {drawn}, "
        f"training seed {first.training_seed}"
    )
    lines = [
        f"{first.env}, {first.agent}: {'weights' if first.source == 'imported' else made}, "
        f"{weights_words(first.weights)}",
        f"data: {first.dataset} from {SOURCES.get(first.source, first.source)}; rollout {first.acting()}; "
        f"{first.env_id}, {first.episodes} episodes from seed {first.seed}",
        "",
        f"{'target':>8} {'return':>8} {'+-':>7} {'score':>7} {'+-':>6} {'length':>7}" + speed * f" {'actions/s':>10}",
    ]
    for s in scores:
        returns = f"{target_words(s.target_return):>8} {return_words(s.return_mean):>8} {return_words(s.return_std):>7}"
        normalized = f"{score_words(s.normalized_score_mean):>7} {score_words(s.normalized_score_std):>6}"
        lines.append(f"{returns} {normalized} {s.length_mean:>7.1f}" + speed * f" {s.actions_per_second:>10.0f}")
    legend = "no score: this environment has no reference returns (train takes --ref-min-score, --ref-max-score)"
    if first.reference is not None:
        formula = "100 (return - random) / (expert - random), " if is_d4rl_scale(first.reference) else ""
        legend = f"score: {formula}{first.reference}"
    data = first.data()
    return "\n".join([*lines, "", *([] if data is None else [data]), f"{legend}; +- over episodes"])


def format_overview(scores: Sequence[tuple[str, Score]]) -> str:
    """The scores of several policies by name, with bootstrap intervals of the mean, one line each."""
    rows = [("policy", "target", "return", "95% interval", "score", "95% interval")]
    for name, score in scores:
        low, high = score.interval()
        ends = [score_words(score.normalized(end)) for end in (low, high)]
        returns = return_words(score.return_mean), f"[{return_words(low)}, {return_words(high)}]"
        normalized = score_words(score.normalized_score_mean), "-" if "-" in ends else f"[{', '.join(ends)}]"
        rows.append((name, target_words(score.target_return), *returns, *normalized))
    legend = "intervals: bootstrap over episodes; they do not cover other training seeds"
    return "\n".join([*aligned(rows), "", legend])


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], escape: Callable[[str], str] = str) -> str:
    """A table in Markdown whose columns are aligned, as a terminal shows it; `escape` is applied to every cell."""
    cells = [[escape(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def number(value: float | None, digits: int | None = 1) -> str:
    """A number with thousands set apart, or a return where `digits` is None; "-" for no number."""
    if value is None:
        return "-"
    if digits is None and abs(value) < 1000:
        return return_words(value)
    return f"{value:,.{1 if digits is None else digits}f}"


def interval(estimate: Estimate | None, digits: int | None = 1) -> str:
    """Value [low, high]; the value alone where there is no interval."""
    value = number(None if estimate is None else estimate.value, digits)
    if estimate is None or estimate.interval is None:
        return value
    return f"{value} [{', '.join(number(end, digits) for end in estimate.interval)}]"


def memory(count: float) -> str:
    """Bytes, in kB (1,000) from there on."""
    return f"{count:,.0f} bytes" if count < 1000 else f"{count / 1000:,.1f} kB"
