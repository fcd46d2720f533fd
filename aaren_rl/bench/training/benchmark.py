"""The benchmark "train": time of an update beside other packages, and its share of the machine's matmul peak.

A loss and its gradients are first held against those of the tokens taken one by one in float64.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure

from ...cli import Parser, choose_device, positive
from ...machine import Machine, device_name
from ...train.acceleration import keep_freed_memory, uses_bfloat16
from ...train.contexts.batches import StepData
from ...train.settings import Nested, build_config, load_preset
from ...train.trainer import Trainer
from ..timing import parse_size, ratio
from .data import RETURN_SCALE, TASK, make_episodes
from .gradients import check_gradients
from .peers import PEERS, make_peers
from .updates import Measured, Peak, Update, measure

SIZES = ("128x3", "512x4")
STEPS = 100_000  # of the data set, random numbers of Hopper's size
REPEATS = 7
BASE = "decision-aaren, window"  # what the contexts are compared with, and the peers

HELP = "time of an update beside other packages, share of the matmul peak"
DESCRIPTION = """\
Times one update (draw a batch, forward, backward, clip, optimiser, moving average) of this package's agents, and the
same of transformers' and TorchRL's Decision Transformers at the same width, layers, heads, batch and context; medians,
in turns, each after one update that is not timed. The peers' batches are drawn beforehand. Everything runs in bfloat16
autocast where the processor has it, and the peers in float32 as well, which is what they do unasked. "A step" is the
time of an environment step, padding left out, over that of this package's first line. The share is the rate of the
update's own matrix products over that of a product of 2048 x 2048 matrices in the same precision and round."""
EPILOG = """\
example:
  pip install 'aaren-rl[bench]'       # the peers; without them this package is timed alone
  python -m aaren_rl.bench train --threads 2 --json train.json --plot train.png"""


@dataclass(frozen=True)
class SizeResult:
    """Of one size of network.

    Attributes:
        width: channels.
        layers: blocks.
        heads: of every mixer.
        updates: by agent.
        peaks: of large matrix products, by precision.
        fastest_peer_ratio: time of decision-aaren on windows over that of the fastest peer, all in the same best
            precision; None without peers.
        fastest_peer_float32_ratio: over that of the fastest peer in float32, as peers run unasked.
        checked_difference: by precision, the largest difference of a gradient from the float64 reference.
    """

    width: int
    layers: int
    heads: int
    updates: list[Update]
    peaks: list[Peak]
    fastest_peer_ratio: float | None
    fastest_peer_float32_ratio: float | None
    checked_difference: dict[str, float]


@dataclass(frozen=True)
class TrainResult:
    """The outcome of `run`.

    Attributes:
        batch: windows of an update.
        context_length: K, steps of a window.
        sizes: by size of network.
        notes: peers that were left out, and why.
        machine: what it ran on.
        device: cpu or the GPU's name.
    """

    batch: int
    context_length: int
    sizes: list[SizeResult]
    notes: list[str]
    machine: Machine
    device: str


def measure_size(
    width: int,
    layers: int,
    heads: int,
    *,
    batch: int,
    context_length: int,
    repeats: int,
    data: StepData,
    compiled: bool = False,
) -> tuple[SizeResult, list[str]]:
    """Times the agents and the peers at one size; also the peers that are missing.

    Raises:
        NumericsError: the gradients are wrong.
        UsageError: `heads` does not divide `width`.
    """
    asked = {"width": width, "layers": layers, "heads": heads}

    def trainer(agent: str, context: str, precision: str, *, compiled: bool = False) -> Trainer:
        contexts = {"context": context, "context_length": context_length, "steps_per_update": batch * context_length}
        tokens = build_config(agent, 0, load_preset("default", agent)).network.tokens_per_step
        network = asked | {"tokens_per_step": tokens}
        sections: Nested = {"data": contexts, "network": network, "optimizer": {"precision": precision}}
        return Trainer(build_config(agent, 0, sections), data, TASK.action_dim, TASK.horizon, compiled=compiled)

    plain = trainer("decision-aaren", "window", "float32")
    native = uses_bfloat16(trainer("decision-aaren", "window", "auto").config.optimizer, data.device)
    precisions = ("bfloat16", "float32") if native else ("float32",)
    best = precisions[0]
    differences = check_gradients(plain.config, data, precisions)
    works = {(BASE, best): Measured(trainer("decision-aaren", "window", best))}
    for agent, context in (("aaren", "episode"), ("aaren", "mixed"), ("transformer", "window")):
        works[f"decision-{agent}, {context}", best] = Measured(trainer(f"decision-{agent}", context, best))
    for agent in ("aaren", "transformer") if compiled else ():
        name = f"decision-{agent}, window"
        faster = trainer(f"decision-{agent}", "window", best, compiled=True)
        works[f"{name}, compiled", best] = Measured(faster, works[name, best])
    works.setdefault((BASE, "float32"), Measured(plain))
    batches = [plain.sampler.sample(plain.generator) for _ in range(4)]
    dims = {"observation_dim": TASK.observation_dim, "action_dim": TASK.action_dim}
    made, notes = make_peers({**asked, **dims}, TASK.horizon, batches, precisions, data.device)
    peers = {pair: Measured(peer) for pair, peer in made.items()}
    works |= peers
    updates, peaks, times = measure(works, (BASE, best), repeats=repeats, device=data.device)

    def fastest(precision: str) -> float | None:
        own = times[BASE, best]
        return max((ratio(own, times[pair]) for pair in peers if pair[1] == precision), default=None)

    return SizeResult(width, layers, heads, updates, peaks, fastest(best), fastest("float32"), differences), notes


