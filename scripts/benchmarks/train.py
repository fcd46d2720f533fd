"""The benchmark "train": time of a gradient step compared with other packages, and its share of the matmul peak.

A loss and its gradients are first tested against those in float64, token by token.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from aaren_rl.agents import DecisionModel
from aaren_rl.agents.model.decision import ACTED_ON
from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import COUNT
from aaren_rl.cli import Parser, choose_device
from aaren_rl.envs import Episodes, get_task
from aaren_rl.train.config import RunConfig, make_config
from aaren_rl.train.data import Batch, StepData, part
from aaren_rl.train.trainer import Trainer, action_loss, keep_freed_memory, uses_bfloat16

from .harness import Figures, Work, in_turns, ratio, require, table
from .machine import device_name
from .peers import PEERS, make_peers

Pair: TypeAlias = tuple[str, str]  # name and precision
TASK = get_task("hopper-medium")
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}  # of a gradient, relative to the largest of its parameter
CHECKED_ROWS = 4
SIZES = ("128x3", "512x4")
STEPS = 100_000  # steps of the dataset, random numbers of the size of Hopper
MEAN_LENGTH = 457  # steps per episode, about those of hopper-medium in D4RL
RETURN_SCALE = 1000.0
PEAK_SIZE = 2048  # rows and columns of the matrix product for the peak
PRODUCT = "product"  # name of the peak measurement
TO_RECORD = 60  # gradient steps on a GPU before the first timed one: most sizes of a batch are recorded
UNTIMED = 1  # untimed gradient steps before every timed one, to fill the processor caches
REPEATS = 7
BASE = "decision-aaren, window"  # reference for the contexts and the peers

HELP = "time of a gradient step compared with other packages, share of the matmul peak"
DESCRIPTION = """\
Times one gradient step (sample a batch, forward, backward, clip, optimizer, EMA) of the agents of this package, and
of the Decision Transformers of transformers and TorchRL at the same width, layers, heads, batch and context; medians,
in turns, each after one untimed gradient step. Batches of the peers are presampled. Everything runs in bfloat16
autocast if the processor has it, and the peers also in float32, which is their default. "Per step" is the time per
environment step, without padding, relative to the first line. The share is the rate of the matrix products in the
gradient step relative to a product of 2048 x 2048 matrices in the same precision and round."""
EPILOG = """\
example:
  pip install 'aaren-rl[bench]'       # the peers; without them only this package is timed
  scripts/bench train --threads 2 --json train.json --plot train.png"""


def make_episodes(steps: int) -> Episodes:
    """Random episodes of the size of Hopper: the same ones for the same number of steps."""
    rng = np.random.default_rng(0)
    lengths = rng.gamma(4, MEAN_LENGTH / 4, size=steps // 100 + 10).round().clip(1, TASK.horizon).astype(np.int64)
    ends = lengths.cumsum()
    offsets = np.concatenate(([0], ends[ends < steps], [steps]))
    return Episodes(
        observations=rng.standard_normal((steps, TASK.observation_dim), dtype=np.float32),
        actions=rng.uniform(-1, 1, (steps, TASK.action_dim)).astype(np.float32),
        rewards=rng.normal(3, 1, steps).astype(np.float32),
        offsets=offsets,
        terminated=np.diff(offsets) < TASK.horizon,
    )


def check_gradients(config: RunConfig, data: StepData, precisions: Iterable[str]) -> dict[str, float]:
    """By precision, the largest difference of a gradient from float64, token by token.

    Without dropout; relative to the largest gradient of the parameter. Raises NumericsError above the tolerance.
    """
    config = replace(config, network=replace(config.network, dropout=0.0))
    trainer = Trainer(config, data, TASK.action_dim, TASK.horizon)
    rows = config.data.steps_per_update // config.data.context_length
    batch = part(trainer.sampler.sample(trainer.generator), 0, max(1, rows // CHECKED_ROWS))
    fast, slow = trainer.model.train(), copy.deepcopy(trainer.model).double().eval()
    exact = Batch(**{k: v.double() if v is not None and v.is_floating_point() else v for k, v in vars(batch).items()})
    errors = (_token_by_token(slow, exact) - exact.actions).square().mean(-1)
    (errors[exact.mask].sum() / exact.mask.sum()).backward()
    found = {}
    for precision in precisions:
        fast.zero_grad()
        with torch.autocast(data.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            predicted = _forward(fast, batch)
        action_loss(predicted, batch.actions, batch.mask).backward()
        found[precision] = difference = _largest_difference(fast, slow)
        require(f"gradients in {precision} differ from the float64 reference", difference, TOLERANCES[precision])
    return found


def _largest_difference(fast: DecisionModel, slow: DecisionModel) -> float:
    differences, floor = [0.0], max(float(p.grad.abs().max()) for p in slow.parameters() if p.grad is not None) * 1e-3
    for mine, true in zip(fast.parameters(), slow.parameters(), strict=True):
        assert (mine.grad is None) == (true.grad is None)
        if mine.grad is not None and true.grad is not None:
            scale = max(float(true.grad.abs().max()), floor)  # some gradients are zero except for rounding
            differences.append(float((mine.grad.double() - true.grad).abs().max()) / scale)
    return float(np.max(differences))  # of a NaN, NaN


def _forward(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch.observations, batch.actions, batch.returns_to_go, batch.timesteps
    actions: Tensor = model(*inputs, starts=batch.starts)[0]
    return actions


def _token_by_token(model: DecisionModel, batch: Batch) -> Tensor:
    """The actions of the model if its trunk steps through the tokens, as the RNN cell of the paper."""
    seen: list[Tensor] = []
    handle = model.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    _forward(model, batch)
    handle.remove()
    state, outputs = model.trunk.initial_state(len(batch.mask)), []
    for token in seen[0].unbind(1):
        x, state = model.trunk.step(token, state)
        outputs.append(x)
    acted_on = ACTED_ON[model.config.tokens_per_step]
    return torch.tanh(model.head(torch.stack(outputs[acted_on], 1)))


class Measured:
    """A gradient step and its masks, False for padding. `counted` is launched one by one, for the FLOP counter."""

    def __init__(self, update: Callable[[], Tensor], counted: Callable[[], Tensor]) -> None:
        self.update, self.counted, self.masks = update, counted, list[Tensor]()

    def __call__(self) -> None:
        self.masks.append(self.update().clone())  # the next gradient step may overwrite it

    def real_steps(self) -> float:
        """Steps without padding per gradient step, on average."""
        return mean(float(mask.sum()) for mask in self.masks)

    def operations(self) -> float:
        """Floating-point operations of matrix products per gradient step, with padding, on average."""
        with FlopCounterMode(display=False) as counter:
            size = self.counted().numel()
        return float(counter.get_total_flops()) / size * mean(mask.numel() for mask in self.masks)


def own_update(trainer: Trainer) -> Measured:
    """The gradient steps of a trainer. The FLOP counter does not see into those that a GPU replays."""

    def replayed() -> Tensor:
        trainer.step()
        return trainer.mask

    for _ in range(TO_RECORD if trainer.data.device.type == "cuda" else 0):
        trainer.step()
    return Measured(replayed, lambda: trainer.learn(trainer.sampler.prepare(trainer.generator))[-1])


def measure_size(width: int, layers: int, arguments: argparse.Namespace, data: StepData) -> tuple[Figures, list[str]]:
    """Time the agents and the peers at one size. Also returns notes about missing peers. Raises as `measure`."""
    asked = {"width": width, "layers": layers, "heads": arguments.heads}
    length, device = arguments.context_length, data.device

    def trainer(agent: str, context: str, precision: str) -> Trainer:
        contexts = {"context": context, "context_length": length, "steps_per_update": arguments.batch * length}
        # The settings of the peers: AdamW, dropout and an embedding of the time step.
        peers = {"optimizer": "adamw", "dropout": 0.1, "timestep_embedding": True}
        config = make_config({"agent": f"decision-{agent}", "precision": precision, **peers, **contexts, **asked})
        return Trainer(config, data, TASK.action_dim, TASK.horizon)

    plain = trainer("aaren", "window", "float32")
    native = uses_bfloat16(trainer("aaren", "window", "auto").config.optimizer, device)
    precisions = ("bfloat16", "float32") if native else ("float32",)
    best = precisions[0]
    differences = check_gradients(plain.config, data, precisions)
    works: dict[Pair, Measured] = {}
    for agent, context in (("aaren", "window"), ("aaren", "episode"), ("aaren", "mixed"), ("transformer", "window")):
        works[f"decision-{agent}, {context}", best] = own_update(trainer(agent, context, best))
    if best != "float32":
        works[BASE, "float32"] = own_update(plain)
    batches = [plain.sampler.sample(plain.generator) for _ in range(4)]
    dims = {"observation_dim": TASK.observation_dim, "action_dim": TASK.action_dim}
    made, notes = make_peers({**asked, **dims}, TASK.horizon, batches, precisions, device)
    works |= {pair: Measured(update, update) for pair, update in made.items()}
    calls: dict[Pair, Work] = {**works}
    for precision in precisions:
        a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, device=device).to(getattr(torch, precision)) for _ in range(2))
        calls[PRODUCT, precision] = partial(torch.matmul, a, b)
    times = in_turns(calls, repeats=arguments.repeats, device=device, untimed=UNTIMED)
    product, base = 2 * PEAK_SIZE**3, (BASE, best)

    def row(pair: Pair, work: Measured) -> Figures:
        steps, operations, taken = work.real_steps(), work.operations(), times[pair]
        return {
            "name": pair[0],
            "precision": pair[1],
            "milliseconds": median(taken) * 1e3,
            "steps": steps,
            "gflop": operations / 1e9,
            "peak_share": operations / product * ratio(times[PRODUCT, pair[1]], taken),
            "ratio": ratio(taken, times[base]) * works[base].real_steps() / steps,
        }

    def fastest(precision: str) -> float | None:
        shares = [ratio(times[base], times[pair]) for pair in made if pair[1] == precision]
        return max(shares, default=None)

    products = {p: [product / seconds / 1e9 for seconds in times[PRODUCT, p]] for p in precisions}
    figures = {
        **asked,
        "updates": [row(pair, work) for pair, work in works.items()],
        "peaks": [{"precision": p, "gflops": median(found), "best": max(found)} for p, found in products.items()],
        "fastest_peer_ratio": fastest(best),
        "fastest_peer_float32_ratio": fastest("float32"),
        "checked_difference": differences,
    }
    return figures, notes


def measure(arguments: argparse.Namespace) -> Figures:
    """Time the agents and the peers at every size.

    Raises UsageError for an invalid size or device, NumericsError if the gradients are wrong.
    """
    device = choose_device(arguments.device)
    keep_freed_memory()  # as in training
    pairs = [parse_size(text) for text in arguments.sizes]
    data = StepData(make_episodes(STEPS), RETURN_SCALE, device)
    sizes, notes = zip(*(measure_size(width, layers, arguments, data) for width, layers in pairs), strict=True)
    return {
        "batch": arguments.batch,
        "context_length": arguments.context_length,
        "sizes": list(sizes),
        "notes": list(dict.fromkeys(note for of_size in notes for note in of_size)),  # about missing peers
        "device": device_name(device),
    }


def parse_size(text: str) -> tuple[int, int]:
    """Width and layers of a size such as 128x3. Raises UsageError for anything else."""
    width, _, layers = text.partition("x")
    if not (width.isdigit() and layers.isdigit()):
        raise UsageError(f"--sizes {text}: not WIDTHxLAYERS, for example 128x3")
    return int(width), int(layers)


def show(figures: Figures) -> list[str]:
    """One table per size."""
    lines = ["batch {batch}, {context_length} steps".format(**figures), *figures["notes"]]
    for size in figures["sizes"]:
        checked = ", ".join(f"{precision} {value:.0e}" for precision, value in size["checked_difference"].items())
        peaks = ", ".join("{precision} {gflops:,.0f} GFLOP/s (best {best:,.0f})".format(**p) for p in size["peaks"])
        lines += [
            "\nwidth {width}, layers {layers}, heads {heads}".format(**size),
            f"gradients checked against float64: {checked}",
            f"peak, large matrix products: {peaks}",
            *table(
                "|precision|ms|steps|per step|GFLOP|of peak",
                "{name}|{precision}|{milliseconds:.1f}|{steps:.0f}|{ratio:.2f}|{gflop:.1f}|{peak_share:.0%}",
                size["updates"],
            ),
        ]
        if size["fastest_peer_ratio"] is not None:
            lines.append(
                f"{BASE} takes {size['fastest_peer_ratio']:.2f} of the time of the fastest peer in the same precision, "
                f"{size['fastest_peer_float32_ratio']:.2f} of the fastest in float32"
            )
    return lines


def plot(figures: Figures) -> Figure:
    """Plot one bar per agent and precision, one panel per size."""
    figure = Figure(figsize=(9, 0.8 + 2.6 * len(figures["sizes"])), layout="constrained")
    panels = figure.subplots(len(figures["sizes"]), 1, squeeze=False)[:, 0]
    for axes, size in zip(panels, figures["sizes"], strict=True):
        updates = size["updates"][::-1]
        names, times = [f"{u['name']}, {u['precision']}" for u in updates], [u["milliseconds"] for u in updates]
        bars = axes.barh(names, times, color=["#999999" if u["name"] in PEERS else "#0072B2" for u in updates])
        axes.bar_label(bars, [f"{u['milliseconds']:.0f} ms, {u['peak_share']:.0%} of peak" for u in updates], padding=3)
        axes.set_xlim(0, 1.6 * max(times))
        axes.set(title="width {width}, layers {layers}, heads {heads}".format(**size), xlabel="ms per gradient step")
    return figure


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    sizes = "width x layers (default: %(default)s)"
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="WxL", help=sizes)
    parser.add_argument("--heads", type=COUNT.integer, default=4, help="heads of a mixer (default: %(default)s)")
    parser.add_argument(
        "--batch", type=COUNT.integer, default=64, help="windows per gradient step (default: %(default)s)"
    )
    parser.add_argument("--context-length", type=COUNT.integer, default=20, help="K, steps (default: %(default)s)")
    parser.add_argument("--repeats", type=COUNT.integer, default=REPEATS, help="runs, in turns (default: %(default)s)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_shared(register=False)
