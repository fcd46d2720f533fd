"""Write a trained policy as one ONNX file: `python -m aaren_rl.export RUN --out policy.onnx`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._version import __version__
from .agents import ROLLOUTS, Policy
from .cli import Parser, import_registering, positive, progress_bar
from .envs.files import write_whole
from .envs.simulation.stepping import LocalStepper
from .errors import NumericsError, ResourcesError, UsageError, run_command
from .evaluate.play import ScoredPolicy, check_fits, play
from .evaluate.scores import describe_rollout
from .onnx_weights import action_range
from .policies.card import PolicyCard
from .policies.folder import load_policy, read_card
from .policies.tensors import WEIGHTS
from .runtime import FORMAT, Runner, from_bytes

if TYPE_CHECKING:
    import onnx

CHECKED_STEPS = 1000
TOLERANCE = 1e-5  # of half an action's range
SEED = 1000

DESCRIPTION = """\
Write a trained policy as one ONNX file that runs without PyTorch, by aaren_rl.runtime or anything else that reads ONNX.

  python -m aaren_rl.export runs/hopper-medium/decision-aaren/seed0 --out policy.onnx
  python -m aaren_rl.export RUN --out small.onnx --quantize int8     # prints the score before and after
  python -m aaren_rl.evaluate policy.onnx                            # score the file itself

The file holds one environment step, for any number of environments: observation, last reward and state in, action and
new state out. Normalisation, return-to-go, timestep and action range are inside; so is how the policy was trained. Its
actions are first held against PyTorch's over 1,000 steps of the policy's environment; if they differ, nothing is
written.

RUN is a run folder, or a policy folder in it such as RUN/policy_best.
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("export", DESCRIPTION)
    parser.usage = "python -m aaren_rl.export RUN --out FILE [options]"
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder or policy folder")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the file to write, e.g. policy.onnx")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument("--rollout", choices=ROLLOUTS, metavar="MODE", help="carry, rolling or window (as in training)")
    parser.add_argument("--rollout-context", type=int, metavar="K", help="K of rolling and window, in steps")
    parser.add_argument("--weights", choices=WEIGHTS, metavar="NAME", help="average (the default) or raw")
    parser.add_argument(
        "--quantize", choices=["int8"], metavar="TYPE", help="int8: 8-bit weights; such a file needs ONNX Runtime"
    )
    parser.add_argument(
        "--precision",
        choices=["float32", "float64"],
        metavar="TYPE",
        default="float32",
        help="float64: slower, and the same episodes on every machine [float32]",
    )
    parser.add_argument(
        "--episodes", type=positive, metavar="N", default=20, help="episodes of the scores of --quantize [20]"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", default=SEED, help=f"environment i is reset with S + i [{SEED}]"
    )
    parser.add_argument("--register", metavar="MODULE", help="import this module, which registers your environment")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: export(arguments), debug=arguments.debug)


def export(arguments: argparse.Namespace) -> int:
    """Builds, checks and writes the file; returns the exit code."""
    _require_place(arguments.out, force=arguments.force)
    if arguments.quantize is not None and arguments.precision != "float32":
        raise UsageError("--quantize, --precision: give one of them")
    if arguments.rollout_context is not None and arguments.rollout_context < 2:
        raise UsageError(f"--rollout-context must be at least 2, not {arguments.rollout_context}")
    import_registering(arguments.register)
    card = read_card(arguments.run)
    weights = arguments.weights or card.weights
    policy = load_policy(
        arguments.run, rollout=arguments.rollout, rollout_context=arguments.rollout_context, weights=weights
    )
    card = dataclasses.replace(card, rollout=policy.rollout, rollout_context=policy.context_length, weights=weights)
    check_fits(card)
    model, difference = checked_model(policy, card, arguments.precision, arguments.seed)
    print(
        f"checked against PyTorch over {CHECKED_STEPS:,} steps of {card.env_id}: "
        f"the actions differ by at most {difference:.1e}"
    )
    if arguments.quantize is not None:
        small = make_model(policy, card, arguments.quantize)
        print(compare_scores(model, small, card, arguments.episodes, arguments.seed))
        model = small
    content = model.SerializeToString()
    try:
        write_whole(arguments.out, content)
    except OSError as error:
        raise ResourcesError(f"--out {arguments.out}: {error.strerror}; nothing was written") from error
    rollout = describe_rollout(policy.rollout, policy.context_length)
    print(f"{arguments.out}: {len(content) / 2**20:.1f} MiB, {weights} weights, rollout {rollout}")
    return 0


