"""The tables of a comparison's report, and its numbers with their units."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ...envs.tasks.table import is_d4rl_scale
from ...evaluate.scores import MEASURES, Score
from ...policies.names import MARKS, SOURCES, label, return_words, target_words, weights_words
from ..cells import Cell
from ..imitation import imitation, imitation_differences
from ..published import PUBLISHED, published
from ..statistics import (
    Aggregate,
    Estimate,
    Summary,
    aggregate,
    group,
    improvements,
    rows_of,
    summarize,
)

# Columns of text; all others hold numbers, which are aligned by their ends.
TEXTS = {
    *("task", "agent", "seed", "seeds", "data", "run", "runs of", "error of", "setting", "value", "environment"),
    *("training", "rollout", "target return", "evaluation", "trained on", "time per action", "state memory"),
}
NOTHING = "-"
_DIGITS = 4  # of an action MSE


@dataclass(frozen=True)
class Table:
    """A table under a caption: rows of column -> text; `marks`: on whose data a column's scores were made."""

    caption: str
    rows: list[dict[str, str]]
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def heads(self) -> dict[str, str]:
        """Column -> its heading, with its mark."""
        return {name: f"{name} ({self.marks[name]})" if name in self.marks else name for name in self.rows[0]}


def _table(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]], marks: Mapping[str, str] = {}) -> Table:
    return Table(caption, [dict(zip(names, row, strict=True)) for row in rows], marks)


def scores(cells: Sequence[Cell]) -> list[Table]:
    """A table for every task, with published scores, and one over all tasks."""
    summaries, over = summarize(cells), aggregate(cells)
    last = {cell.env: cell.last for cell in cells}
    tables = [_scores(last[env], [s for s in summaries if s.env == env]) for env in group(cells)]
    if over:
        mark = joined(list(dict.fromkeys(MARKS[last[env].source] for env in over[0].envs)))
        names = ("agent", "mean of means [95%]", "IQM of all runs [95%]", "runs")
        rows = [(label(a.agent), interval(a.mean), interval(a.iqm), str(a.runs)) for a in over]
        tables.append(_table(f"All of {joined(over[0].envs)}", names, rows, dict.fromkeys(names[1:3], mark)))
    return tables


def _scores(score: Score, summaries: Sequence[Summary]) -> Table:
    theirs = {s.agent: published_beside(score, s.agent) for s in summaries}
    sources = [source for source in PUBLISHED if any(source in found for found in theirs.values())]
    counts = "/".join(map(str, sorted({count for s in summaries for count in s.mean_of})))
    own = ("mean [95%]", "sd", "IQM [95%]", "best", f"mean of last {counts}")
    rows = []
    for s in summaries:
        digits = digits_of(s)
        means = interval(s.mean, digits), number(s.std, digits), interval(s.iqm, digits)
        numbers = (*means, number(s.best, digits), number(s.mean_of_last, digits))
        beside = (theirs[s.agent].get(source, NOTHING) for source in sources)
        rows.append((label(s.agent), *numbers, listed(s.seeds), *beside))
    by = f"scores normalized by {score.reference}"
    unit = by if summaries[0].normalized else "returns, without a reference for scores"
    marks = dict.fromkeys(own, MARKS[score.source]) | dict.fromkeys(sources, "D4RL")
    return _table(f"{score.env}: {unit}", ("agent", *own, "seeds", *sources), rows, marks)


def published_beside(score: Score, agent: str) -> dict[str, str]:
    """By source. Only beside scores on D4RL's scale: of other references, 0 and 100 stand for something else."""
    if not is_d4rl_scale(score.reference):
        return {}
    return {
        source: f"{found.mean:g}" if found.std is None else f"{found.mean:g} ± {found.std:g}"
        for source, found in published(score.env, agent).items()
    }


def improvement(cells: Sequence[Cell]) -> Table:
    """How probable it is that a run of one agent is better than a run of another."""
    rows = []
    for p in improvements(cells):
        pair = f"{label(p.first)} above {label(p.second)}"
        rows.append((p.env or "all tasks", pair, interval(p.estimate, 2), joined(list(map(str, p.runs)))))
    return _table("Probability of improvement", ("task", "runs of", "P [95%]", "runs"), rows)


