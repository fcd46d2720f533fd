"""The tables of a comparison's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ...evaluate.scores import Score
from ...policies.names import MARKS, SOURCES, asked_words, label
from ..cells import Cell
from ..imitation import imitation, imitation_differences
from ..published import PUBLISHED, published
from ..statistics import Summary, aggregate, group, improvements, rows_of, summarize
from .words import NOTHING, costs, early_and_late, interval, joined, listed, number, path

# Columns of text; all others hold numbers, which are aligned by their ends.
TEXTS = {
    *("task", "agent", "seed", "seeds", "data", "run", "runs of", "error of", "setting", "value", "environment"),
    *("training", "rollout", "asked return", "evaluation", "trained on", "time per action", "state memory"),
}
_DIGITS = 4  # of an action error


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what stands above it.
        rows: column -> text, the same columns in all.
        marks: column -> on whose data its scores were made.
    """

    caption: str
    rows: list[dict[str, str]]
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def heads(self) -> dict[str, str]:
        """Column -> its heading, with its mark."""
        return {name: f"{name} ({self.marks[name]})" if name in self.marks else name for name in self.rows[0]}


def scores(cells: Sequence[Cell]) -> list[Table]:
    """A table for every task, with published scores, and one over all tasks."""
    summaries, over = summarize(cells), aggregate(cells)
    last = {cell.env: cell.last for cell in cells}
    tables = [_scores(last[env], [s for s in summaries if s.env == env]) for env in group(cells)]
    if over:
        mark = joined(list(dict.fromkeys(MARKS[last[env].source] for env in over[0].envs)))
        names = "mean of means [95 %]", "IQM of all runs [95 %]"
        rows = [
            {"agent": label(a.agent), names[0]: interval(a.mean), names[1]: interval(a.iqm), "runs": str(a.runs)}
            for a in over
        ]
        tables.append(Table(f"All of {joined(over[0].envs)}", rows, dict.fromkeys(names, mark)))
    return tables


def _scores(score: Score, summaries: Sequence[Summary]) -> Table:
    theirs = {s.agent: published_beside(score, s.agent) for s in summaries}
    sources = [source for source in PUBLISHED if any(source in found for found in theirs.values())]
    counts = "/".join(map(str, sorted({count for s in summaries for count in s.mean_of if count})))
    own = ("mean [95 %]", "sd", "IQM [95 %]", "best", f"mean of last {counts}".rstrip())
    rows = []
    for s in summaries:
        numbers = (interval(s.mean), number(s.std), interval(s.iqm), number(s.best), number(s.mean_of_last))
        row = {"agent": label(s.agent), **dict(zip(own, numbers, strict=True)), "seeds": listed(s.seeds)}
        rows.append(row | {source: theirs[s.agent].get(source, NOTHING) for source in sources})
    by = f"scores normalised by {score.reference}"
    unit = by if summaries[0].normalized else "returns, without a reference for scores"
    marks = dict.fromkeys(own, MARKS[score.source]) | dict.fromkeys(sources, "D4RL")
    return Table(f"{score.env}: {unit}", rows, marks)


def published_beside(score: Score, agent: str) -> dict[str, str]:
    """By source. Only beside scores on D4RL's scale: of other references, 0 and 100 stand for something else."""
    if score.reference is None or not score.reference.startswith("D4RL"):
        return {}
    return {
        source: f"{found.mean:g}" if found.std is None else f"{found.mean:g} ± {found.std:g}"
        for source, found in published(score.env, agent).items()
    }


def improvement(cells: Sequence[Cell]) -> Table:
    """How probable it is that a run of one agent is better than a run of another."""
    rows = [
        {
            "task": pair.env or "all tasks",
            "runs of": f"{label(pair.first)} above {label(pair.second)}",
            "P [95 %]": interval(pair.estimate, 2),
            "runs": joined(list(map(str, pair.runs))),
        }
        for pair in improvements(cells)
    ]
    return Table("Probability of improvement", rows)


def errors(cells: Sequence[Cell]) -> Table:
    """The action error of every agent on every task."""
    rows = [
        {
            "task": i.env,
            "agent": label(i.agent),
            "action error [95 %]": interval(i.error, _DIGITS),
            "above the noise [95 %]": interval(i.above_floor, _DIGITS),
            "episodes": f"{i.episodes:,}",
            "seeds": listed(i.seeds),
        }
        for i in imitation(cells)
    ]
    return Table("Action error on held-out episodes", rows)


def error_differences(cells: Sequence[Cell]) -> Table:
    """The differences of the action error between agents."""
    rows = [
        {
            "task": d.env or "all tasks",
            "error of": f"{label(d.first)} less {label(d.second)}",
            "difference [95 %]": interval(d.difference, _DIGITS),
            "pairs": f"{d.episodes:,}",
            "seeds": listed(d.seeds),
        }
        for d in imitation_differences(cells)
    ]
    return Table("Difference of the action error, episode by episode", rows)


def cost(cells: Sequence[Cell]) -> Table:
    """Parameters, loss, time of an update, time and memory of an action."""
    title = (
        "Cost (medians over training seeds; loss: of the last updates, on each agent's own training contexts; "
        "an action: the policy alone, one environment)"
    )
    rows = []
    for env, agent, runs in rows_of(cells):
        time, state = early_and_late(costs(runs))
        row = {
            "task": env,
            "agent": label(agent),
            "parameters": listed(f"{count:,}" for count in sorted({cell.parameters for cell in runs})),
            "loss": f"{median(cell.loss for cell in runs):.4f}",
            "time per update": f"{1000 * median(cell.seconds_per_update for cell in runs):,.1f} ms",
            "trained on": listed(sorted({cell.device for cell in runs})),
            "time per action": time or NOTHING,
            "state memory": state or NOTHING,
        }
        rows.append(row)
    return Table(title, rows)


def made(cells: Sequence[Cell]) -> Table:
    """How the runs were made."""
    rows = []
    for env, agent, runs in rows_of(cells):
        score = runs[0].last
        windows = f" of {score.context_length} steps" if score.context == "window" else ""
        row = {
            "task": env,
            "agent": label(agent),
            "data": f"{score.dataset} from {SOURCES[score.source]}: {path(score.source_path)}",
            "environment": score.env_id,
            "training": f"{score.updates:,} updates, {score.context} contexts{windows}",
            "rollout": score.acting(),
            "asked return": asked_words(score.target_return, ",g"),
            "evaluation": f"{score.episodes} episodes from seed {score.seed}; last update, {score.weights} weights",
            "seeds": listed(cell.seed for cell in runs),
        }
        rows.append(row)
    return Table("Data, training and evaluation", rows)


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
    rows = [
        {
            "task": cell.env,
            "agent": label(cell.agent),
            "seed": str(cell.seed),
            "data": MARKS[cell.last.source],
            "last": number(cell.last.normalized_score_mean),
            "sd over episodes": number(cell.last.normalized_score_std),
            "best": number(None if cell.best is None else cell.best.normalized_score_mean),
            "return": f"{number(cell.last.return_mean)} ± {number(cell.last.return_std)}",
            "episode length": number(cell.last.length_mean),
            "actions/s": number(cell.last.actions_per_second, 0),
            "held-out error": number(None if (error := cell.last.action_error) is None else error.mean, 4),
            "run": path(cell.run),
        }
        for _, _, runs in rows_of(cells)
        for cell in runs
    ]
    return Table("Last update, and the best during training", rows)
