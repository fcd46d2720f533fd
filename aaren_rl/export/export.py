"""Write a trained policy as one ONNX file: `aaren-rl export RUN --out policy.onnx`."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..agents import Policy
from ..base.errors import NumericsError, UsageError
from ..base.fields import CONTEXT
from ..base.files import check_writable, write_whole
from ..cli import Parser, import_registering, run
from ..evaluate.scores import describe_rollout, mismatch
from ..policies.card import PolicyCard
from ..policies.folder import load_policy
from ..policies.names import ROLLOUTS, WEIGHTS, target_number, weights_words
from ..runtime import OnnxPolicy
from .policy_step import as_policy, describe, policy_graph, quantize

STEPS = 1000  # of the check
TOLERANCE = 1e-4  # in units of half the action range, or of the largest logit of discrete actions, at least 1

DESCRIPTION = """\
Write a trained policy as one ONNX file that runs without PyTorch, with aaren_rl.runtime or any other ONNX runtime.

  aaren-rl export runs/hopper-medium/decision-aaren/seed0 --out policy.onnx
  aaren-rl export RUN --out small.onnx --quantize int8     # prints its error
  aaren-rl evaluate policy.onnx                            # evaluate the file

The file holds one environment step, for any number of environments: observation, last reward and state in, action and
new state out. Normalization, return-to-go, timestep, action range and metadata are inside.
The actions are tested against PyTorch over 1,000 steps of observations that are drawn with the mean and deviation of
the training data. If they differ by more than 1e-4 of half their range, nothing is written.

RUN is a run folder, or a policy folder in it such as RUN/policy_best.
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("export", DESCRIPTION, "RUN --out FILE [options]")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run folder or policy folder")
    add("--out", type=Path, metavar="FILE", required=True, help="the file to write, e.g. policy.onnx")
    add("--force", action="store_true", help="replace the file if it exists")
    add("--rollout", choices=ROLLOUTS, metavar="MODE", help="recurrent, staggered or window (as in training)")
    add("--rollout-context", type=CONTEXT.integer, metavar="K", help="K of staggered and window")
    add("--weights", choices=WEIGHTS, metavar="NAME", help="ema (default) or raw")
    add("--quantize", choices=["int8"], metavar="TYPE", help="int8: 8-bit weights; such a file needs ONNX Runtime")
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
    model, precision, unit = policy_graph(policy), "float32", "half the action range"
    describe(model, card, precision=precision)
    difference = check(policy, as_policy(model), card, STEPS, TOLERANCE)
    if policy.discrete:
        unit = "the largest logit"
    print(f"checked against PyTorch over {STEPS:,} steps: within {difference:.1e} of {unit}")
    if arguments.quantize is not None:
        model, precision = quantize(model), arguments.quantize
        describe(model, card, precision=precision)
        difference = check(policy, as_policy(model), card, STEPS, math.inf)
        print(f"{precision}: within {difference:.1e}; `aaren-rl evaluate` scores the file and the run")
    describe(model, card, precision=precision, checked_steps=STEPS, largest_difference=difference)
    content = model.SerializeToString()
    write_whole(out, content)
    rollout = describe_rollout(policy.rollout, policy.context_length)
    print(f"{out}: {len(content) / 2**20:.1f} MiB, {weights_words(weights)}, rollout {rollout}")
    return 0


def check(policy: Policy, exported: OnnxPolicy, card: PolicyCard, steps: int, tolerance: float) -> float:
    """The largest difference of an action from PyTorch, or of a logit, in units as above; PyTorch's action is executed.

    Raises:
        NumericsError: it is above the tolerance or NaN. So a discrete action is the same, or as likely within it.
    """
    target, rng = target_number(card.target_return), np.random.default_rng(0)
    targets = np.array([target, target / 2] + [math.inf] * policy.estimates_maximum)
    policy = dataclasses.replace(policy, compiled=False)  # plain PyTorch operations
    state, other_state = policy.initial_state(len(targets), targets), exported.initial_state(len(targets), targets)
    half: Any = policy.scaling.action_half.double().cpu().numpy()
    largest, unit = 0.0, "half the action range"
    for step in range(steps):
        observation = rng.normal(card.observation_mean, card.observation_std, (len(targets), policy.sizes[0]))
        reward = rng.normal(0.0, card.return_scale / card.horizon, len(targets)) * (step > 0)
        if policy.discrete:
            acted, state = policy.logits(observation, reward, state)
            other, other_state = exported.logits(observation, reward, other_state)
            half, unit = np.maximum(1.0, np.abs(acted).max()), "the largest logit"
        else:
            acted, state = policy.act(observation, reward, state)
            other, other_state = exported.act(observation, reward, other_state)
        largest = float(np.maximum(largest, (np.abs(other - acted) / half).max()))  # of a NaN, NaN
        if not largest <= tolerance:
            raise NumericsError(
                f"the exported policy differs from PyTorch at step {step} by {largest:.2g} of {unit}, more than "
                f"{tolerance:g}; nothing was written"
            )
        executed: Any = state.previous_action
        other_state = other_state._replace(previous_action=executed.copy())
    return largest