def errors(cells: Sequence[Cell]) -> list[Table]:
    """The held-out error of every agent on every task, a table for every measure of it."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for i in imitation(cells):
        error, above = (interval(estimate, _DIGITS) for estimate in (i.error, i.above_floor))
        more = above if i.accuracy is None else number(i.accuracy, 3)
        row = (i.env, label(i.agent), error, more, f"{i.episodes:,}", listed(i.seeds))
        tables.setdefault(i.measure, []).append(row)
    beside = {MEASURES[0]: "excess MSE [95%]", MEASURES[1]: "accuracy"}
    return [
        _table(
            f"{measure[0].upper()}{measure[1:]} on held-out episodes",
            ("task", "agent", f"{measure} [95%]", beside[measure], "episodes", "seeds"),
            rows,
        )
        for measure, rows in tables.items()
    ]


def error_differences(cells: Sequence[Cell]) -> list[Table]:
    """The differences of the held-out error between agents, a table for every measure of it."""
    names = ("task", "error of", "difference [95%]", "pairs", "seeds")
    tables: dict[str, list[tuple[str, ...]]] = {}
    for d in imitation_differences(cells):
        pair = f"{label(d.first)} minus {label(d.second)}"
        row = (str(d.env), pair, interval(d.difference, _DIGITS), f"{d.episodes:,}", listed(d.seeds))
        tables.setdefault(d.measure, []).append(row)
    return [_table(f"Difference of the {measure}, episode by episode", names, rows) for measure, rows in tables.items()]


def cost(cells: Sequence[Cell]) -> Table:
    """Parameters, loss, time of a gradient step, time and memory of an action."""
    title = (
        "Cost (medians over training seeds; loss: of the last gradient steps, on each agent's own training contexts; "
        "an action: the policy alone, one environment)"
    )
    names = ("parameters", "loss", "time per gradient step", "trained on", "time per action", "state memory")
    rows = []
    for env, agent, runs in rows_of(cells):
        parameters = listed(f"{count:,}" for count in sorted({cell.parameters for cell in runs}))
        loss = f"{median(cell.loss for cell in runs):.4f}"
        times = [cell.seconds_per_update for cell in runs if cell.seconds_per_update is not None]
        update = f"{1000 * median(times):,.1f} ms" if times else NOTHING
        action = (text or NOTHING for text in early_and_late(costs(runs)))
        rows.append((env, label(agent), parameters, loss, update, listed(sorted({c.device for c in runs})), *action))
    return _table(title, ("task", "agent", *names), rows)


def made(cells: Sequence[Cell]) -> Table:
    """How the runs were made."""
    names = ("task", "agent", "data", "environment", "training", "rollout", "target return", "evaluation", "seeds")
    rows = []
    for env, agent, runs in rows_of(cells):
        score = runs[0].last
        windows = f" of {score.context_length} steps" if score.context == "window" else ""
        data = f"{score.dataset} from {SOURCES[score.source]}: {path(score.source_path)}"
        training = f"{score.updates:,} gradient steps, {score.context} contexts{windows}"
        how = (score.env_id, training, score.acting() + score.choosing(), target_words(score.target_return, ",g"))
        evaluation = (
            f"{score.episodes} episodes from seed {score.seed}; last gradient step, {weights_words(score.weights)}"
        )
        rows.append((env, label(agent), data, *how, evaluation, listed(cell.seed for cell in runs)))
    return _table("Data, training and evaluation", names, rows)


def settings_of(tree: Mapping[str, Any], prefix: str = "") -> list[dict[str, str]]:
    """A row for every setting, by its place in the tree."""
    rows = []
    for key, item in tree.items():
        value = listed(item) if isinstance(item, list | tuple) else str(item)
        own = [{"setting": f"{prefix}{key}", "value": value}]
        rows += settings_of(item, f"{prefix}{key}.") if isinstance(item, Mapping) else own
    return rows


def seeds(cells: Sequence[Cell]) -> Table:
    """One row for every training run."""
    names = ("task", "agent", "seed", "data", "last", "sd over episodes", "best", "return", "episode length")
    rows = []
    for cell in (cell for _, _, runs in rows_of(cells) for cell in runs):
        last, error = cell.last, cell.last.action_error
        best = number(cell.best_headline, None if last.normalized_score_mean is None else 1)
        scored = number(last.normalized_score_mean), number(last.normalized_score_std), best
        returns = f"{number(last.return_mean, None)} ± {number(last.return_std, None)}"
        per_second, held_out = number(last.actions_per_second, 0), number(None if error is None else error.mean, 4)
        held_out += "" if error is None or error.accuracy is None else " (nll)"
        row = (cell.env, label(cell.agent), str(cell.seed), MARKS[last.source], *scored, returns)
        rows.append((*row, number(last.length_mean), per_second, held_out, path(cell.run)))
    return _table(
        "Last gradient step, and the best during training", (*names, "actions/s", "held-out error", "run"), rows
    )


def number(value: float | None, digits: int | None = 1) -> str:
    """A number with thousands set apart, or a return where `digits` is None; "-" for no number."""
    if value is None:
        return NOTHING
    if digits is None and abs(value) < 1000:
        return return_words(value)
    return f"{value:,.{1 if digits is None else digits}f}"


def interval(estimate: Estimate | None, digits: int | None = 1) -> str:
    """Value [low, high]; the value alone where there is no interval."""
    value = number(None if estimate is None else estimate.value, digits)
    if estimate is None or estimate.interval is None:
        return value
    return f"{value} [{', '.join(number(end, digits) for end in estimate.interval)}]"


def digits_of(result: Aggregate | Summary) -> int | None:
    """The decimals of its scores; None: they are returns."""
    return None if isinstance(result, Summary) and not result.normalized else 1


def listed(items: Iterable[object]) -> str:
    """Items between commas."""
    return ", ".join(map(str, items))


def joined(items: Sequence[str]) -> str:
    """Items as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def memory(count: float) -> str:
    """Bytes, in kB (1,000) from there on."""
    return f"{count:,.0f} bytes" if count < 1000 else f"{count / 1000:,.1f} kB"


