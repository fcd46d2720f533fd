"""Write a trained policy as one ONNX file that runs without PyTorch, with aaren_rl.runtime or any other ONNX runtime.

  aaren-rl export runs/hopper-medium/decision-aaren/seed0 --out policy.onnx
  aaren-rl export RUN --out small.onnx --quantize int8     # prints its error
  aaren-rl evaluate policy.onnx                            # evaluate the file

The file holds one environment step, for any number of environments: observation, last reward and state in, action and
new state out. Normalization, return-to-go, timestep, action range and metadata are inside.
The actions are tested against PyTorch over 1,000 steps of observations that are drawn with the mean and deviation of
the training data. If they differ by more than 1e-4 of half their range, nothing is written.

RUN is a run folder, or a policy folder in it such as RUN/policy_best.
"""

# Shape suffixes: B environments, O observation, A action, K steps of context, P numbers of a state, F = A + 1 + O.

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .._version import __version__
from ..agents.policy.policy import Policy
from ..agents.scan.rows import State, tensors
from ..base.errors import NumericsError, UsageError
from ..base.fields import CONTEXT
from ..base.files import check_writable, write_whole
from ..cli import Parser, import_registering, run
from ..evaluate.scores import describe_rollout
from ..policies.card import ROLLOUTS, WEIGHTS, PolicyCard, target_number, weights_words
from ..policies.folder import load_policy
from ..runtime import FORMAT, OnnxPolicy, from_bytes
from .module_step import filled, make_graph

if TYPE_CHECKING:
    import onnx

STEPS = 1000  # of the check
TOLERANCE = 1e-4  # in these units; of discrete actions, the largest logit or 1
UNITS = ("half the action range", "the largest logit")


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("export", __doc__, "RUN --out FILE [options]")
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
    if arguments.quantize is not None and policy.rollout == "window":  # whose weights the exporter folds
        raise UsageError("--quantize int8: takes a recurrent or staggered rollout; add --rollout, or leave it out")
    if note := policy.card.mismatch(policy.rollout, policy.context_length):
        print(note, file=sys.stderr)
    weights = arguments.weights or policy.card.weights
    card = dataclasses.replace(
        policy.card, rollout=policy.rollout, rollout_context=policy.context_length, weights=weights
    )
    model, precision = policy_graph(policy), "float32"
    describe(model, card, precision=precision)
    difference = check(policy, as_policy(model), card, STEPS, TOLERANCE)
    print(f"checked against PyTorch over {STEPS:,} steps: within {difference:.1e} of {UNITS[policy.discrete]}")
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
    unit: Any = policy.scaling.action_half.double().cpu().numpy()
    largest, act = 0.0, "logits" if policy.discrete else "act"
    for step in range(steps):
        observation = rng.normal(card.observation_mean, card.observation_std, (len(targets), policy.sizes[0]))
        reward = rng.normal(0.0, card.return_scale / card.horizon, len(targets)) * (step > 0)
        acted, state = getattr(policy, act)(observation, reward, state)
        other, other_state = getattr(exported, act)(observation, reward, other_state)
        if policy.discrete:
            unit = np.maximum(1.0, np.abs(acted).max())
        largest = float(np.maximum(largest, (np.abs(other - acted) / unit).max()))  # of a NaN, NaN
        if not largest <= tolerance:
            raise NumericsError(
                f"the exported policy differs from PyTorch at step {step} by {largest:.2g} of "
                f"{UNITS[policy.discrete]}, more than {tolerance:g}; nothing was written"
            )
        executed: Any = state.previous_action
        other_state = other_state._replace(previous_action=executed.copy())
    return largest


def policy_graph(policy: Policy) -> onnx.ModelProto:
    """The ONNX model of one step of a policy, in its rollout mode, untested.

    Raises:
        UsageError: the mixer has no ONNX graph in this rollout mode.
        ResourcesError: a package is missing.
    """
    what = f"the mixer {policy.model.config.mixer}"
    if not policy.supports_reset:
        raise UsageError(
            f"{what} has no state of constant size to export in the rollout {policy.rollout}; use --rollout window"
        )
    step = PolicyStep(policy).eval()
    inputs = step.example()
    outputs = ["action", *(["logits"] * policy.discrete), "next_return_to_go", "next_timestep", "next_memory"]
    try:
        return make_graph(step, inputs, outputs, tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs))
    except ValueError as error:
        raise UsageError(f"{what} has no ONNX graph in the rollout {policy.rollout}: {error}") from error


