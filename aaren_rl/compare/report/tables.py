"""The tables of a comparison's report, and the sentences that say what their numbers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ...evaluate.scores import Score
from ...policies.names import MARKS, SOURCES, asked_words, label
from ..cells import Cell
from ..published import PUBLISHED, published
from ..statistics import CONFIDENCE, MIN_SEEDS, RESAMPLES, Aggregate, Summary, aggregate, group, improvements, summarize
from .document import Column, Command, Table, Text, words
from .words import (
    NOTHING,
    costs,
    data_notes,
    data_returns,
    ends_of,
    interval,
    joined,
    listed,
    memory,
    microseconds,
    number,
    path,
)


def made(cells: Sequence[Cell], settings: Mapping[str, Any]) -> list[Text | Command | Table]:
    """How the comparison was made."""
    names = ["task", "agent", "data", "environment", "training", "rollout", "asked return", "evaluation", "seeds"]
    rows = [_made_row(env, agent, runs) for env, by_agent in group(cells).items() for agent, runs in by_agent.items()]
    blocks: list[Text | Command | Table] = [Command(settings["command"])] if "command" in settings else []
    blocks.append(Table("Data, training and evaluation", words(*names), rows))
    # What stands behind the command's -- is in the command.
    shown = {key: value for key, value in settings.items() if key not in ("command", "train")}
    if flat := _flat("", shown):
        blocks.append(Table("Settings of the comparison", words("setting", "value"), flat))
    return blocks


def _made_row(env: str, agent: str, runs: Sequence[Cell]) -> list[str]:
    score = runs[0].last
    windows = f" of {score.context_length} steps" if score.context == "window" else ""
    return [
        env,
        label(agent),
        f"{score.dataset} from {SOURCES[score.source]}: {path(score.source_path)}",
        score.env_id,
        f"{score.updates:,} updates, {score.context} contexts{windows}",
        score.acting(),
        asked_words(score.target_return, ",g"),
        f"{score.episodes} episodes from seed {score.seed}; last update, {score.weights} weights",
        listed(cell.seed for cell in runs),
    ]


def _flat(prefix: str, tree: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for key, item in tree.items():
        if isinstance(item, Mapping):
            rows += _flat(f"{prefix}{key}.", item)
        else:
            rows.append([f"{prefix}{key}", listed(item) if isinstance(item, list | tuple) else str(item)])
    return rows


def scores(cells: Sequence[Cell]) -> list[Text | Table]:
    """A table for every task, with published scores, and one over all tasks."""
    summaries = summarize(cells)
    tables: list[Text | Table] = [
        _score_table(next(cell.last for cell in cells if cell.env == env), [s for s in summaries if s.env == env])
        for env in group(cells)
    ]
    if over := aggregate(cells):
        tables.append(_aggregate_table(over, cells))
    return [*map(Text, data_notes(cells)), *tables, *_data_notes(cells), *_notes(cells)]


def _score_table(score: Score, summaries: Sequence[Summary]) -> Table:
    theirs = {s.agent: _published(score, s.agent) for s in summaries}
    sources = [source for source in PUBLISHED if any(source in found for found in theirs.values())]
    counts = sorted({count for s in summaries for count in s.mean_of if count})
    last = f"mean of last {'/'.join(map(str, counts))}" if counts else "mean of last"
    own = [Column(name, MARKS[score.source]) for name in ("mean [95 %]", "sd", "IQM [95 %]", "best", last)]
    rows = [
        [
            label(s.agent),
            interval(s.mean),
            number(s.std),
            interval(s.iqm),
            number(s.best),
            number(s.mean_of_last),
            listed(s.seeds),
            *[theirs[s.agent].get(source, NOTHING) for source in sources],
        ]
        for s in summaries
    ]
    unit = (
        f"scores normalised by {score.reference}"
        if summaries[0].normalized
        else "returns, without a reference for scores"
    )
    columns = [*words("agent"), *own, *words("seeds"), *[Column(source, "D4RL", published=True) for source in sources]]
    return Table(f"{score.env}: {unit}", columns, rows)


def _aggregate_table(over: Sequence[Aggregate], cells: Sequence[Cell]) -> Table:
    envs = over[0].envs
    mark = joined(list(dict.fromkeys(MARKS[cell.last.source] for cell in cells if cell.env in envs)))
    columns = [
        *words("agent"),
        Column("mean of means [95 %]", mark),
        Column("IQM of all runs [95 %]", mark),
        Column("runs"),
    ]
    rows = [[label(a.agent), interval(a.mean), interval(a.iqm), str(a.runs)] for a in over]
    return Table(f"All of {joined(envs)}", columns, rows)


def _published(score: Score, agent: str) -> dict[str, str]:
    """By source. Only beside scores on D4RL's scale: of other references, 0 and 100 stand for something else."""
    if score.reference is None or not score.reference.startswith("D4RL"):
        return {}
    return {
        source: f"{found.mean:g}" if found.std is None else f"{found.mean:g} ± {found.std:g}"
        for source, found in published(score.env, agent).items()
    }


