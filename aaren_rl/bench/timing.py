"""What the benchmarks share: the check before the figures, timing in turns, the machine's limits, sizes, pictures."""

from __future__ import annotations

import argparse
import gc
import io
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from matplotlib.figure import Figure

from ..cli import Parser, positive
from ..envs.files import write_whole
from ..errors import NumericsError, UsageError

Work = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
CPU = torch.device("cpu")
PEAK_SIZE = 2048  # rows and columns of the product that measures the peak
COLOURS = {"decision-aaren": "#0072B2", "decision-transformer": "#D55E00"}  # of the report's figures
FEWEST = 3  # repeats of everything, whatever it takes
WRONG = "no figures are given for a result that is wrong"


def require(what: str, difference: float, allowed: float) -> float:
    """Hands a difference from a reference back; `what` says of which result it is.

    Raises:
        NumericsError: it is above what is allowed, or not a number.
    """
    if not difference <= allowed:
        raise NumericsError(f"{what} by {difference:.2g} (more than {allowed:g}); {WRONG}")
    return difference


def seconds(work: Work, device: torch.device) -> float:
    """The time of one call, until the device has finished it."""
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def in_turns(
    works: Mapping[Name, Work],
    *,
    repeats: int,
    device: torch.device,
    budget: float = 20.0,
    untimed: int = 0,
    to_and_fro: bool = False,
) -> dict[Name, list[float]]:
    """Seconds of every call: each work once a round, after a call that warms up, so that all see the same machine.

    Args:
        works: what to call, by name.
        repeats: rounds.
        device: what the calls run on.
        budget: seconds after which a work that was called three times is left out of further rounds.
        untimed: calls before the timed one in every round, where a work is one of many that follow each other: after
            another work the processor's caches hold nothing of it.
        to_and_fro: every other round begins with the last work, so that a drift of the machine's speed cancels.
    """
    times: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    order = list(works.items())
    for turn in range(repeats):
        for name, work in order[::-1] if to_and_fro and turn % 2 else order:
            if len(times[name]) < FEWEST or sum(times[name]) < budget:
                for _ in range(untimed):
                    work()
                times[name].append(seconds(work, device))
    return times


@contextmanager
def without_collection() -> Iterator[None]:
    """Python's collector of garbage rests in the body: it would come in the midst of what is timed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ratio(figures: list[float], others: list[float]) -> float:
    """The median over the rounds that both took part in of one figure, a time or a rate, over the other.

    Of neighbours in time, on which a change of the machine's speed falls alike.
    """
    return median(a / b for a, b in zip(figures, others, strict=False))


def large_product(dtype: torch.dtype, device: torch.device) -> tuple[Work, int]:
    """A product of square matrices, whose rate is the machine's peak, and its floating-point operations."""
    a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b, 2 * PEAK_SIZE**3


def add_model_size(parser: Parser) -> None:
    """The options --width, --layers and --heads; `model_size` reads them."""
    parser.add_argument("--width", type=positive, default=128, help="channels of a token (default: %(default)s)")
    parser.add_argument("--layers", type=positive, default=3, help="number of blocks (default: %(default)s)")
    parser.add_argument("--heads", type=positive, default=4, help="heads of a mixer (default: %(default)s)")


def model_size(arguments: argparse.Namespace) -> dict[str, int]:
    """Width, layers and heads, by these names."""
    return {name: getattr(arguments, name) for name in ("width", "layers", "heads")}


def parse_size(text: str) -> tuple[int, int]:
    """Width and layers of a size such as 128x3.

    Raises:
        UsageError: it is none.
    """
    width, _, layers = text.partition("x")
    if not (width.isdigit() and layers.isdigit()):
        raise UsageError(f"--sizes {text}: not WIDTHxLAYERS, for example 128x3")
    return int(width), int(layers)


def check_plot(path: Path) -> None:
    """Raises UsageError if matplotlib has no format of the file's ending."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in Figure().canvas.get_supported_filetypes():
        raise UsageError(f"--plot {path}: cannot draw a {ending or 'file without an ending'}; use .png, .svg or .pdf")


def save_plot(figure: Figure, path: Path) -> None:
    """Writes the picture, in the format of the file's ending, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lstrip(".").lower(), dpi=150)
    write_whole(path, drawn.getvalue())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
