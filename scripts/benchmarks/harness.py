"""Shared by the benchmarks: tests against references, timing in turns, tables."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import median
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from aaren_rl.agents import Policy
from aaren_rl.base.errors import NumericsError
from aaren_rl.cli import aligned
from aaren_rl.policies.table import AGENTS

# Agents whose actions are those of the model in parallel; the tree's are approximate.
COMPARABLE = [name for name, agent in AGENTS.items() if agent.mixer != "tree"]
Figures: TypeAlias = dict[str, Any]  # measurements of a benchmark, as in its JSON
Work: TypeAlias = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
CPU = torch.device("cpu")
WRONG = "no figures are printed for a wrong result"


def require(what: str, difference: float, allowed: float) -> float:
    """Return a difference from a reference. Raises NumericsError about `what` if it is above `allowed` or NaN."""
    if not difference <= allowed:
        raise NumericsError(f"{what} by {difference:.2g} (more than {allowed:g}); {WRONG}")
    return difference


def seconds(work: Work, device: torch.device) -> float:
    """The time of one call, until the device has finished it, without the garbage collector of Python."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    gc.disable()
    try:
        began = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - began
    finally:
        gc.enable()


def in_turns(
    works: Mapping[Name, Work], *, repeats: int, device: torch.device, untimed: int = 0
) -> dict[Name, list[float]]:
    """Seconds of every call. Each function runs once per round, after a warm-up call, so that conditions are equal.

    Every other round runs in reverse order, so that a drift of the machine speed cancels. `untimed` calls precede every
    timed one, since another function has filled the processor caches with its own data.
    """
    times: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    order = list(works.items())
    for turn in range(repeats):
        for name, work in order[::-1] if turn % 2 else order:
            for _ in range(untimed):
                work()
            times[name].append(seconds(work, device))
    return times


def ratio(figures: list[float], others: list[float]) -> float:
    """The median over rounds of the ratio of two times. Times of one round see the same machine speed."""
    return median(a / b for a, b in zip(figures, others, strict=True))


@torch.no_grad()
def parallel_actions(policy: Policy, observations: Tensor, actions: Tensor, returns_to_go: Tensor) -> Tensor:
    """The reference for a policy that acts step by step: its model in float64, in parallel over an episode.

    Takes observations (T, O), executed actions (T, A) and returns-to-go (T,) in units of the environment. Returns the
    expected actions (T, A) of its rollout mode.
    """
    exact, steps, context = copy.deepcopy(policy.model).double(), len(actions), policy.context_length
    half = context // 2
    normalized = (observations.double() - policy.observation_mean) / policy.observation_std
    tokens = normalized, actions.double(), returns_to_go.double() / policy.return_scale, torch.arange(steps)
    # For every step, the first step that its action depends on.
    begins = [
        {"recurrent": 0, "staggered": max(0, t // half - 1) * half, "window": max(0, t + 1 - context)}[policy.rollout]
        for t in range(steps)
    ]
    found = []
    for first in sorted(set(begins)):
        at = [t for t in range(steps) if begins[t] == first]
        found.append(exact(*(part[None, first : at[-1] + 1] for part in tokens))[0][0, [t - first for t in at]])
    return torch.cat(found)


def table(head: str, form: str, rows: Iterable[Figures]) -> list[str]:
    """The lines of a table. A | separates columns in its head and in the format of a row."""
    return aligned([head.split("|"), *(form.format(**row).split("|") for row in rows)])