def _data_notes(cells: Sequence[Cell]) -> list[Text]:
    lines = data_returns(cells)
    if not lines:
        return []
    meaning = (
        "Beside the scores: mean return of the data's episodes, and of the tenth of them with the highest returns; of "
        "a local set, the mean return of the policy that made it, acting without noise; normalised scores in brackets."
    )
    return [*map(Text, lines), Text(meaning)]


def _notes(cells: Sequence[Cell]) -> list[Text]:
    shown = {source for cell in cells for source in _published(cell.last, cell.agent)}
    sources = "; ".join(f"{source}: {text}" for source, text in PUBLISHED.items() if source in shown)
    return [
        Text(
            "Normalised scores are 100 (return - random) / (expert - random). They are of the last update; best is of "
            "the weights that were best during training, chosen by the episodes they are scored on, and so flatters."
        ),
        Text(
            f"sd: standard deviation over training seeds. IQM: interquartile mean, without the lowest and the highest "
            f"quarter of the runs. In brackets: {100 * CONFIDENCE:.0f} % intervals by a stratified bootstrap "
            f"over training seeds ({RESAMPLES:,} resamples), given from {MIN_SEEDS} seeds on. Few seeds make them too "
            "narrow: of three, they reach from the worst to the best."
        ),
        Text(
            f"Published scores were made on D4RL's own data, each with a model and a budget of its own. {sources}."
            if shown
            else "There are no published scores to set beside these."
        ),
    ]


def improvement(cells: Sequence[Cell]) -> list[Text | Table]:
    """How probable it is that a run of one agent is better than a run of another."""
    rows = [
        [
            i.env or "all tasks",
            f"{label(i.first)} above {label(i.second)}",
            interval(i.estimate, 2),
            f"{i.runs[0]} and {i.runs[1]}",
        ]
        for i in improvements(cells)
    ]
    if not rows:
        return [Text("No task has runs of two agents: there is nothing to compare.")]
    return [
        Text(
            "The probability that a training run of the one agent scores above a training run of the other: Mann and "
            "Whitney's U over the number of pairs, a tie counting half. 0.5 is no difference."
        ),
        Table("Probability of improvement", [*words("task", "runs of"), Column("P [95 %]"), Column("runs")], rows),
    ]


def cost(cells: Sequence[Cell]) -> Table:
    """Parameters, loss, time of an update, time and memory of an action."""
    rows = [_cost_row(env, agent, runs) for env, by_agent in group(cells).items() for agent, runs in by_agent.items()]
    numbers = [Column(name) for name in ("parameters", "loss", "time per update")]
    columns = [*words("task", "agent"), *numbers, *words("trained on", "time per action", "state memory")]
    title = (
        "Cost (medians over training seeds; loss: of the last updates, on each agent's own training contexts; "
        "an action: the policy alone, one environment)"
    )
    return Table(title, columns, rows)


def _cost_row(env: str, agent: str, runs: Sequence[Cell]) -> list[str]:
    by_step = costs(runs)
    ends = ends_of(by_step)
    return [
        env,
        label(agent),
        listed(f"{count:,}" for count in sorted({cell.parameters for cell in runs})),
        f"{median(cell.loss for cell in runs):.4f}",
        f"{1000 * median(cell.seconds_per_update for cell in runs):,.1f} ms",
        listed(sorted({cell.device for cell in runs})),
        joined([f"{microseconds(by_step[step][0])} at step {step:,}" for step in ends]) or NOTHING,
        joined([f"{memory(by_step[step][1])} at step {step:,}" for step in ends]) or NOTHING,
    ]


def seeds(cells: Sequence[Cell]) -> Table:
    """One row for every training run."""
    names = ["last", "sd over episodes", "best", "return", "episode length", "actions/s", "held-out error"]
    rows = [
        [
            cell.env,
            label(cell.agent),
            str(cell.seed),
            MARKS[cell.last.source],
            number(cell.last.normalized_score_mean),
            number(cell.last.normalized_score_std),
            number(None if cell.best is None else cell.best.normalized_score_mean),
            f"{number(cell.last.return_mean)} ± {number(cell.last.return_std)}",
            number(cell.last.length_mean),
            number(cell.last.actions_per_second, 0),
            number(None if (error := cell.last.action_error) is None else error.mean, 4),
            path(cell.run),
        ]
        for by_agent in group(cells).values()
        for runs in by_agent.values()
        for cell in runs
    ]
    columns = [*words("task", "agent", "seed", "data"), *map(Column, names), *words("run")]
    return Table("Last update, and the best during training", columns, rows)
