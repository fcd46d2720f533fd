"""The parts of docs/table1.md that are made from the results of scripts/table1.

A page is written by hand. `<!-- table1: NAME -->` begins a part that is made from results/table1/*.json, and
`<!-- /table1 -->` ends it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib
import table1_peers
from docs_dark import adapt
from scipy.stats import spearmanr
from table1_figures import OURS, THEIRS, figures, on_all_sets

from aaren_rl.base.errors import UsageError
from aaren_rl.base.files import write_text
from aaren_rl.compare.cells import Cell, read_results
from aaren_rl.compare.imitation import (
    ImitationDifference,
    imitation,
    imitation_difference_over_tasks,
    imitation_differences,
)
from aaren_rl.compare.report.tables import interval, listed, memory, number
from aaren_rl.compare.statistics import agents_of, aggregate, differences, group, improvements, summarize
from aaren_rl.policies.names import label
from aaren_rl.sweep.grid import Grid

PART = re.compile(r"(<!-- table1: (\w+) -->\n).*?(<!-- /table1 -->)", re.DOTALL)
ONE_TOKEN = "decision-transformer-1token"
MIN_SETS = 4  # of which two are left out


def write(docs: Path, grid: Grid) -> int:
    """Write the parts of the pages, and the figures. Returns the exit code."""
    folder = docs / "results" / "table1"
    cells, made = read(folder, grid)
    if not cells:
        raise UsageError(f"{folder}: no results here; scripts/table1 writes them")
    runs = table1_peers.read(docs / "results" / "peers")
    parts = {
        "answer": answer(cells),
        "missing": missing(cells, grid),
        "scores": scores(cells),
        "errors": errors(cells),
        "over_all": over_all(cells),
        "steering": steering(cells),
        "peers": table1_peers.peers(cells, runs),
        "cost": cost(cells, made),
    }
    page = docs / "table1.md"
    text = page.read_text(encoding="utf-8")
    write_text(page, PART.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n\n{found[3]}", text))
    with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
        curves = {"peers": table1_peers.figure(cells, runs)} if runs else {}
        for name, figure in (figures(cells) | curves).items():
            figure.savefig(file := folder / f"{name}.svg", metadata={"Date": None})
            write_text(file, adapt(file.read_text(encoding="utf-8")))
    return 0


def read(folder: Path, grid: Grid) -> tuple[list[Cell], dict[str, dict[str, str]]]:
    """The runs of all sets in the grid's order; run -> how it was made."""
    cells, made = [], {}
    for env in grid.envs:
        if (file := folder / f"{env}.json").exists():
            found, settings = read_results(file)
            cells += found
            made |= settings["made"]
    return cells, made


def of_pair(found: Sequence[Any], other: str = THEIRS) -> list[Any]:
    """Of differences of any kind those of Decision-Aaren and another agent."""
    return [pair for pair in found if (pair.first, pair.second) == (OURS, other)]


def answer(cells: Sequence[Cell]) -> str:
    """The main differences, what a mean over datasets hides, and what the token alone does."""
    by_set = {d.env: d.estimate for d in of_pair(differences(cells))}
    whole, sets = by_set.pop(None, None), list(by_set)
    if not sets:
        return f"No dataset has runs of {label(OURS)} and of {label(THEIRS)} yet."
    said = f"**Score of {label(OURS)} minus {label(THEIRS)}: {interval(whole or by_set[sets[0]])} {mean_over(sets)}**"
    if len(sets) >= MIN_SETS:
        *fewer, second, most = sorted(sets, key=lambda env: abs(by_set[env].value))
        others = of_pair(differences([cell for cell in cells if cell.env in fewer]))
        rest = next(d.estimate for d in others if d.env is None)
        said += (
            f", {interval(by_set[most])} on {most}, {interval(by_set[second])} on {second} and {interval(rest)} on "
            "average on the others"
        )
    if over_sets := [i.estimate for i in of_pair(improvements(cells)) if i.env is None]:
        above = f"a run of {label(OURS)} scores above one of {label(THEIRS)}"
        said += f". The probability that {above} is {interval(over_sets[0], 2)}"
    if told := lower_and_higher(imitation_differences(cells), THEIRS):
        error = imitation_difference_over_tasks(cells, OURS, THEIRS).difference
        said += f". **Difference of held-out action MSE: {interval(error, 4)}** on average (below 0 is better); {told}"
    return textwrap.fill(f"{said}.{of_the_token(cells)}", 120, break_on_hyphens=False)