def checked_model(policy: Policy, card: PolicyCard, precision: str, seed: int) -> tuple[onnx.ModelProto, float]:
    """The ONNX model of a policy, and the largest difference of its actions from PyTorch's.

    Raises:
        NumericsError: they differ.
        SimulationError: the policy's environment cannot be made, or fails.
        UsageError: the mixer has no graph in this rollout mode.
        ResourcesError: a package is missing.
    """
    model = make_model(policy, card, precision)
    difference = check(policy, make_runner(model), card, seed)
    describe(
        model,
        dataclasses.asdict(card),
        {"precision": precision, "checked_steps": CHECKED_STEPS, "largest_difference": difference},
    )
    return model, difference


def make_model(policy: Policy, card: PolicyCard, precision: str = "float32") -> onnx.ModelProto:
    """The ONNX model of a policy, unchecked.

    Raises:
        UsageError: the mixer has no graph in this rollout mode.
        ResourcesError: the package onnx is missing.
    """
    try:
        from .onnx_graph import step_graph
    except ImportError as error:
        raise ResourcesError("export needs the package onnx: pip install 'aaren-rl[export]'") from error
    model = step_graph(policy, precision=precision)
    describe(model, dataclasses.asdict(card), {"precision": precision})
    return model


def make_runner(model: onnx.ModelProto) -> Runner:
    """What will run the model."""
    return from_bytes(model.SerializeToString(), "the exported model")


def check(policy: Policy, runner: Runner, card: PolicyCard, seed: int) -> float:
    """Plays PyTorch's actions in two environments, asked for different returns, and asks both policies at every step.

    An episode that ends earlier is followed by another, while the policies go on as if it had not ended: their states
    are to be seen at every age.

    Returns:
        The largest difference of an action, in halves of its range.

    Raises:
        NumericsError: it is above 1e-5, or not a number.
        SimulationError: the environment cannot be made, or fails.
    """
    targets = np.array([card.target_return, card.target_return / 2])
    half = action_range(policy)[1]
    policy = dataclasses.replace(policy, compiled=False)  # PyTorch's own operations
    stepper = LocalStepper(card.env_id, card.env_kwargs, [seed, seed + 1])
    largest = 0.0
    try:
        observations, rewards = stepper.reset(), np.zeros(2, np.float32)
        state, exported = policy.initial_state(2, targets), runner.initial_state(2, targets)
        for step in progress_bar(iterable=range(CHECKED_STEPS), desc="check", unit="step", leave=False):
            action, state = policy.act(observations, rewards, state)
            other, exported = runner.act(observations, rewards, exported)
            largest = max(largest, difference := float((np.abs(other - action) / half).max()))
            if not difference <= TOLERANCE:
                raise NumericsError(
                    f"the exported policy's action at step {step} differs from PyTorch's by {difference:.2g} "
                    f"(more than {TOLERANCE:g} of half its range); nothing was written"
                )
            stepper.send(np.arange(2), action)
            answer = stepper.receive()
            observations, rewards = answer.observations, answer.rewards.astype(np.float32)
            if answer.ended.any():
                observations = stepper.reset()
    finally:
        stepper.close()
    return largest


def compare_scores(full: onnx.ModelProto, small: onnx.ModelProto, card: PolicyCard, episodes: int, seed: int) -> str:
    """Two lines: the score before and after the weights became 8-bit integers."""
    lines = []
    for name, model in (("float32", full), ("int8", small)):
        policy: ScoredPolicy[Any] = make_runner(model)
        (score,) = play(
            policy,
            card,
            weights=card.weights,
            episodes=episodes,
            target_returns=[card.target_return],
            seed=seed,
            name=name,
        )
        shown = "" if score.normalized_score_mean is None else f", score {score.normalized_score_mean:.1f}"
        spread = "" if score.normalized_score_std is None else f" +- {score.normalized_score_std:.1f}"
        returns = f"return {score.return_mean:.1f} +- {score.return_std:.1f}"
        lines.append(f"{name:<8} {returns}{shown}{spread} over {episodes} episodes")
    return "\n".join(lines)


def describe(model: onnx.ModelProto, card: dict[str, Any], how: dict[str, Any]) -> None:
    """Puts the policy's card and how the file was made into the model."""
    import onnx

    values = {"policy": card, "export": {"aaren-rl": __version__, **how}}
    onnx.helper.set_model_props(
        model, {"aaren_rl_format": FORMAT, **{key: json.dumps(value) for key, value in values.items()}}
    )


def _require_place(out: Path, *, force: bool) -> None:
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: its folder does not exist")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file, such as {out / 'policy.onnx'}")
    if out.exists() and not force:
        raise UsageError(f"--out {out}: exists; --force replaces it")


if __name__ == "__main__":
    sys.exit(main())
