"""The benchmark "runtime": an exported policy in ONNX Runtime beside the policy that it was exported from.

The exported actions are first held against PyTorch's, and through a long episode against the model in float64.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ..agents import ModelConfig, Policy
from ..cli import Parser, positive, progress_bar
from ..errors import NumericsError, ResourcesError, UsageError
from ..evaluate.play import ScoredPolicy
from ..machine import Machine
from ..runtime import Runner, from_bytes
from .rollout import ACTION_DIM, OBSERVATION_DIM, TARGET_RETURN, Array, make_policy
from .timing import CPU, in_turns, parse_size, ratio, require, without_collection

SIZES = ["128x3", "512x4"]
HEADS = 4
EARLY = 10  # the step that the late one is compared with
BLOCK = 50  # actions timed at a stretch
REPEATS = 15  # blocks of each, taken in turns
CHECKED_STEPS = 200
TOLERANCE = 1e-5  # float32, from PyTorch's and from float64's actions
INT8_TOLERANCE = 0.05  # 8-bit weights: a fault would show as a difference of about 1
CHUNK = 250  # steps that the float64 reference computes at once

NAMES = ("compiled", "PyTorch", "float32", "int8")

HELP = "time of an action in the exported policy, beside the policy itself"
DESCRIPTION = f"""\
Exports untrained Decision-Aaren policies of Hopper's size and compares the time of an action in one
environment: the policy with its compiled step, the policy in PyTorch's operations, the exported
policy, and the exported policy with 8-bit weights; medians of {REPEATS} blocks of {BLOCK} actions, taken in
turns. Then plays one long episode with the exported policy, against the model in float64."""
EPILOG = """\
example:
  python -m aaren_rl.bench runtime --steps 100000 --json runtime.json"""


@dataclass(frozen=True)
class Cost:
    """Of one action.

    Attributes:
        name: one of NAMES.
        microseconds: median over the blocks.
        fastest_microseconds: in the fastest block.
        difference: largest difference of its actions from PyTorch's.
    """

    name: str
    microseconds: float
    fastest_microseconds: float
    difference: float


@dataclass(frozen=True)
class SizeResult:
    """One size of model.

    Attributes:
        size: width and layers.
        costs: in the order of NAMES.
        compiled_ratio: median over the turns of the compiled step's time over PyTorch's.
        float32_ratio: likewise of float32's over PyTorch's.
        int8_ratio: likewise of int8's over float32's.
    """

    size: str
    costs: list[Cost]
    compiled_ratio: float
    float32_ratio: float
    int8_ratio: float


@dataclass(frozen=True)
class LongResult:
    """One episode of the first size in float32.

    Attributes:
        steps: its length.
        time_ratio: of an action at its end over one at step 10, median over pairs of blocks.
        difference: largest difference of its actions from the float64 model's.
    """

    steps: int
    time_ratio: float
    difference: float


@dataclass(frozen=True)
class RuntimeResult:
    """The outcome of `runtime`."""

    sizes: list[SizeResult]
    long: LongResult
    machine: Machine


class _Player:
    """One policy in an endless episode of random observations, the same for all."""

    def __init__(self, policy: ScoredPolicy[Any]) -> None:
        rng = np.random.default_rng(0)
        self.observations: Array = rng.standard_normal((1024, 1, OBSERVATION_DIM)).astype(np.float32)
        # Of both signs: the return-to-go stays within what a policy could be asked for.
        self.rewards: Array = rng.uniform(-2, 2, (1024, 1)).astype(np.float32)
        self._policy, self.step = policy, 0
        self.state = policy.initial_state(1, np.array([TARGET_RETURN]))

    def play(self, steps: int) -> Array:
        """The actions of the next steps, (steps, A)."""
        actions = []
        for _ in range(steps):
            row = self.step % 1024
            reward = self.rewards[row] if self.step else np.zeros(1, np.float32)
            action, self.state = self._policy.act(self.observations[row], reward, self.state)
            actions.append(action[0])
            self.step += 1
        return np.stack(actions)


def make_runners(policy: Policy, threads: int) -> tuple[Runner, Runner]:
    """The policy exported in float32, and with 8-bit weights.

    Raises:
        ResourcesError: a package of the extras is missing.
    """
    try:
        from ..export.onnx_graph import step_graph
    except ImportError as error:
        raise ResourcesError("bench runtime needs the package onnx: pip install 'aaren-rl[export]'") from error
    from ..export.model import describe

    runners = []
    for precision in ("float32", "int8"):
        model = step_graph(policy, precision=precision)
        card = {
            "rollout": policy.rollout,
            "rollout_context": policy.context_length,
            "return_scale": policy.return_scale,
        }
        describe(model, card, {})
        runners.append(from_bytes(model.SerializeToString(), "the exported model", threads=threads))
    return runners[0], runners[1]


def turns(players: list[_Player]) -> list[list[float]]:
    """Microseconds of an action in every block of every player."""
    works = {which: partial(player.play, BLOCK) for which, player in enumerate(players)}
    with without_collection():
        times = in_turns(works, repeats=REPEATS, device=CPU, budget=math.inf, to_and_fro=True)
    return [[seconds / BLOCK * 1e6 for seconds in own] for own in times.values()]


def measure_size(policy: Policy, runners: tuple[Runner, Runner], size: str) -> SizeResult:
    """Checks and times one size.

    Raises:
        NumericsError: the exported actions are not PyTorch's.
    """
    players = [_Player(actor) for actor in (policy, replace(policy, compiled=False), *runners)]
    actions = [player.play(CHECKED_STEPS) for player in players]
    differences = [float(np.abs(own - actions[1]).max()) for own in actions]
    for name, difference, allowed in zip(NAMES, differences, (*[TOLERANCE] * 3, INT8_TOLERANCE), strict=True):
        require(f"{size}, {name}: the actions differ from PyTorch's", difference, allowed)
    times = turns(players)
    costs = [
        Cost(name, median(own), min(own), difference)
        for name, own, difference in zip(NAMES, times, differences, strict=True)
    ]
    compiled, eager, exported, int8 = times
    return SizeResult(size, costs, ratio(compiled, eager), ratio(exported, eager), ratio(int8, exported))


@torch.no_grad()
def measure_long(policy: Policy, runner: Runner, steps: int) -> LongResult:
    """Plays one episode, holds it against the model in float64, and compares its end's time with its begin's.

    The reference sees the actions that were handed out, and computes CHUNK steps at a time, with its state carried on.

    Raises:
        NumericsError: the actions drift away, or the state is not finite.
    """
    exact = copy.deepcopy(policy.model).double()
    early, late = _Player(runner), _Player(runner)
    early.play(EARLY)
    state, to_go, largest = None, TARGET_RETURN, 0.0
    bar: tqdm[Any]
    with progress_bar(total=steps, desc="long episode", unit="step", leave=False) as bar:
        while late.step < steps:
            at = np.arange(late.step, min(steps, late.step + CHUNK))
            rewards = np.where(at > 0, late.rewards[at % 1024, 0], 0).astype(np.float64)
            wanted = to_go - np.cumsum(rewards)
            to_go = float(wanted[-1])
            acted = torch.from_numpy(late.play(len(at))).double().unsqueeze(0)
            observed = torch.from_numpy(late.observations[at % 1024, 0]).double()
            reference, state = exact(
                ((observed - policy.observation_mean) / policy.observation_std).unsqueeze(0),
                acted,
                # As the policy rounds it: the input is not what is measured here.
                torch.from_numpy((wanted / policy.return_scale).astype(np.float32)).double().unsqueeze(0),
                torch.from_numpy(at).unsqueeze(0),
                state,
            )
            largest = max(largest, float((acted - reference).abs().max()))
            require(f"by step {late.step:,} the actions differ from float64's", largest, TOLERANCE)
            bar.update(len(at))
    if not np.isfinite(late.state.memory).all():
        raise NumericsError(f"the state is not finite after {steps:,} steps")
    early_times, late_times = turns([early, late])
    return LongResult(steps, ratio(late_times, early_times), largest)


def format_runtime(result: RuntimeResult) -> str:
    """A table for every size under the machine's description."""
    lines = [str(result.machine), "decision-aaren, carry mode, one environment; time per action"]
    for size in result.sizes:
        compared = (
            f"{size.compiled_ratio:.3f} of PyTorch's",
            "",
            f"{size.float32_ratio:.3f} of PyTorch's",
            f"{size.int8_ratio:.3f} of float32's",
        )
        lines += ["", f"{size.size:<10}{'us':>10}{'fastest':>10}{'differs':>10}"]
        lines += [
            f"{cost.name:<10}{cost.microseconds:>10.1f}{cost.fastest_microseconds:>10.1f}{cost.difference:>10.1e}"
            f"  {note}".rstrip()
            for cost, note in zip(size.costs, compared, strict=True)
        ]
    long = result.long
    return "\n".join(
        [
            *lines,
            "",
            f"{long.steps:,} steps of {result.sizes[0].size}: largest difference from float64 {long.difference:.1e}, "
            f"time at the end over time at step {EARLY} {long.time_ratio:.3f}",
        ]
    )


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument(
        "--sizes", nargs="+", metavar="WxL", default=SIZES, help=f"width x layers (default: {' '.join(SIZES)})"
    )
    parser.add_argument("--steps", type=positive, default=10_000, help="of the long episode (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: no such model can be made.
        NumericsError: the exported actions are wrong.
        ResourcesError: a package of the extras is missing.
    """
    sizes, long = [], None
    for size in arguments.sizes:
        policy = make_policy(_config(size))
        runners = make_runners(policy, arguments.threads)
        sizes.append(measure_size(policy, runners, size))
        long = long or measure_long(policy, runners[0], arguments.steps)
    assert long is not None
    result = RuntimeResult(sizes, long, Machine.here())
    return format_runtime(result), asdict(result)


def _config(size: str) -> ModelConfig:
    width, layers = parse_size(size)
    try:
        return ModelConfig(OBSERVATION_DIM, ACTION_DIM, "aaren", width, layers, HEADS)
    except ValueError as error:
        raise UsageError(f"--sizes {size}: {error}") from error