def format_train(result: TrainResult) -> str:
    """A table a size under the machine's description."""
    lines = [
        str(result.machine) + ("" if result.device == "cpu" else f"; {result.device}"),
        f"batch {result.batch}, {result.context_length} steps",
        *result.notes,
    ]
    for size in result.sizes:
        checked = ", ".join(f"{precision} {value:.0e}" for precision, value in size.checked_difference.items())
        peaks = ", ".join(f"{p.precision} {p.gflops:,.0f} GFLOP/s (best {p.best:,.0f})" for p in size.peaks)
        lines += [
            f"\nwidth {size.width}, layers {size.layers}, heads {size.heads}",
            f"gradients checked against float64: {checked}",
            f"peak, large matrix products: {peaks}",
            f"{'':<40}{'precision':>10}{'update, ms':>12}{'steps':>7}{'a step':>8}{'GFLOP':>8}{'of peak':>9}",
        ]
        lines += [
            f"{u.name:<40}{u.precision:>10}{u.milliseconds:>12.1f}{u.steps:>7.0f}{u.ratio:>8.2f}{u.gflop:>8.1f}"
            f"{u.peak_share:>9.0%}"
            for u in size.updates
        ]
        if size.fastest_peer_ratio is not None:
            lines.append(
                f"{BASE} takes {size.fastest_peer_ratio:.2f} of the fastest peer's time in the same precision, "
                f"{size.fastest_peer_float32_ratio:.2f} of the fastest's in float32"
            )
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> Figure:
    """A bar an agent and precision, a panel a size."""
    figure = Figure(figsize=(9, 0.8 + 2.6 * len(figures["sizes"])), layout="constrained")
    panels = figure.subplots(len(figures["sizes"]), 1, squeeze=False)[:, 0]
    for axes, size in zip(panels, figures["sizes"], strict=True):
        updates = size["updates"][::-1]
        colours = ["#999999" if u["name"] in PEERS else "#0072B2" for u in updates]
        bars = axes.barh(
            [f"{u['name']}, {u['precision']}" for u in updates], [u["milliseconds"] for u in updates], color=colours
        )
        axes.bar_label(bars, [f"{u['milliseconds']:.0f} ms, {u['peak_share']:.0%} of peak" for u in updates], padding=3)
        axes.set_xlim(0, 1.6 * max(u["milliseconds"] for u in updates))
        axes.set(title="width {width}, layers {layers}, heads {heads}".format(**size), xlabel="ms an update")
    return figure


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument(
        "--sizes", nargs="+", default=SIZES, metavar="WxL", help="width x layers (default: %(default)s)"
    )
    parser.add_argument("--heads", type=positive, default=4, help="heads of a mixer (default: %(default)s)")
    parser.add_argument("--batch", type=positive, default=64, help="windows of an update (default: %(default)s)")
    parser.add_argument("--context-length", type=positive, default=20, help="K, steps (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=REPEATS, help="of each, in turns (default: %(default)s)")
    parser.add_argument("--compile", action="store_true", help="this package's agents through torch.compile as well")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: a size that cannot be, or no such device.
        NumericsError: the gradients are wrong.
    """
    device = choose_device(arguments.device)
    keep_freed_memory()  # as a training does
    pairs = [parse_size(text) for text in arguments.sizes]
    data = StepData(make_episodes(STEPS), RETURN_SCALE, device)
    how = {"batch": arguments.batch, "context_length": arguments.context_length, "repeats": arguments.repeats}
    how |= {"compiled": arguments.compile}
    measured = [measure_size(width, layers, arguments.heads, data=data, **how) for width, layers in pairs]
    notes = list(dict.fromkeys(note for _, notes in measured for note in notes))
    sizes = [size for size, _ in measured]
    result = TrainResult(arguments.batch, arguments.context_length, sizes, notes, Machine.here(), device_name(device))
    return format_train(result), asdict(result)
