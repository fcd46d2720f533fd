"""A comparison in words: numbers with their units, and the answer in a sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from ...policies.names import DATA, label
from ..cells import Cell
from ..statistics import Aggregate, Estimate, Pair, Summary, aggregate, group, improvements, summarize

NOTHING = "-"


def number(value: float | None, digits: int = 1) -> str:
    """A number with thousands set apart; "-" for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def interval(estimate: Estimate | None, digits: int = 1) -> str:
    """Value [low, high]; the value alone where there is no interval."""
    value = number(None if estimate is None else estimate.value, digits)
    if estimate is None or estimate.interval is None:
        return value
    return f"{value} [{', '.join(number(end, digits) for end in estimate.interval)}]"


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


def answer(cells: Sequence[Cell]) -> str:
    """The comparison in two sentences: scores and what tells them apart; the cost of an action early and late."""
    found = improvements(cells)
    several = any(pair.env is None for pair in found)
    told = [*_scores(cells), *(_improvement(pair) for pair in found if (pair.env is None) == several)]
    env, by_agent = next(iter(group(cells).items()))
    parts = [f"{label(agent)} {early_and_late(cost)[0]}" for agent, runs in by_agent.items() if (cost := costs(runs))]
    sentences = ["; ".join(told), *([f"an action on {env} costs {joined(parts)}"] if parts else [])]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _scores(cells: Sequence[Cell]) -> list[str]:
    over = aggregate(cells)
    sources = {cell.env: cell.last.source for cell in cells}
    if over and set(over[0].envs) == set(sources):
        data = joined(list(dict.fromkeys(DATA[source] for source in sources.values())))
        return [f"on average over {len(sources)} tasks ({data}), {_means(over, 'scores')}"]
    told = []
    for env, source in sources.items():
        of_task = [s for s in summarize(cells) if s.env == env]
        means = _means(of_task, "scores" if all(s.normalized for s in of_task) else "returns")
        counts = joined(list(dict.fromkeys(str(len(s.seeds)) for s in of_task)))
        seeds = f"{counts} training {'seed' if counts == '1' else 'seeds'}"
        told.append(f"on {env} ({DATA[source]}), {means} ({seeds})")
    return told


def _means(results: Sequence[Aggregate | Summary], verb: str) -> str:
    first, *others = [(label(result.agent), interval(result.mean)) for result in results]
    return joined([f"{first[0]} {verb} {first[1]}", *(f"{agent} {mean}" for agent, mean in others)])


def _improvement(pair: Pair) -> str:
    if pair.estimate.interval is None:
        verdict = "from too few runs for an interval"
    elif pair.estimate.interval[0] <= 0.5 <= pair.estimate.interval[1]:
        verdict = "which does not tell them apart"
    else:
        verdict = f"so {label(pair.first if pair.estimate.interval[0] > 0.5 else pair.second)} scores higher"
    compared = f"that a run of {label(pair.first)} scores above one of {label(pair.second)}"
    return f"the probability {compared} is {interval(pair.estimate, 2)}, {verdict}"