def path(text: str) -> str:
    """A path without the name of the user whose folder it lies in, here or elsewhere: a report is shown to others."""
    return re.sub(rf"^({re.escape(os.path.expanduser('~'))}|/home/[^/]+|/Users/[^/]+|/root)(?=/|$)", "~", text)


def data_returns(cells: Sequence[Cell]) -> list[str]:
    """For every task whose data's returns are known, a line of what they return and score."""
    lines = {cell.env: line for cell in cells[::-1] if (line := cell.last.data()) is not None}
    return [f"{env}, {lines[env]}" for env in group(cells) if env in lines]


def costs(runs: Sequence[Cell]) -> dict[int, tuple[float, float]]:
    """Step -> (microseconds, bytes of state), medians over the runs that were measured there."""
    by_step: dict[int, list[tuple[float, float]]] = {}
    for cost in (cost for cell in runs for cost in cell.action_cost):
        by_step.setdefault(cost.step, []).append((cost.microseconds, cost.state_bytes))
    medians = {step: map(median, zip(*found, strict=True)) for step, found in sorted(by_step.items())}
    return {step: (time, size) for step, (time, size) in medians.items()}


def ends_of(steps: Collection[int]) -> list[int]:
    """The first and the last step, which may be one, or none."""
    return sorted({min(steps), max(steps)}) if steps else []


def early_and_late(cost: Mapping[int, tuple[float, float]]) -> tuple[str, str]:
    """The time of an action and the memory of the state, early and late; "" where nothing was measured."""
    # Always in microseconds, so that early and late can be compared at a glance.
    times = [f"{cost[step][0]:,.0f} µs at step {step:,}" for step in ends_of(cost)]
    return joined(times), joined([f"{memory(cost[step][1])} at step {step:,}" for step in ends_of(cost)])
