"""The benchmark "scan": the prefix scan, forward and backward, against its length and method.

Outputs and gradients of every method are first tested against softmax attention in float64.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from aaren_rl.agents import kernels, prefix_scan
from aaren_rl.agents.scan.parallel import PARALLEL
from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import COUNT
from aaren_rl.cli import Parser, choose_device
from aaren_rl.train.trainer import keep_freed_memory

from .harness import Figures, Work, in_turns, ratio, require, table
from .machine import device_name
from .plots import logarithmic

METHODS = (*kernels.TYPES, *PARALLEL)
ATTENTION = "attention"  # replaced by the scan; quadratic in the length
LENGTHS = (1024, 2048, 4096, 8192)
REPEATS = 11
CHECKED_LENGTH, TOLERANCE = 1025, 1e-5

HELP = "time of the prefix scan against length and method"
DESCRIPTION = """\
Times the prefix scan, forward and forward with backward, in turns with one copy of its values (into new memory, like
the outputs of the scan) and with causal scaled_dot_product_attention; medians. The share compares the bytes per second
that the forward pass must read and write (scores and values in, outputs out) with those of a copy into allocated
memory."""
EPILOG = """\
example:
  scripts/bench scan --lengths 1024 4096 8192 --json scan.json --plot scan.png"""


def check(method: str, device: torch.device, length: int = CHECKED_LENGTH) -> float:
    """The largest (relative) difference of outputs and gradients from float64; NumericsError above 1e-5 or NaN."""
    scores, values, up = (x.to(device) for x in _inputs((2,), length, 8, torch.device("cpu")))
    scores = 3 * scores
    results = []
    for exact in (False, True):
        leaves = [(x.double() if exact else x).detach().requires_grad_() for x in (scores, values)]
        outputs = _softmax(*leaves) if exact else _apply(method, *leaves)
        results.append((outputs, *torch.autograd.grad(outputs, leaves, up.to(outputs.dtype))))
    differences = []
    for mine, true in zip(*([x.detach() for x in result] for result in results), strict=True):
        scale = max(1.0, float(true.abs().max()))
        differences.append(float((mine.double() - true).abs().max()) / scale)
    largest = float(torch.tensor(differences).max())  # of a NaN, NaN
    return require(f"the scan by {method} differs from the float64 reference", largest, TOLERANCE)


def measure(arguments: argparse.Namespace) -> Figures:
    """Time every method at every length, in turns with copies of the values.

    Raises UsageError if the package of a method or the device is missing, NumericsError if a method is wrong.
    """
    device = choose_device(arguments.device)
    keep_freed_memory()  # as in training
    methods = arguments.methods
    if methods is None:
        methods = list(dict.fromkeys((kernels.choose(*[torch.empty(0, device=device)] * 2), "blocked", ATTENTION)))
    for method in (method for method in methods if method in kernels.TYPES):
        if method == "numba" and device.type != "cpu":
            raise UsageError("--methods numba: its kernel is for CPUs; add --device cpu")
        if method == "triton" and device.type != "cuda":
            raise UsageError("--methods triton: its kernel is for CUDA devices; leave it out")
        try:
            kernels.load(f"scan_{method}")
        except ImportError as error:
            raise UsageError(f"--methods {method}: {error}; pip install {method}") from error
    batch, heads, dim = arguments.batch, arguments.heads, arguments.dim
    differences = {method: check(method, device) for method in methods if method != ATTENTION}
    timings, bandwidth = [], 0.0
    for length in sorted(arguments.lengths):
        scores, values, up = _inputs((batch, heads), length, dim, device)
        there = torch.empty_like(values)
        works: dict[str, Work] = {"copy": values.clone, "in place": partial(there.copy_, values)}
        for method in methods:
            works[method] = partial(_apply, method, scores, values)
            works[f"{method} both"] = _both(method, scores, values, up)
        times = in_turns(works, repeats=arguments.repeats, device=device)
        bandwidth = 2 * values.nbytes / median(times["in place"])  # bytes per second, read and written
        floor = (2 * values.nbytes + scores.nbytes) / bandwidth
        for name in ("copy", *methods):
            both = times.get(f"{name} both")
            timings.append(
                {
                    "length": length,
                    "method": name,
                    "forward_ms": median(times[name]) * 1e3,
                    "both_ms": None if both is None else median(both) * 1e3,
                    "forward_copies": ratio(times[name], times["copy"]),
                    "both_copies": None if both is None else ratio(both, times["copy"]),
                    "bandwidth_share": None if name == ATTENTION else floor / median(times[name]),
                }
            )
    sizes = {"batch": batch, "heads": heads, "dim": dim, "device": device_name(device)}
    return {**sizes, "timings": timings, "bandwidth": bandwidth, "checked_difference": differences}


def _inputs(batch: tuple[int, ...], length: int, dim: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(length)
    shapes = ((*batch, length), (*batch, length, dim), (*batch, length, dim))
    return [torch.randn(shape, generator=generator, device=device) for shape in shapes]


def _softmax(scores: Tensor, values: Tensor) -> Tensor:
    later = torch.ones(2 * scores.shape[-1:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.unsqueeze(-2).masked_fill(later, -torch.inf).softmax(-1) @ values


def _apply(method: str, scores: Tensor, values: Tensor) -> Tensor:
    if method == ATTENTION:
        return F.scaled_dot_product_attention(values, values, values, is_causal=True)
    return prefix_scan(scores, values, method=method)[0]


def _both(method: str, scores: Tensor, values: Tensor, up: Tensor) -> Work:
    leaves = [leaf.detach().requires_grad_() for leaf in (scores, values)]
    used = leaves[1:] if method == ATTENTION else leaves
    return lambda: torch.autograd.grad(_apply(method, *leaves), used, up)


def show(figures: Figures) -> list[str]:
    """A table of times."""
    checked = ", ".join(f"{method} {value:.0e}" for method, value in figures["checked_difference"].items())
    rows = []
    for t in figures["timings"]:
        share = "" if t["bandwidth_share"] is None else f"{t['bandwidth_share']:.0%}"
        both = "|" if t["both_ms"] is None else "{both_ms:.2f}|{both_copies:.1f}".format(**t)
        rows.append({**t, "share": share, "both": both})
    return [
        "{batch} x {heads} heads of {dim} channels, float32; memory bandwidth of a copy ".format(**figures)
        + f"{figures['bandwidth'] / 1e9:.1f} GB/s at the longest",
        f"checked against float64 over {CHECKED_LENGTH} positions: {checked}",
        *table(
            "  length  method|forward, ms|copies|bandwidth|with backward|copies",
            "{length:>8,}  {method}|{forward_ms:.2f}|{forward_copies:.1f}|{share}|{both}",
            rows,
        ),
    ]


def plot(figures: Figures) -> Figure:
    """Plot time against length on logarithmic axes: forward, and forward with backward."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    methods = list(dict.fromkeys(t["method"] for t in figures["timings"]))
    for axes, key, title in zip(
        figure.subplots(1, 2, sharey=True), ("forward_ms", "both_ms"), ("forward", "forward and backward"), strict=True
    ):
        for method in methods:
            points = [(t["length"], t[key]) for t in figures["timings"] if t["method"] == method and t[key] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", label=method, color=f"C{methods.index(method)}")
        axes.set(title=title, xlabel="positions N")
        logarithmic(axes)
    figure.axes[0].set_ylabel("ms")
    figure.axes[0].legend(fontsize="small")
    sizes = "{batch} x {heads} heads of {dim} channels, float32".format(**figures)
    figure.suptitle(f"Prefix scan, {sizes}, {figures['device']}", fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    methods = (*METHODS, ATTENTION)
    said = f"of {', '.join(methods)} (default: the kernel of the device, blocked, attention)"
    default = "(default: %(default)s)"
    parser.add_argument("--lengths", type=COUNT.integer, nargs="+", default=LENGTHS, metavar="N", help=default)
    parser.add_argument("--methods", nargs="+", choices=methods, metavar="NAME", help=said)
    parser.add_argument("--batch", type=COUNT.integer, default=8, help="sequences (default: %(default)s)")
    parser.add_argument("--heads", type=COUNT.integer, default=4, help="heads per sequence (default: %(default)s)")
    parser.add_argument("--dim", type=COUNT.integer, default=64, help="channels per head (default: %(default)s)")
    parser.add_argument("--repeats", type=COUNT.integer, default=REPEATS, help="runs, in turns (default: %(default)s)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_shared(register=False)
