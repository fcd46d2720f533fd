"""The parts of docs/benchmark.md and docs/notebook.md that are made from the results of scripts/table1.

They are parts as of docs_tables.py, made from results/benchmark/*.json and results/table1/*.json.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import matplotlib
from docs_dark import adapt
from docs_tables import draws, fill, table
from scipy.stats import spearmanr
from table1_cells import CLONED, MINGRU, NO_GATE, ONE_TOKEN, OURS, THEIRS, Made, of, read, variants
from table1_figures import forest
from table1_statistics import differences, error_difference_over_tasks, error_differences

from aaren_rl.base.errors import UsageError
from aaren_rl.base.files import write_text
from aaren_rl.compare.measure import Cell
from aaren_rl.compare.statistics import (
    Pair,
    aggregate,
    group,
    improvements,
    summarize,
)
from aaren_rl.evaluate.scores import Estimate, interval, memory, number
from aaren_rl.policies.table import label
from aaren_rl.sweep import Grid

PAGES = ("benchmark.md", "notebook.md")
MAIN = (OURS, THEIRS, CLONED)
# By the held-out action error of seed 0, on smaller datasets of the same behavior policies.
CHOSE = {"hopper-medium", *(f"{robot}-medium-replay" for robot in ("halfcheetah", "hopper", "walker2d", "ant"))}
# What an agent has that the next has not, so that the differences add up to the first.
STEPS = (
    ("one token per step", ONE_TOKEN, THEIRS),
    ("a recurrent state over the whole episode in place of a window", NO_GATE, ONE_TOKEN),
    ("the forget gate", OURS, NO_GATE),
    ("all of it", OURS, THEIRS),
)


def write(docs: Path, grid: Grid) -> int:
    """Write the parts of the page, and its figure. Returns the exit code."""
    with variants():
        cells, made = read(docs, grid)
        if not cells:
            raise UsageError(f"{docs / 'results'}: no results here; scripts/table1 writes them")
        parts = {
            "draws": draws(),
            "answer": answer(cells),
            "scores": scores(cells, MAIN),
            "over_all": over_all(cells),
            "steps": steps(cells),
            "steering": steering(cells),
            "cost": cost(cells, made),
        }
        for page in (docs / name for name in PAGES):
            write_text(page, fill(page.read_text(encoding="utf-8"), parts))
        with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
            file = docs / "results" / "table1" / "forest.svg"
            forest(of(cells, *MAIN)).savefig(file, metadata={"Date": None})
            write_text(file, adapt(file.read_text(encoding="utf-8")))
    return 0


def by_set(pairs: Sequence[Pair], first: str, second: str) -> dict[str | None, Estimate]:
    """Of two agents, by dataset; None is the mean over the datasets that have both."""
    return {pair.env: pair.estimate for pair in pairs if (pair.first, pair.second) == (first, second)}


def lead(cells: Sequence[Cell], first: str, second: str) -> tuple[Estimate, Estimate, dict[str, Estimate]] | None:
    """The difference over all datasets that have both, the probability of improvement, differences by dataset."""
    both = of(cells, first, second)
    score, probability = (by_set(found(both), first, second) for found in (differences, improvements))
    if None not in score:
        return None
    return score[None], probability[None], {env: found for env, found in score.items() if env is not None}


def answer(cells: Sequence[Cell]) -> str:
    """How far it is ahead of Decision Transformer and 10 % BC, which datasets make the difference, and imitation."""
    first, second = (lead(cells, OURS, other) for other in (THEIRS, CLONED))
    if first is None or second is None:
        return "Too few runs are here yet."
    ahead, above = (f"{interval(first[i], i + 1)} and {interval(second[i], i + 1)}" for i in (0, 1))
    text = (
        f"**{label(OURS)} scores {ahead} points more than {label(THEIRS)} and {label(CLONED)}**, on average over "
        f"{len(first[2])} datasets; a run of it scores above one of theirs with probability {above}."
    )
    if len(first[2]) > 2:
        text += f" {made_on(first[2], THEIRS)} {made_on(second[2], CLONED)}"
    if told := lower_and_higher(cells, OURS, THEIRS):
        error = error_difference_over_tasks(cells, OURS, THEIRS).difference
        text += f" Its held-out action MSE minus {label(THEIRS)}'s is {interval(error, 4)} on average; {told} datasets."
    return textwrap.fill(text, 120, break_on_hyphens=False)


def made_on(by_env: dict[str, Estimate], other: str) -> str:
    """The difference on the datasets that chose the settings and on the others, and the two largest differences."""
    first, second = sorted(by_env, key=lambda env: -abs(by_env[env].value))[:2]
    chose = [found.value for env, found in by_env.items() if env in CHOSE]
    others = [found.value for env, found in by_env.items() if env not in CHOSE]
    told = [f"{number(fmean(chose))} on the {len(chose)} datasets that chose its settings"] if chose else []
    told += [f"{number(fmean(others))} on the {len(others)} others"] if others else []
    return (
        f"Ahead of {label(other)} it is {' and '.join(told)}; the largest differences are {first} "
        f"{number(by_env[first].value)} and {second} {number(by_env[second].value)}."
    )


def lower_and_higher(cells: Sequence[Cell], first: str, second: str) -> str:
    """On how many datasets the first one's held-out error is below and above the second's: intervals without 0."""
    ends = [found.difference.interval for found in error_differences(of(cells, first, second))]
    lower, higher = (sum(end is not None and sign * end[i] < 0 for end in ends) for sign, i in ((1, 1), (-1, 0)))
    return f"lower on {lower}, higher on {higher} of {len(ends)}" if ends else ""


def scores(cells: Sequence[Cell], agents: Sequence[str]) -> str:
    """A row per dataset: scores of agents and the returns of the data."""
    found = {(s.env, s.agent): s for s in summarize(cells)}
    rows = []
    for env, by_agent in group(cells).items():
        row = [env, *(interval(found[env, agent].mean) if (env, agent) in found else "-" for agent in agents)]
        known = next(iter(by_agent.values()))[0].last.data_headlines()
        row.append(f"{number(known.get('mean'))}, {number(known.get('best_tenth'))}; {number(known.get('mode'))}")
        rows.append(row)
    return table(["dataset", *map(label, agents), "data: mean, best tenth; behavior policy without noise"], rows)


def over_all(cells: Sequence[Cell]) -> str:
    """One row per agent that has all datasets: means over them, and how Decision-Aaren differs."""
    envs = set(group(cells))
    whole = [agent for agent in dict.fromkeys(cell.agent for cell in cells) if envs == set(group(of(cells, agent)))]
    if not (found := aggregate(of(cells, *whole))):
        return "There are fewer than two datasets."
    rows = []
    for a in found:
        ahead = None if a.agent == OURS else lead(cells, OURS, a.agent)
        differs = [interval(ahead[0]), interval(ahead[1], 2)] if ahead else ["-", "-"]
        errors = lower_and_higher(cells, OURS, a.agent) if a.agent != OURS else "-"
        rows.append([label(a.agent), str(a.runs), interval(a.mean), interval(a.iqm), *differs, errors or "-"])
    means = [f"mean over {len(found[0].envs)} datasets [95%]", "IQM [95%]"]
    ahead_of = [f"{label(OURS)} minus agent [95%]", f"P({label(OURS)} > agent) [95%]"]
    return table(["agent", "runs", *means, *ahead_of, f"held-out MSE of {label(OURS)}"], rows)


def steps(cells: Sequence[Cell]) -> str:
    """A row for each part of Decision-Aaren: what it adds to the score, and on how many datasets."""
    rows = []
    for name, first, second in STEPS:
        if (found := lead(cells, first, second)) is None:
            continue
        ends = [estimate.interval for estimate in found[2].values() if estimate.interval is not None]
        above, below = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
        most = max(found[2], key=lambda env: abs(found[2][env].value))
        largest = f"{most} {number(found[2][most].value)}"
        signs = f"{above}, {below} of {len(found[2])}"
        pair = f"{label(first)} minus {label(second)}"
        rows.append([name, pair, interval(found[0]), interval(found[1], 2), signs, largest])
    head = ["part", "measured as", "difference [95%]", "P(above) [95%]", "intervals above, below 0", "largest"]
    return table(head, rows, words=2)


def steering(cells: Sequence[Cell]) -> str:
    """One row per agent, of means over the datasets: how well achieved returns follow targets; then the data's mean."""
    agents = [agent for agent in (OURS, MINGRU, THEIRS) if any(cell.sweep for cell in of(cells, agent))]
    found: dict[str, list[tuple[float, float, float]]] = {agent: [] for agent in agents}
    for by_agent in group(cells).values():
        for agent in agents:
            if runs := by_agent.get(agent):
                columns = zip(*(cell.sweep for cell in runs), strict=True)  # one column per target
                points = [(column[0].target_return, fmean(score.return_mean for score in column)) for column in columns]
                always = missed(runs[:1], runs[0].last.data_returns["mean"])
                found[agent].append((float(spearmanr(points).statistic), missed(runs), always))
    rows = []
    for agent, sets in found.items():
        correlation, error, always = (fmean(column) for column in zip(*sets, strict=True))
        better = sum(own < mean for _, own, mean in sets)
        numbers = [number(correlation, 2), f"{100 * error:.0f} %", f"{100 * always:.0f} %", f"{better} of {len(sets)}"]
        rows.append([label(agent), *numbers])
    head = ["agent", "rank correlation", "difference from the target", "of the data's mean", "nearer than that mean on"]
    return table(head, rows)


