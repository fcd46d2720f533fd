"""The sentences of docs/table1.md, of the results that scripts/table1_local wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from table1_tables import OURS, THEIRS, is_pair

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.imitation import imitation_difference_over_tasks, imitation_differences
from aaren_rl.compare.report.words import interval, listed
from aaren_rl.compare.statistics import differences
from aaren_rl.policies.names import label
from aaren_rl.sweep.grid import Grid

MIN_SETS = 3  # of which one is left out
DRAWN_ANEW = "2"  # the recipe of the local sets before actions were the same on every processor


def made(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Run -> how it was made."""
    return {run: how for of_set in settings.values() for run, how in of_set["made"].items()}


def answer(cells: Sequence[Cell]) -> str:
    """What a reader came for."""
    by_env = {d.env: d for d in differences(cells) if is_pair(d)}
    sets = [env for env in by_env if env is not None]
    if not sets:
        return f"No set has runs of {label(OURS)} and of {label(THEIRS)} yet."
    over = f"on {sets[0]}" if len(sets) == 1 else f"on average over {len(sets)} sets"
    score = by_env[sets[0] if len(sets) == 1 else None]
    error = imitation_difference_over_tasks(cells, OURS, THEIRS).difference
    return (
        f"**{label(OURS)}'s score less {label(THEIRS)}'s, {over}: {interval(score.difference)}; its held-out action "
        f"error less the other's: {interval(error, 4)}**, where below 0 is better. Of {score.runs[0]} and "
        f"{score.runs[1]} runs; scores have an interval where every set has three seeds."
    )


def single_sets(cells: Sequence[Cell]) -> str:
    """What a mean over sets hides: the set that decides the scores', and on how many the errors are lower or higher."""
    scores = {d.env: d.difference for d in differences(cells) if is_pair(d) and d.env is not None}
    if len(scores) < MIN_SETS:
        return ""
    most = max(scores, key=lambda env: abs(scores[env].value))
    others = differences([cell for cell in cells if cell.env in scores and cell.env != most])
    rest = next(d.difference for d in others if d.env is None and is_pair(d))
    ends = [d.difference.interval for d in imitation_differences(cells) if is_pair(d)]
    lower = sum(end is not None and end[1] < 0 for end in ends)
    higher = sum(end is not None and end[0] > 0 for end in ends)
    return (
        f"By set: scores differ most on {most}, by {interval(scores[most])}; on the others by "
        f"{interval(rest)} on average. The error is lower on {lower} sets and higher on {higher}, of {len(ends)}, "
        "by intervals without 0."
    )


def missing(cells: Sequence[Cell], grid: Grid) -> str:
    """Runs of the grid that are not there, sets that lack the same together."""
    there = {(cell.env, cell.agent, cell.seed) for cell in cells}
    lacking = {env: lacked(env, there, grid) for env in grid.envs}
    if not any(lacking.values()):
        return ""
    whole = sum(len(grid.seeds_of(agent)) for agent in grid.agents) * len(grid.envs)
    return "\n".join(
        [
            f"Of {whole} runs {len(there)} are here; a run takes from 3 to 20 minutes of a core. Not run yet:\n",
            *(
                f"* {listed([env for env in grid.envs if lacking[env] == what])}: {what}"
                for what in dict.fromkeys(filter(None, lacking.values()))
            ),
        ]
    )


def lacked(env: str, there: Set[tuple[str, str, int]], grid: Grid) -> str:
    """What a set lacks, in words; nothing where it is whole."""
    told = []
    for agent in grid.agents:
        seeds = [seed for seed in grid.seeds_of(agent) if (env, agent, seed) not in there]
        if len(seeds) == len(grid.seeds_of(agent)):
            told.append(label(agent))
        elif seeds:
            told.append(f"{label(agent)}, seed{'s' * (len(seeds) > 1)} {listed(seeds)}")
    return "; ".join(told)


def draws(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What seeds of a set differ in beside the seed; nothing where all had the same data."""
    recipes = Counter(how["recipe"] for how in made(settings).values())
    if not (first := recipes.pop(DRAWN_ANEW, 0)):
        return ""
    return (
        f"{first} runs are on sets of recipe {DRAWN_ANEW}, which every kind of processor drew anew, "
        f"{recipes.total()} on sets that are the same\nfiles everywhere. "
        f"So two seeds may differ in the draw of their data too; {label(OURS)} and {label(THEIRS)}\nof one seed do not."
    )


def precisions(cells: Sequence[Cell], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether what the two differ by depends on the precision; nothing where no two precisions have a set in common."""
    how = made(settings)
    pairs: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.agent in (OURS, THEIRS):
            pairs.setdefault(how[cell.run]["precision"], []).append(cell)
    having = [{d.env for d in imitation_differences(found) if is_pair(d)} for found in pairs.values()]
    if len(pairs) < 2 or not (shared := set.intersection(*having)):
        return ""
    told = []
    for precision, found in sorted(pairs.items()):
        on_shared = [cell for cell in found if cell.env in shared]
        error = imitation_difference_over_tasks(on_shared, OURS, THEIRS).difference
        told.append(f"{interval(error, 4)} in {precision}")
    over = "Over the one set that has" if len(shared) == 1 else f"Over the {len(shared)} sets that have"
    return (
        f"{over} runs of each, {label(OURS)}'s held-out error less {label(THEIRS)}'s is\n"
        f"{listed(told)}; the seeds are others."
    )
