"""Write a trained policy as one ONNX file: `aaren-rl export RUN --out policy.onnx`."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from ..agents import ROLLOUTS
from ..base.errors import UsageError
from ..base.files import check_writable, write_whole
from ..base.ranges import CONTEXT
from ..cli import Parser, import_registering, run
from ..evaluate.play import EpisodePlan, check_fits, play
from ..evaluate.scores import describe_rollout, mismatch
from ..evaluate.tables import format_overview
from ..policies.folder import load_policy
from ..policies.names import WEIGHTS, weights_words
from .check import check
from .graph import quantize
from .policy_step import as_policy, describe, policy_graph

SEED, STEPS = 1000, 1000  # of the check
EPISODES = 20  # of the comparison with 8-bit weights

DESCRIPTION = """\
Write a trained policy as one ONNX file that runs without PyTorch, with aaren_rl.runtime or any other ONNX runtime.

  aaren-rl export runs/hopper-medium/decision-aaren/seed0 --out policy.onnx
  aaren-rl export RUN --out small.onnx --quantize int8     # prints both scores
  aaren-rl evaluate policy.onnx                            # evaluate the file

The file holds one environment step, for any number of environments: observation, last reward and state in, action and
new state out. Normalization, return-to-go, timestep, action range and metadata are inside.
The actions are tested against PyTorch over 1,000 steps of the policy's environment, or of random observations for a
policy that was trained without one. If they differ by more than 1e-4 of half their range, nothing is written.

RUN is a run folder, or a policy folder in it such as RUN/policy_best.
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("export", DESCRIPTION, "RUN --out FILE [options]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder or policy folder")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the file to write, e.g. policy.onnx")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--rollout", choices=ROLLOUTS, metavar="MODE", help="recurrent, staggered or window (as in training)"
    )
    parser.add_argument("--rollout-context", type=CONTEXT.integer, metavar="K", help="K of staggered and window")
    parser.add_argument("--weights", choices=WEIGHTS, metavar="NAME", help="ema (default) or raw")
    parser.add_argument(
        "--quantize", choices=["int8"], metavar="TYPE", help="int8: 8-bit weights; such a file needs ONNX Runtime"
    )
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), export, argv)


def export(arguments: argparse.Namespace) -> int:
    """Build, test and write the file. Returns the exit code."""
    out = arguments.out
    check_writable("--out", out)
    if out.exists() and not arguments.force:
        raise UsageError(f"--out {out}: exists; --force replaces it")
    import_registering(arguments.register)
    asked = {name: getattr(arguments, name) for name in ("rollout", "rollout_context", "weights")}
    policy = load_policy(arguments.run, **asked)
    if arguments.rollout_context is not None and policy.rollout == "recurrent":
        raise UsageError(
            f"--rollout-context {arguments.rollout_context}: has no effect with the rollout recurrent; leave it out"
        )
    if note := mismatch(policy.card.context, policy.card.context_length, policy.rollout, policy.context_length):
        print(note, file=sys.stderr)
    weights = arguments.weights or policy.card.weights
    card = dataclasses.replace(
        policy.card, rollout=policy.rollout, rollout_context=policy.context_length, weights=weights
    )
    if card.env_id or arguments.quantize is not None:  # whose file is compared by scores
        check_fits(card)
    model = policy_graph(policy)
    describe(model, card, precision="float32")
    difference = check(policy, as_policy(model), card, SEED, STEPS)
    describe(model, card, precision="float32", checked_steps=STEPS, largest_difference=difference)
    print(
        f"checked against PyTorch over {STEPS:,} steps of {card.env_id or 'random observations'}: "
        f"{'the same choices, logits' if policy.discrete else 'actions'} within {difference:.1e}"
    )
    if arguments.quantize is not None:
        small = quantize(model)
        describe(small, card, precision=arguments.quantize)
        plan = EpisodePlan(weights, EPISODES, [card.target_return], SEED)
        kinds = {"float32": model, arguments.quantize: small}
        played = [(name, play(as_policy(each), card, plan, name=name)[0]) for name, each in kinds.items()]
        print(format_overview(played))
        model = small
    content = model.SerializeToString()
    write_whole(out, content)
    rollout = describe_rollout(policy.rollout, policy.context_length)
    print(f"{out}: {len(content) / 2**20:.1f} MiB, {weights_words(weights)}, rollout {rollout}")
    return 0
