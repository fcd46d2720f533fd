"""What the benchmark of training measures of an agent's updates: their time, steps and operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...train.trainer import Trainer
from ..timing import Work, in_turns, large_product, ratio
from .peers import Peer

Pair: TypeAlias = tuple[str, str]  # name and precision
PRODUCT = "product"  # among the names, with which the peak is measured
UNTIMED = 1  # updates before every timed one, after which the processor's caches are this agent's


@dataclass(frozen=True)
class Update:
    """Of one agent.

    Attributes:
        name: agent and training context, or the peer.
        precision: "float32" or "bfloat16".
        milliseconds: of an update, median.
        steps: environment steps of an update, mean; padding is none.
        gflop: its matrix products, forward and backward, mean.
        peak_share: their rate over that of a large product in the same round, median.
        ratio: time a step over that of decision-aaren on windows, median over the rounds.
    """

    name: str
    precision: str
    milliseconds: float
    steps: float
    gflop: float
    peak_share: float
    ratio: float


@dataclass(frozen=True)
class Peak:
    """Of large products in a precision, in turns with the updates.

    Attributes:
        precision: "float32" or "bfloat16".
        gflops: GFLOP/s, median.
        best: the fastest.
    """

    precision: str
    gflops: float
    best: float


class Measured:
    """An update that notes its environment steps, those of padding left out, and its matrix products.

    Args:
        model: what is updated.
        counted: the same in a form that torch's counter of operations can see into, where `model` is compiled.
    """

    def __init__(self, model: Trainer | Peer, counted: Measured | None = None) -> None:
        """Nothing is noted yet."""
        self.model, self.counted = model, counted or self
        self._masks: list[Tensor] = []

    def update(self) -> None:
        """One update."""
        self.model.step()
        self._masks.append(self.model.mask.clone())  # the next update's may lie there

    def timed(self) -> list[Tensor]:
        """The masks of the updates that `in_turns` timed: it begins with a call, and makes UNTIMED before each."""
        return self._masks[1 + UNTIMED :: 1 + UNTIMED]

    def operations(self) -> float:
        """Floating-point operations a step, padding too, of an update's matrix products, as torch counts them."""
        with FlopCounterMode(display=False) as counter:
            self.counted.model.step()
        return float(counter.get_total_flops() / self.counted.model.mask.numel())


def measure(
    works: Mapping[Pair, Measured], base: Pair, *, repeats: int, device: torch.device
) -> tuple[list[Update], list[Peak], dict[Pair, list[float]]]:
    """Every work's figures beside those of `base`, the products' of every precision, and every work's seconds."""
    products = {precision: large_product(getattr(torch, precision), device) for _, precision in works}
    calls: dict[Pair, Work] = {pair: work.update for pair, work in works.items()}
    calls |= {(PRODUCT, precision): work for precision, (work, _) in products.items()}
    times = in_turns(calls, repeats=repeats, device=device, untimed=UNTIMED)
    rates = {p: [operations / seconds for seconds in times[PRODUCT, p]] for p, (_, operations) in products.items()}
    peaks = [Peak(p, median(found) / 1e9, max(found) / 1e9) for p, found in rates.items()]
    return tabulate(times, rates, works, base), peaks, times


def tabulate(
    times: Mapping[Pair, list[float]], peaks: Mapping[str, list[float]], works: Mapping[Pair, Measured], base: Pair
) -> list[Update]:
    """The figures from the rounds' seconds, by name and precision, and peaks, by precision."""
    masks = {pair: work.timed() for pair, work in works.items()}
    a_step = {
        pair: [seconds / int(mask.sum()) for seconds, mask in zip(times[pair], found, strict=True)]
        for pair, found in masks.items()
    }
    updates = []
    for pair, found in masks.items():
        name, precision = pair
        operations = works[pair].operations()
        rates = [operations * mask.numel() / seconds for seconds, mask in zip(times[pair], found, strict=True)]
        updates.append(
            Update(
                name,
                precision,
                milliseconds=median(times[pair]) * 1e3,
                steps=mean(int(mask.sum()) for mask in found),
                gflop=operations * mean(mask.numel() for mask in found) / 1e9,
                peak_share=ratio(rates, peaks[precision]),
                ratio=ratio(a_step[pair], a_step[base]),
            )
        )
    return updates
