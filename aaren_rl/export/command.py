"""Write a trained policy as one ONNX file: `python -m aaren_rl.export RUN --out policy.onnx`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agents import ROLLOUTS
from ..cli import Parser, import_registering, positive, run
from ..envs.files import write_whole
from ..errors import ResourcesError, UsageError
from ..evaluate.play import EpisodePlan, ScoredPolicy, check_fits, play
from ..evaluate.scores import describe_rollout
from ..policies.card import PolicyCard
from ..policies.folder import load_policy, read_card
from ..policies.names import WEIGHTS
from ..ranges import CONTEXT
from ..ranges import SEED as SEEDS
from . import model as policy_model
from .model import checked_model, make_model, make_runner

if TYPE_CHECKING:
    import onnx

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
    parser.add_argument("--rollout-context", type=CONTEXT.integer, metavar="K", help="K of rolling and window")
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
        "--seed", type=SEEDS.integer, metavar="S", default=SEED, help=f"environment i is reset with S + i [{SEED}]"
    )
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), export, argv)


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
        f"checked against PyTorch over {policy_model.CHECKED_STEPS:,} steps of {card.env_id}: "
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


def compare_scores(full: onnx.ModelProto, small: onnx.ModelProto, card: PolicyCard, episodes: int, seed: int) -> str:
    """Two lines: the score before and after the weights became 8-bit integers."""
    lines, plan = [], EpisodePlan(card.weights, episodes, [card.target_return], seed)
    for name, model in (("float32", full), ("int8", small)):
        policy: ScoredPolicy[Any] = make_runner(model)
        (score,) = play(policy, card, plan, name=name)
        shown = "" if score.normalized_score_mean is None else f", score {score.normalized_score_mean:.1f}"
        spread = "" if score.normalized_score_std is None else f" +- {score.normalized_score_std:.1f}"
        returns = f"return {score.return_mean:.1f} +- {score.return_std:.1f}"
        lines.append(f"{name:<8} {returns}{shown}{spread} over {episodes} episodes")
    return "\n".join(lines)


def _require_place(out: Path, *, force: bool) -> None:
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: its folder does not exist")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file, such as {out / 'policy.onnx'}")
    if out.exists() and not force:
        raise UsageError(f"--out {out}: exists; --force replaces it")