def lower_and_higher(found: Sequence[ImitationDifference], other: str) -> str:
    """On how many datasets Decision-Aaren's held-out error is below and above another agent's: intervals without 0."""
    ends = [d.difference.interval for d in of_pair(found, other)]
    lower, higher = (sum(end is not None and sign * end[i] < 0 for end in ends) for sign, i in ((1, 1), (-1, 0)))
    return f"lower on {lower}, higher on {higher} of {len(ends)}" if ends else ""


def of_the_token(cells: Sequence[Cell]) -> str:
    """The differences to Decision Transformer with one token per step, which tell what the token alone does."""
    of_sets = [d for d in of_pair(differences(cells), ONE_TOKEN) if d.env is not None]
    if not of_sets:
        return ""
    *others, most = sorted(of_sets, key=lambda d: abs(d.estimate.value))
    rest = f"; on the others by at most {number(abs(others[-1].estimate.value))}" if others else ""
    return f" {label(OURS)} differs from {label(ONE_TOKEN)} most on {most.env}, by {interval(most.estimate)}{rest}."


def mean_over(sets: Sequence[str]) -> str:
    """What a mean is over, in words."""
    return f"on average over {len(sets)} datasets" if len(sets) > 1 else f"on {sets[0]}"


def missing(cells: Sequence[Cell], grid: Grid) -> str:
    """Runs of the grid that are not there, by agent."""
    there = {(cell.env, cell.agent, cell.seed) for cell in cells}
    lines, whole = [], 0
    for agent in grid.agents:
        seeds_of: dict[tuple[str, ...], list[int]] = {}  # datasets -> the seeds that lack them
        for seed in grid.agent_seeds.get(agent, grid.seeds):
            lacking = tuple(env for env in grid.envs if (env, agent, seed) not in there)
            seeds_of.setdefault(lacking, []).append(seed)
            whole += len(grid.envs)
        for lacking, seeds in seeds_of.items():
            on = "all datasets" if len(lacking) == len(grid.envs) else listed(lacking)
            lines += [f"* {label(agent)}, seed{'s' * (len(seeds) > 1)} {listed(seeds)}: {on}"] if lacking else []
    return "\n".join([f"Of {whole} runs {len(there)} are here. Not run yet:\n", *lines]) if lines else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Markdown; the first columns are words, the others numbers."""
    rule = ["-"] * words + ["-:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def scores(cells: Sequence[Cell]) -> str:
    """One row per dataset: scores of the agents, and of Decision-Aaren with the target "auto"; dataset returns."""
    automatic = [f"{label(OURS)}, `auto`"] if any(cell.auto for cell in cells) else []
    agents, found = agents_of(cells), {(s.env, s.agent): s for s in summarize(cells)}
    rows = []
    for env, by_agent in group(cells).items():
        data = next(iter(by_agent.values()))[0].last.data_headlines()
        auto = [cell.auto.headline for cell in by_agent.get(OURS, []) if cell.auto is not None]
        row = [
            env,
            *(interval(found[env, agent].mean) if (env, agent) in found else "-" for agent in agents),
            *(number(fmean(auto) if auto else None) for _ in automatic),
            f"{number(data.get('mean'))}, {number(data.get('best_tenth'))}; {number(data.get('mode'))}",
        ]
        rows.append(row)
    return table(
        ["dataset", *map(label, agents), *automatic, "data: mean, best tenth; deterministic behavior policy"], rows
    )


def errors(cells: Sequence[Cell]) -> str:
    """One row per dataset: excess MSE of every agent, and the difference."""
    agents, found = agents_of(cells), {(i.env, i.agent): i for i in imitation(cells) if i.above_floor is not None}
    paired = {d.env: d.difference for d in of_pair(imitation_differences(cells))}
    rows = []
    for env in group(cells):
        own = [found.get((env, agent)) for agent in agents]
        floor = next((i.error.value - i.above_floor.value for i in own if i is not None), None)
        above = ["-" if i is None else number(i.above_floor.value, 4) for i in own]
        rows.append([env, number(floor, 4), *above, interval(paired[env], 4) if env in paired else "-"])
    return table(["dataset", "noise variance", *map(label, agents), f"{label(OURS)} minus {label(THEIRS)} [95%]"], rows)


def over_all(cells: Sequence[Cell]) -> str:
    """One row per agent: means over datasets, and how Decision-Aaren differs."""
    cells = on_all_sets(cells)
    if not (found := aggregate(cells)):
        return "There are fewer than two datasets."
    score_differences = {d.second: d.estimate for d in differences(cells) if d.env is None and d.first == OURS}
    error_differences = imitation_differences(cells)
    probability = {i.second: i.estimate for i in improvements(cells) if i.env is None and i.first == OURS}
    rows = [
        [
            label(a.agent),
            str(a.runs),
            interval(a.mean),
            interval(a.iqm),
            interval(score_differences[a.agent]) if a.agent in score_differences else "-",
            interval(probability[a.agent], 2) if a.agent in probability else "-",
            lower_and_higher(error_differences, a.agent) or "-",
        ]
        for a in found
    ]
    means = [f"mean over {len(found[0].envs)} datasets [95%]", "IQM [95%]"]
    ours = [f"{label(OURS)} minus agent [95%]", f"P({label(OURS)} > agent) [95%]", f"held-out MSE of {label(OURS)}"]
    return table(["agent", "runs", *means, *ours], rows)


def steering(cells: Sequence[Cell]) -> str:
    """One row per dataset: how well achieved returns follow target returns, and how well the data's mean would."""
    agents = [agent for agent in agents_of(cells) if any(cell.sweep for cell in cells if cell.agent == agent)]
    rows = []
    for env, by_agent in group(cells).items():
        row = [env]
        for agent in agents:
            runs = by_agent.get(agent, [])
            columns = zip(*(cell.sweep for cell in runs), strict=True)  # one column per target
            points = [(column[0].target_return, fmean(score.return_mean for score in column)) for column in columns]
            row.append(f"{number(spearmanr(points).statistic, 2)}, {difference(runs)}" if points else "-")
        runs = [run for agent in agents for run in by_agent.get(agent, [])]
        rows.append([*row, difference(runs[:1], runs[0].last.data_returns["mean"]) if runs else "-"])
    return table(["dataset", *map(label, agents), "a policy that always achieves the data's mean"], rows)


