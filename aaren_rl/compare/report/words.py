"""A comparison in words: names, numbers with their units, and the answer in a sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from ...policies.names import DATA, label
from ..cells import Cell
from ..statistics import Aggregate, Estimate, Pair, Summary, aggregate, group, improvements, summarize

NOTHING = "-"


def agents_of(cells: Sequence[Cell]) -> list[str]:
    """The agents, the package's own first."""
    return list(dict.fromkeys(agent for by_agent in group(cells).values() for agent in by_agent))


def number(value: float | None, digits: int = 1) -> str:
    """A number with thousands set apart; "-" for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def interval(estimate: Estimate, digits: int = 1) -> str:
    """Value [low, high]; the value alone where there is no interval."""
    value = number(estimate.value, digits)
    if estimate.interval is None:
        return value
    return f"{value} [{', '.join(number(end, digits) for end in estimate.interval)}]"


def listed(items: Iterable[object]) -> str:
    """Items between commas."""
    return ", ".join(map(str, items))


def joined(items: Sequence[str]) -> str:
    """Items as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def microseconds(value: float) -> str:
    """A time of an action: always in the same unit, so that early and late can be compared at a glance."""
    return f"{value:,.0f} µs"


def path(text: str) -> str:
    """A path without the name of the user whose folder it lies in, here or elsewhere: a report is shown to others."""
    return re.sub(rf"^({re.escape(os.path.expanduser('~'))}|/home/[^/]+|/Users/[^/]+|/root)(?=/|$)", "~", text)


def memory(count: float) -> str:
    """Bytes, in kB (1,000) from there on."""
    return f"{count:,.0f} bytes" if count < 1000 else f"{count / 1000:,.1f} kB"


def data_notes(cells: Sequence[Cell]) -> list[str]:
    """For every task whose data are not D4RL's file, a sentence that says so."""
    sources = {cell.env: cell.last.source for cell in cells}
    return [
        f"{env}: {DATA[source]}; its scores are not D4RL results."
        for env, source in sources.items()
        if source != "d4rl"
    ]


def data_returns(cells: Sequence[Cell]) -> list[str]:
    """For every task whose data's returns are known, a line of what they return and score."""
    lines = {env: [cell.last.data() for cell in cells if cell.env == env] for env in group(cells)}
    found = {env: next(filter(None, of_runs), None) for env, of_runs in lines.items()}
    return [f"{env}, {line}" for env, line in found.items() if line is not None]


def costs(runs: Sequence[Cell]) -> dict[int, tuple[float, float]]:
    """Step -> (microseconds, bytes of state), medians over the runs that were measured there."""
    measured = [cost for cell in runs for cost in cell.action_cost]
    return {
        step: (
            median(cost.microseconds for cost in measured if cost.step == step),
            median(cost.state_bytes for cost in measured if cost.step == step),
        )
        for step in sorted({cost.step for cost in measured})
    }


def ends_of(steps: Collection[int]) -> list[int]:
    """The first and the last step, which may be one, or none."""
    return sorted({min(steps), max(steps)}) if steps else []


def answer(cells: Sequence[Cell]) -> str:
    """The comparison in two sentences: scores and what tells them apart; the cost of an action early and late."""
    sentences = ["; ".join([*_scores(cells), *_improvement(cells)]), *_action(cells)]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _scores(cells: Sequence[Cell]) -> list[str]:
    over = aggregate(cells)
    if over and set(over[0].envs) == {cell.env for cell in cells}:
        data = joined(list(dict.fromkeys(DATA[cell.last.source] for cell in cells)))
        first, *others = over
        scores = joined([f"{label(first.agent)} scores {interval(first.mean)}", *map(_named_mean, others)])
        return [f"on average over {len(first.envs)} tasks ({data}), {scores}"]
    summaries = summarize(cells)
    sources = {cell.env: cell.last.source for cell in cells}
    return [_task_scores(env, sources[env], [s for s in summaries if s.env == env]) for env in sources]


def _named_mean(result: Aggregate | Summary) -> str:
    return f"{label(result.agent)} {interval(result.mean)}"


def _task_scores(env: str, source: str, summaries: Sequence[Summary]) -> str:
    verb = "scores" if all(s.normalized for s in summaries) else "returns"
    first, *others = summaries
    scores = joined([f"{label(first.agent)} {verb} {interval(first.mean)}", *map(_named_mean, others)])
    counts = dict.fromkeys(len(s.seeds) for s in summaries)
    seeds = f"{joined(list(map(str, counts)))} training {'seed' if list(counts) == [1] else 'seeds'}"
    return f"on {env} ({DATA[source]}), {scores} ({seeds})"


def _improvement(cells: Sequence[Cell]) -> list[str]:
    found = improvements(cells)
    several = any(i.env is None for i in found)
    return [
        f"the probability that a run of {label(i.first)} scores above one of {label(i.second)} is "
        f"{interval(i.estimate, 2)}, {_verdict(i)}"
        for i in found
        if (i.env is None) == several
    ]


def _verdict(found: Pair) -> str:
    """Which of two agents scores higher, where the interval leaves one side of 0.5 out."""
    if found.estimate.interval is None:
        return "from too few runs for an interval"
    low, high = found.estimate.interval
    if low <= 0.5 <= high:
        return "which does not tell them apart"
    return f"so {label(found.first if low > 0.5 else found.second)} scores higher"


def _action(cells: Sequence[Cell]) -> list[str]:
    env, by_agent = next(iter(group(cells).items()))
    found: Mapping[str, dict[int, tuple[float, float]]] = {agent: costs(runs) for agent, runs in by_agent.items()}
    parts = [f"{label(agent)} {_early_and_late(cost)}" for agent, cost in found.items() if cost]
    return [f"an action on {env} costs {joined(parts)}"] if parts else []


def _early_and_late(cost: Mapping[int, tuple[float, float]]) -> str:
    return joined([f"{microseconds(cost[step][0])} at step {step:,}" for step in ends_of(cost)])