def describe(model: onnx.ModelProto, card: PolicyCard, **how: object) -> None:
    """Put the card, and how the file was made, into the metadata of a model, without the path of the data."""
    from onnx.helper import set_model_props

    card = dataclasses.replace(card, source_path=PurePath(card.source_path).name)
    texts = {"policy": dataclasses.asdict(card), "export": {"aaren-rl": __version__, **how}}
    set_model_props(model, {"aaren_rl_format": FORMAT, **{name: json.dumps(value) for name, value in texts.items()}})


def as_policy(model: onnx.ModelProto) -> OnnxPolicy:
    """The policy of a described model."""
    return from_bytes(model.SerializeToString(), "the exported model")


def quantize(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the trunk's weights as 8-bit integers, in blocks of up to 128 with one scale, for ONNX Runtime.

    Activations are quantized row by row (accuracy level 4), so rows of the batch do not depend on each other.
    """
    logging.disable(logging.INFO)  # the library prints one line per layer
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        from onnxruntime.quantization.onnx_model import ONNXModel

        whole = ONNXModel(copy.deepcopy(model))
        whole.replace_gemm_with_matmul()
        graph = whole.model.graph
        others = [node.name for node in graph.node if not any("trunk." in name for name in node.input)]
        narrowest = min(part.dims[0] for part in graph.initializer if len(part.dims) > 1 and "trunk." in part.name)
        block = min(128, max(16, 1 << (narrowest - 1).bit_length()))  # a power of two
        sizes: Any = {"bits": 8, "block_size": block, "is_symmetric": True, "accuracy_level": 4}
        small = MatMulNBitsQuantizer(whole.model, nodes_to_exclude=others, **sizes)
        small.process()
    finally:
        logging.disable(logging.NOTSET)
    small.model.clean_initializers()
    quantized: onnx.ModelProto = small.model.model
    return quantized


def _rows(state: State) -> Tensor:
    """All numbers of a state as rows (B, P), float64."""
    parts = [part for part in tensors(state) if part.numel()]
    return torch.cat([(part.flatten(1) if part.dim() > 1 else part.unsqueeze(1)).double() for part in parts], 1)


class PolicyStep(nn.Module):
    """`Policy.act` with the policy's current weights, without a temperature, on tensors alone: state in, action and new
    state out.

    Inputs, for B environments: observation (B, O), raw; reward (B,), of the step before; and the state: return_to_go
    (B,) in float64, timestep (B,), previous_action (B, A), memory (B, ...). Outputs: action (B, A) and
    next_return_to_go, next_timestep, next_memory; the next previous_action is the action, or the executed one if it
    differs. Discrete actions are int64 (B,), and there is an output logits (B, A), whose argmax is the action.
    Observations are float64 if a column lies far from zero. **An episode begins with timestep 0**, the target return as
    return_to_go and reward 0. The memory and the previous action are then ignored, so these three numbers reset an
    environment.

    The memory is, of a recurrent rollout, all tensors of the trunk's state in a row (B, P); of a staggered one two of
    these (B, 2, P); of a window the previous actions, returns-to-go and observations of the last steps (B, K - 1, F).
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, scaling = policy, policy.scaling
        self.model = copy.deepcopy(policy.model).cpu().requires_grad_(False)
        self.observation_mean = nn.Buffer(scaling.observation_mean.cpu())
        self.observation_std = nn.Buffer(scaling.observation_std.cpu())
        self.action_middle = nn.Buffer(scaling.action_middle.cpu())
        self.action_half = nn.Buffer(scaling.action_half.cpu())
        self.origin = None if scaling.origin is None else nn.Buffer(torch.from_numpy(scaling.origin))
        limits = policy.return_range
        bounds = np.zeros((0, 2)) if limits is None else np.asarray(limits.bounds, np.float64)
        self.bounds = nn.Buffer(torch.from_numpy(bounds))
        self._like = self.model.initial_state(1)
        self._sizes = [part.numel() for part in tensors(self._like) if part.numel()]
        self.fresh = nn.Buffer(_rows(self._like) if self._sizes else torch.zeros(1, 0))

    def example(self) -> dict[str, Tensor]:
        """Inputs by name, of two environments."""
        (observations, actions), length = self.policy.sizes, self.policy.context_length
        shapes = {"recurrent": (), "staggered": (2,), "window": (length - 1, actions + 1 + observations)}
        shape = *shapes[self.policy.rollout], *([] if self.policy.rollout == "window" else [sum(self._sizes)])
        return {
            "observation": torch.zeros(2, observations, dtype=torch.float32 if self.origin is None else torch.float64),
            "reward": torch.zeros(2, dtype=torch.float64),
            "return_to_go": torch.zeros(2, dtype=torch.float64),
            "timestep": torch.tensor([3, 5]),
            "previous_action": torch.zeros(2, dtype=torch.int64) if self.policy.discrete else torch.zeros(2, actions),
            "memory": torch.zeros(2, *shape, dtype=torch.float32 if self.policy.rollout == "window" else torch.float64),
        }

    def forward(
        self,
        observation: Tensor,
        reward: Tensor,
        return_to_go: Tensor,
        timestep: Tensor,
        previous_action: Tensor,
        memory: Tensor,
    ) -> tuple[Tensor, ...]:
        """The outputs in the order of `policy_graph`."""
        to_go = return_to_go - reward
        observation = observation if self.origin is None else (observation - self.origin).float()
        seen = (observation - self.observation_mean) / self.observation_std
        step = seen, self._fed(to_go, seen, timestep), timestep, self._previous(previous_action, timestep)
        out, memory = (self._on_window if self.policy.rollout == "window" else self._on_state)(*step, memory)
        after = to_go, timestep + 1, memory
        if self.policy.discrete:
            return out.argmax(1) + self.policy.action_start, out, *after
        return self.action_middle + self.action_half * out, *after

    def _fed(self, to_go: Tensor, seen: Tensor, timestep: Tensor) -> Tensor:
        """The return-to-go that the model sees (B,)."""
        scale, limits = self.policy.return_scale, self.policy.return_range
        if self.model.max_return_estimate is not None:
            to_go = torch.where(to_go == torch.inf, self.model.max_return_estimate(seen).double() * scale, to_go)
        if limits is not None:  # as `ReturnRange.clamp`
            row = torch.div(timestep, limits.every, rounding_mode="trunc").clamp(max=len(self.bounds) - 1)
            low, high = (bound.index_select(0, row) for bound in self.bounds.unbind(1))
            to_go = torch.minimum(torch.maximum(to_go, low), high)
        return (to_go / scale).float()

    def _previous(self, action: Tensor, timestep: Tensor) -> Tensor:
        """The previous action in the model's units (B, A); zeros where an episode begins."""
        if self.policy.discrete:
            wanted = torch.arange(self.policy.sizes[1]) + self.policy.action_start
            unit = (action.unsqueeze(1) == wanted).float()
        else:
            unit = (action - self.action_middle) / self.action_half
        return unit.masked_fill((timestep == 0).unsqueeze(1), 0.0)

    def _on_state(
        self, seen: Tensor, to_go: Tensor, timestep: Tensor, previous: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Recurrent and staggered."""
        begins, given = timestep == 0, (seen, to_go, timestep, previous)
        staggered, rows = self.policy.rollout == "staggered", memory
        if staggered:  # two rows per environment: every K / 2 steps the younger replaces the older and starts
            turns = timestep % (self.policy.context_length // 2) == 0
            older, younger = memory.unbind(1)
            rows = torch.stack([torch.where(turns.unsqueeze(1), younger, older), younger], 1).flatten(0, 1)
            begins = torch.stack([begins, turns], 1).flatten()
            seen, to_go, timestep, previous = (torch.stack([x, x], 1).flatten(0, 1) for x in given)
        tokens = self.model.step_tokens((seen, to_go, timestep, previous), begins if staggered else None)
        for number, token in enumerate(tokens):
            if number == max(0, len(tokens) - 2):  # behind the previous action, where it is a token
                rows = torch.where(begins.unsqueeze(1), self.fresh, rows)
            y, state = self.model.trunk.step(self.model.norm(token), self._state(rows))
            rows = _rows(state)
        out = self.model.predict(y)
        return (out.view(-1, 2, out.shape[1])[:, 0], rows.view(-1, 2, rows.shape[1])) if staggered else (out, rows)

    def _state(self, rows: Tensor) -> State:
        """The state of the trunk that rows (B, P) hold."""
        likes = [part for part in tensors(self._like) if part.numel()]
        parts = zip(rows.split(self._sizes, 1), likes, strict=True)
        shaped = (part.view(-1, *like.shape[1:]).to(like.dtype) for part, like in parts)
        return filled(self._like, shaped, rows.shape[0])  # not len(rows), which would be a constant

    def _on_window(
        self, seen: Tensor, to_go: Tensor, timestep: Tensor, previous: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Window: the last K steps, the newest at the end; what is before the episode is zero and not attended to."""
        rows = torch.cat([memory, torch.cat([previous, to_go.unsqueeze(1), seen], 1).unsqueeze(1)], 1)
        times = timestep.unsqueeze(1) + torch.arange(1 - self.policy.context_length, 1)
        rows = rows.masked_fill((times < 0).unsqueeze(2), 0.0)
        observations, actions = self.policy.sizes
        before, returns, observed = rows.split([actions, 1, observations], 2)
        taken = torch.cat([before[:, 1:], torch.zeros_like(before[:, :1])], 1)
        out, _ = self.model(observed, taken, returns.squeeze(2), times, starts=times == 0)
        return out[:, -1], rows[:, 1:]