def difference(runs: Sequence[Cell], always: float | None = None) -> str:
    """The mean of |achieved - target| / target over targets and seeds, in percent; of a return that is `always` it."""
    tried = [score for cell in runs for score in cell.sweep]
    achieved = [score.return_mean if always is None else always for score in tried]
    parts = [abs(a / float(score.target_return) - 1) for a, score in zip(achieved, tried, strict=True)]
    return f"{100 * fmean(parts):.0f} %"


def cost(cells: Sequence[Cell], made: Mapping[str, Mapping[str, str]]) -> str:
    """One row per machine and agent: time of a gradient step, size of the late state.

    Actions were timed beside other work; `bench rollout` has their times.
    """
    rows, machines = [], {cell.run: _trained_on(cell, made[cell.run]) for cell in cells}
    for machine, agent in product(sorted(set(machines.values())), agents_of(cells)):
        if runs := [cell for cell in cells if cell.agent == agent and machines[cell.run] == machine]:
            sizes = [run.action_cost[-1].state_bytes for run in runs]
            row = [
                machine,
                label(agent),
                str(len(runs)),
                number(1000 * median(run.seconds_per_update for run in runs), 0),
                " to ".join(dict.fromkeys(memory(size) for size in (min(sizes), max(sizes)))),
            ]
            rows.append(row)
    head = ["trained on", "agent", "runs", "ms per gradient step", "state"]
    return table(head, rows, words=2)


def _trained_on(cell: Cell, how: Mapping[str, str]) -> str:
    where = how["processor"] if cell.device == "cpu" else f"{cell.device}, scored on {how['processor']}"
    return f"{where}, {how['precision']}"
