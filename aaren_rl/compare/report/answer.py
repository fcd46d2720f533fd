"""The answer of a comparison, in two sentences."""

from collections.abc import Sequence

from ...policies.names import DATA, label
from ..cells import Cell
from ..statistics import Aggregate, Pair, Summary, agents_of, aggregate, group, improvements, summarize
from .tables import costs, digits_of, early_and_late, interval, joined


def answer(cells: Sequence[Cell]) -> str:
    """The comparison in two sentences: scores, of the first agent against each other one; the cost of an action."""
    found = [pair for pair in improvements(cells) if pair.first == agents_of(cells)[0]]
    several = any(pair.env is None for pair in found)
    told = [*_told(cells), *(_improvement(pair) for pair in found if (pair.env is None) == several)]
    env, by_agent = next(iter(group(cells).items()))
    parts = [f"{label(agent)} {early_and_late(cost)[0]}" for agent, runs in by_agent.items() if (cost := costs(runs))]
    sentences = ["; ".join(told), *([f"an action on {env} costs {joined(parts)}"] if parts else [])]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _told(cells: Sequence[Cell]) -> list[str]:
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
    first, *others = [(label(result.agent), interval(result.mean, digits_of(result))) for result in results]
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
