"""Tables and numbers as text: the scores of one policy and of several, and what reports are made of."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base.files import write_text
from ..cli import aligned
from ..envs.tasks.table import is_d4rl_scale
from ..policies.names import SOURCES, draws_words, return_words, target_words, weights_words
from .scores import Estimate, Score, score_words


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


def write_episodes(file: Path, scores: Sequence[tuple[str, Score]]) -> None:
    """Write a CSV file with one row per episode, for the policies of `format_overview`; whole or not at all."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    names = "policy", "env_id", "target_return", "seed", "return", "length", "normalized_score"
    table.writerow(names)
    for name, score in scores:
        for i, (value, length) in enumerate(zip(score.returns, score.lengths, strict=True)):
            target, normalized = target_words(score.target_return, ".17g"), score.normalized(value)
            row = name, score.env_id, target, score.seed + i, repr(value), length
            table.writerow((*row, "" if normalized is None else repr(normalized)))
    write_text(file, text.getvalue())


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