def missed(runs: Sequence[Cell], always: float | None = None) -> float:
    """|achieved - target| / target, mean over targets and seeds; of a policy whose return is `always` the same."""
    tried = [(score, float(score.target_return)) for cell in runs for score in cell.sweep]
    return fmean(abs((score.return_mean if always is None else always) / asked - 1) for score, asked in tried)


def cost(cells: Sequence[Cell], made: Made) -> str:
    """One row per agent: time of a gradient step and size of the late state, on the machine with the most runs.

    Actions were timed beside other work; `scripts/bench rollout` has their times.
    """
    agents = (OURS, NO_GATE, MINGRU, ONE_TOKEN, THEIRS, "bc")
    machines = [_trained_on(cell, made) for cell in of(cells, *agents)]
    machine = max(sorted(set(machines)), key=machines.count)
    rows = []
    for agent in agents:
        if runs := [cell for cell in of(cells, agent) if _trained_on(cell, made) == machine]:
            sizes = [run.action_cost[-1].state_bytes for run in runs]
            step = number(1000 * median(run.seconds_per_update for run in runs), 0)
            size = " to ".join(dict.fromkeys(memory(size) for size in (min(sizes), max(sizes))))
            rows.append([label(agent), str(len(runs)), step, size])
    return f"{table(['agent', 'runs', 'ms per gradient step', 'state'], rows)}\n\nTrained on: {machine}."


def _trained_on(cell: Cell, made: Made) -> str:
    how = made[cell.run]
    where = how["processor"] if cell.device == "cpu" else f"{cell.device}, scored on {how['processor']}"
    return f"{where}, {how['precision']}"
