"""The tables of docs/table1.md, of the results that scripts/table1_local wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, median

from scipy.stats import spearmanr

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.imitation import ImitationDifference, imitation, imitation_differences
from aaren_rl.compare.published import PAPER, published
from aaren_rl.compare.report.document import Column, Table, words
from aaren_rl.compare.report.words import agents_of, costs, ends_of, interval, memory, number
from aaren_rl.compare.statistics import Difference, Improvement, group, summarize
from aaren_rl.policies.names import label

OURS, THEIRS = "decision-aaren", "decision-transformer"


def on_all_sets(cells: Sequence[Cell]) -> list[Cell]:
    """The runs of the agents that have every set that the two compared have; an agent whose runs are under way would
    leave none of the sets to an average over all agents.
    """

    def sets(agent: str) -> set[str]:
        return {cell.env for cell in cells if cell.agent == agent}

    shared = sets(OURS) & sets(THEIRS)
    return [cell for cell in cells if shared <= sets(cell.agent)]


def is_pair(found: Difference | Improvement | ImitationDifference) -> bool:
    """Of Decision-Aaren and Decision Transformer."""
    return (found.first, found.second) == (OURS, THEIRS)


def scores(cells: Sequence[Cell]) -> Table:
    """A row a set: every agent's mean, what the data return, and the paper's."""
    agents = agents_of(cells)
    found = {(s.env, s.agent): s for s in summarize(cells)}
    rows = []
    for env, by_agent in group(cells).items():
        data = next(iter(by_agent.values()))[0].last.data_headlines()
        theirs = [published(env, agent).get(PAPER) for agent in (OURS, THEIRS)]
        rows.append(
            [
                env,
                *[interval(found[env, agent].mean) if (env, agent) in found else "-" for agent in agents],
                "; ".join([f"{number(data.get('mean'))}, {number(data.get('best_tenth'))}", number(data.get("mode"))]),
                *["-" if score is None else f"{score.mean:g} ± {score.std:g}" for score in theirs],
            ]
        )
    paper = [Column(f"paper: {name}", "D4RL", published=True) for name in ("Aaren", "Transformer")]
    own = [Column(label(agent), "local") for agent in agents]
    return Table("", [*words("set"), *own, Column("data: mean, best tenth; mode"), *paper], rows)


def errors(cells: Sequence[Cell]) -> Table:
    """A row a set: every agent's error above the floor, and the difference."""
    agents = agents_of(cells)
    found = {(i.env, i.agent): i for i in imitation(cells)}
    paired = {d.env: d.difference for d in imitation_differences(cells) if is_pair(d)}
    rows = []
    for env in group(cells):
        own = [found.get((env, agent)) for agent in agents]
        floor = next(i.error.value - i.above_floor.value for i in own if i is not None and i.above_floor is not None)
        above = ["-" if i is None or i.above_floor is None else number(i.above_floor.value, 4) for i in own]
        rows.append([env, number(floor, 4), *above, interval(paired[env], 4) if env in paired else "-"])
    columns = [Column("floor"), *[Column(label(agent)) for agent in agents], Column("first less second [95 %]")]
    return Table("", [*words("set"), *columns], rows)


def steering(cells: Sequence[Cell]) -> Table:
    """A row a set: how well the achieved returns follow the asked ones."""
    agents = [agent for agent in agents_of(cells) if any(cell.sweep for cell in cells if cell.agent == agent)]
    rows = []
    for env, by_agent in group(cells).items():
        row = [env]
        for agent in agents:
            found = achieved(by_agent.get(agent, []))
            ranks = spearmanr(list(found), list(found.values())).statistic if found else None
            row += [
                number(ranks, 2),
                f"{number(min(found.values()), 0)} to {number(max(found.values()), 0)}" if found else "-",
            ]
        rows.append(row)
    columns = [Column(text) for agent in agents for text in (f"{label(agent)}: rank correlation", "achieved, returns")]
    return Table("", [*words("set"), *columns], rows)


def achieved(cells: Sequence[Cell]) -> dict[float, float]:
    """Asked return -> the mean over seeds of what was achieved."""
    asked = [score.target_return for score in cells[0].sweep] if cells else []
    return {
        target: fmean(score.return_mean for cell in cells for score in cell.sweep if score.target_return == target)
        for target in asked
        if target is not None
    }


def cost(cells: Sequence[Cell], machines: Mapping[str, str]) -> Table:
    """A row a machine and agent: an update, an action early and late, the state late.

    Args:
        cells: the runs.
        machines: what each run was trained and timed on.
    """
    rows = []
    for machine, agent in product(sorted(set(machines.values())), agents_of(cells)):
        if runs := [cell for cell in cells if cell.agent == agent and machines[cell.run] == machine]:
            steps = costs(runs)
            sizes = [run.action_cost[-1].state_bytes for run in runs]
            rows.append(
                [
                    machine,
                    label(agent),
                    str(len(runs)),
                    number(1000 * median(run.seconds_per_update for run in runs), 0),
                    " to ".join(number(steps[step][0], 0) for step in ends_of(steps)),
                    " to ".join(dict.fromkeys(memory(size) for size in (min(sizes), max(sizes)))),
                ]
            )
    names = ("runs", "ms an update", "µs an action, step 10 to the last", "state")
    return Table("", [*words("trained on", "agent"), *map(Column, names)], rows)
