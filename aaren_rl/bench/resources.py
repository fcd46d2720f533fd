"""The benchmark "resources": memory and cumulative time against tokens, figure 5 of "Attention as an RNN".

A trunk takes one token after the other: Aaren with its state of constant size, the Transformer with its key-value
cache. Both are first held against the parallel computation in float64.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..agents import DecisionModel, ModelConfig, Trunk
from ..agents.model.block import TrunkState
from ..cli import Parser, positive
from ..errors import UsageError
from ..machine import Machine, state_bytes
from ..policies.names import AGENTS
from .timing import COLOURS, add_model_size, model_size, require

TRUNKS = ("decision-aaren", "decision-transformer")  # those of the paper
POINTS = 24  # where memory and time are read
CHECKED_TOKENS, TOLERANCE = 300, 1e-5

HELP = "memory and cumulative time against tokens, as figure 5 of the paper"
DESCRIPTION = """\
Feeds random tokens one by one to a trunk of Aaren blocks and to one of Transformer blocks with a key-value cache, and
reads the memory of the state and the time since the first token. "grows as" is the exponent of tokens between half of
them and all."""
EPILOG = """\
example:
  python -m aaren_rl.bench resources --tokens 20000 --plot figure5.png"""


@dataclass(frozen=True)
class Growth:
    """Of one trunk.

    Attributes:
        agent: "decision-aaren" or "decision-transformer".
        state_bytes: after each of the token counts.
        seconds: since the first token, likewise.
        state_exponent: of tokens, between half of them and all: 0 is constant, 1 linear.
        time_exponent: likewise: 1 is linear, 2 quadratic.
        checked_difference: largest difference from the float64 reference.
    """

    agent: str
    state_bytes: list[int]
    seconds: list[float]
    state_exponent: float
    time_exponent: float
    checked_difference: float


@dataclass(frozen=True)
class ResourcesResult:
    """The outcome of `measure_resources`: growths at the same token counts, of trunks of the same size."""

    width: int
    layers: int
    heads: int
    tokens: list[int]
    growths: list[Growth]
    machine: Machine


@torch.no_grad()
def check(model: DecisionModel, tokens: int = CHECKED_TOKENS) -> float:
    """The largest difference between the tokens one by one and all in parallel in float64.

    Raises:
        NumericsError: it is above 1e-5, or not a number.
    """
    x = torch.randn(1, tokens, model.config.width, generator=torch.Generator().manual_seed(1))
    exact, _ = copy.deepcopy(model).double().trunk(x.double())
    trunk, outputs = model.trunk, []
    state = model.trunk.initial_state(1)
    for token in x.unbind(1):
        y, state = _step(trunk, token, state)
        outputs.append(y)
    difference = float((torch.cat(outputs, 1) - exact).abs().max())
    return require("the tokens one by one differ from the float64 reference", difference, TOLERANCE)


@torch.no_grad()
def measure_resources(tokens: int, width: int, layers: int, heads: int) -> ResourcesResult:
    """Memory and time of both trunks, a stretch of tokens of one after a stretch of the other's.

    Raises:
        ValueError: `heads` does not divide `width`.
        NumericsError: a trunk is wrong.
    """
    torch.manual_seed(0)
    models = {agent: DecisionModel(ModelConfig(1, 1, AGENTS[agent], width, layers, heads)).eval() for agent in TRUNKS}
    differences = {agent: check(model) for agent, model in models.items()}
    trunks = {agent: model.trunk for agent, model in models.items()}
    stops = sorted({round(tokens * k / POINTS) for k in range(1, POINTS + 1)} - {0})
    states = {agent: model.trunk.initial_state(1) for agent, model in models.items()}
    took = dict.fromkeys(trunks, 0.0)
    seconds: dict[str, list[float]] = {agent: [] for agent in trunks}
    sizes: dict[str, list[int]] = {agent: [] for agent in trunks}
    draws = torch.randn(1024, 1, width, generator=torch.Generator().manual_seed(2)).unbind(0)
    done = 0
    for stop in stops:
        for agent, trunk in trunks.items():
            state, began = states[agent], time.perf_counter()
            for k in range(done, stop):
                _, state = _step(trunk, draws[k % len(draws)], state)
            took[agent] += time.perf_counter() - began
            states[agent] = state
            seconds[agent].append(took[agent])
            sizes[agent].append(state_bytes(state))
        done = stop
    growths = [
        Growth(
            agent,
            sizes[agent],
            seconds[agent],
            _exponent(stops, [float(size) for size in sizes[agent]]),
            _exponent(stops, seconds[agent]),
            differences[agent],
        )
        for agent in trunks
    ]
    return ResourcesResult(width, layers, heads, stops, growths, Machine.here())


def _step(trunk: Trunk, token: Tensor, state: TrunkState) -> tuple[Tensor, TrunkState]:
    """One token (1, C) as a sequence of length 1: the way in which a policy acts."""
    y, state = trunk(token.unsqueeze(1), state)
    return y, state


def _exponent(tokens: list[int], values: list[float]) -> float:
    """e of tokens^e between the middle and the end."""
    middle = (len(tokens) - 1) // 2
    return math.log(values[-1] / values[middle]) / math.log(tokens[-1] / tokens[middle]) if len(tokens) > 1 else 0.0


def format_resources(result: ResourcesResult) -> str:
    """A table under the machine's description."""
    checked = max(growth.checked_difference for growth in result.growths)
    lines = [
        str(result.machine),
        f"width {result.width}, layers {result.layers}, heads {result.heads}, one sequence, token by token",
        f"checked against float64 over {CHECKED_TOKENS} tokens: {checked:.1e}",
        f"{'':<22}{'tokens':>10}{'state, bytes':>16}{'grows as':>12}{'time, s':>12}{'grows as':>12}",
    ]
    for growth in result.growths:
        exponents = f"t^{growth.state_exponent:.2f}", f"t^{growth.time_exponent:.2f}"
        for k in sorted({0, (len(result.tokens) - 1) // 2, len(result.tokens) - 1}):
            last = k == len(result.tokens) - 1
            memory, elapsed = exponents if last else ("", "")
            row = f"{growth.agent:<22}{result.tokens[k]:>10,}{growth.state_bytes[k]:>16,}{memory:>12}"
            lines.append(f"{row}{growth.seconds[k]:>12.3f}{elapsed:>12}".rstrip())
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> Figure:
    """Figure 5 of the paper: memory, and cumulative time, against tokens."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    memory, elapsed = figure.subplots(1, 2)
    for growth in figures["growths"]:
        style = {"color": COLOURS[growth["agent"]], "label": growth["agent"], "clip_on": False}
        memory.plot(figures["tokens"], [size / 2**20 for size in growth["state_bytes"]], **style)
        elapsed.plot(figures["tokens"], growth["seconds"], **style)
    memory.set(title="memory of the state", ylabel="MiB")
    elapsed.set(title="time since the first token", ylabel="s")
    for axes in (memory, elapsed):
        axes.set(xlabel="tokens", xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
    memory.legend(fontsize="small")
    figure.suptitle(
        "width {width}, layers {layers}, heads {heads}, token by token".format(**figures), fontsize="medium"
    )
    return figure


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("--tokens", type=positive, default=6000, help="fed to either trunk (default: %(default)s)")
    add_model_size(parser)


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: no such trunk can be made.
        NumericsError: a trunk is wrong.
    """
    try:
        result = measure_resources(arguments.tokens, **model_size(arguments))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return format_resources(result), asdict(result)
