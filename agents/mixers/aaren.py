"""Aaren: causal softmax attention with one learned query, a recurrent network in constant memory (Feng et al. 2024).

Its state only adds: a token's share of the average shrinks as others come, and is never taken back. With a forget gate
every token x_j fades what was before it, per head, by f_j = sigmoid(w . x_j + b): see `prefix_scan`.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..scan.prefix import prefix_scan, scan_step
from ..scan.state import ScanState
from .base import HeadMixer
from .forms import NOTHING, Doubles, Linear, MixerGraph, Nodes, StepWeights, exact

# Steps after which a head keeps 1 / e before training: of all heads but the last on a logarithmic scale.
SHORTEST, LONGEST = 2.0, 200.0
ENDLESS = 1e7  # of the last head, which keeps what it sees through a million steps, as without a gate
GATE_SCALE = 0.1  # of the gates' weights: at first the biases decide


class Aaren(HeadMixer):
    """Token mixer of section 3.3: y_k = W_o Attention(q, x_1..k), q = W_q of a learned query token.

    Its parameters are those of self-attention plus the C numbers of the query token (section 4.5), plus H (C + 1) of
    the forget gate.

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        forget_gate: whether tokens fade those before them.
    """

    constant_state, compiled_step, recordable, exported = True, True, True, True

    def __init__(self, width: int, heads: int, forget_gate: bool = False) -> None:
        query_token = torch.randn(width)  # as large as a layer-normalized token; drawn before the projections
        super().__init__(width, heads)
        self.query_token = nn.Parameter(query_token)
        self.forget = nn.Linear(width, heads) if forget_gate else None
        if self.forget is not None:
            with torch.no_grad():
                self.forget.weight.mul_(GATE_SCALE)
                self.forget.bias.copy_(initial_gates(heads))

    def mix(
        self, x: Tensor, state: ScanState | None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, Tensor, ScanState]:
        values, (scores, decay) = self.split(self.value(x)), self._scores_and_decays(x)
        scores, decay = scores.transpose(1, 2), None if decay is None else decay.transpose(1, 2)
        starts = None if starts is None else starts.unsqueeze(1)
        mixed, state = prefix_scan(scores, values, state, log_decay=decay, starts=starts)
        return mixed if keep is None else mixed[:, :, keep], values, state

    def mix_step(self, x: Tensor, state: ScanState) -> tuple[Tensor, Tensor, ScanState]:
        value = self.value(x).unflatten(-1, (self.heads, self.head_dim))
        score, decay = self._scores_and_decays(x)
        mixed, state = scan_step(score, value, state, decay)
        return mixed, value, state

    def initial_state(self, batch_size: int) -> ScanState:
        return ScanState.identity((batch_size, self.heads), self.head_dim, device=self.query_token.device)

    def step_weights(self) -> StepWeights:
        parts = [(self.value.weight, self.value.bias), self.projection()]
        weight, bias = (torch.cat(part) for part in zip(*parts, strict=True))
        return StepWeights(weight, bias, self.output, self.heads)

    def graph(self) -> ScanGraph:
        return ScanGraph(copy.deepcopy(self).double().step_weights())

    def _scores_and_decays(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """q . k and log f of every token, (..., C) -> (..., H), in float32 at least."""
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.projection()
            found = F.linear(x.to(weight.dtype), weight, bias)
            if self.forget is None:
                return found, None
            scores, gates = found.split(self.heads, -1)
            return scores, F.logsigmoid(gates)

    def projection(self) -> tuple[Tensor, Tensor]:
        """Scores, and gates before their sigmoid, as one linear map of a token: (H or 2 H, C), and bias (H or 2 H,).

        The query is the same for every token, so q . (W_k x) = (W_k^T q) . x: a C x H product instead of C x C.
        """
        dtype, shape = torch.promote_types(self.key.weight.dtype, torch.float32), (self.heads, self.head_dim)
        query = F.linear(self.query_token.to(dtype), self.query.weight.to(dtype), self.query.bias.to(dtype))
        query = query.unflatten(-1, shape) / math.sqrt(self.head_dim)
        weight = torch.einsum("hd,hdc->hc", query, self.key.weight.to(dtype).unflatten(-2, shape))
        bias = torch.einsum("hd,hd->h", query, self.key.bias.to(dtype).unflatten(-1, shape))
        if self.forget is None:
            return weight, bias
        gates = self.forget.weight.to(dtype), self.forget.bias.to(dtype)
        return torch.cat([weight, gates[0]], -2), torch.cat([bias, gates[1]], -1)


def initial_gates(heads: int) -> Tensor:
    """The biases of the forget gates before training, (H,): log(f / (1 - f)) with f = 1 - 1 / steps."""
    ends = math.log10(SHORTEST), math.log10(LONGEST)
    # On a CPU: for the device "meta", which saved models are made on, torch imports its compiler, which takes a second.
    steps = torch.cat([torch.logspace(*ends, heads - 1, device="cpu"), torch.tensor([ENDLESS], device="cpu")])
    return torch.log(steps.double() - 1).float()


class ScanGraph(MixerGraph):
    """Aaren's scan, in float64.

    A state is the mean of the values, o = w / u (N, 1, H, D), and the level L = m + log u of their scores (N, 1, H, 1).
    After a token with value v, score s and log-decay d,

        L' = log(exp(L + d) + exp s)        o' = v + exp(L + d - L') (o - v)
    """

    output: nn.Linear

    def __init__(self, weights: StepWeights) -> None:
        self.weights, self.output, self.heads = weights, weights.output, weights.heads
        self.size = weights.output.in_features // weights.heads
        self.parts = (self.size, 0.0), (1, NOTHING)

    def refusal(self, rollout: str, tokens: int) -> str | None:
        return None

    def step(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], list[str]]:
        outputs, _, after = self.scan(nodes, x, old, ignored)
        return outputs, after

    def scan(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], str, list[str]]:
        """As `step`, with the values of the tokens, (N, J, H, D), in the middle."""
        tokens, (mean, level) = nodes.tokens, old
        inputs = self.inputs(nodes, x, tokens)
        if ignored is not None:
            inputs[1] = nodes.add("Where", ignored, np.array(NOTHING), inputs[1])
            inputs[2:] = [nodes.add("Where", ignored, np.array(0.0), decay) for decay in inputs[2:]]
        each = [nodes.split(part, [1] * tokens, 1) if tokens > 1 else [part] for part in inputs]
        outputs = []
        for value, score, *decay in zip(*each, strict=True):
            before = nodes.add("Sub", level, decay[0]) if decay else level
            level = nodes.add("ReduceLogSumExp", nodes.add("Concat", before, score, axis=-1), np.array([-1]))
            kept = nodes.add("Exp", nodes.add("Sub", before, level))
            mean = nodes.add("Add", value, nodes.add("Mul", kept, nodes.add("Sub", mean, value)))
            outputs.append(mean)
        return outputs, inputs[0], [mean, level]

    def inputs(self, nodes: Nodes, x: str, tokens: int) -> list[str]:
        """Of tokens (N J, C) the values (N, J, H, D), scores and, with a forget gate, -log f (N, J, H, 1), in float64.

        -log f = log(exp 0 + exp(-gate)), of two columns of the layer: ONNX Runtime has no softplus in float64.
        """
        width, heads = self.heads * self.size, self.heads
        weight, bias = exact(self.weights.weight).T, exact(self.weights.bias)  # (C, C + H or C + 2 H)
        gated = len(bias) > width + heads

        def of_heads(x: Doubles) -> Doubles:
            """The columns (..., C + H or C + 2 H) by heads, (..., H (D + 1 or D + 3))."""
            values, score = x[..., :width].reshape(*x.shape[:-1], heads, -1), x[..., width : width + heads, None]
            gate = x[..., width + heads :, None]
            parts = [values, score, 0 * gate, -gate] if gated else [values, score]
            return np.concatenate(parts, -1).reshape(*x.shape[:-1], -1)

        whole = Linear(of_heads(weight), of_heads(bias)).less(exact(self.output.bias))
        leaves = nodes.as_type(nodes.linear(x, whole), "float64")
        sizes = [self.size, 1, 2] if gated else [self.size, 1]
        found = nodes.split(nodes.reshape(leaves, -1, tokens, self.heads, sum(sizes)), sizes, -1)
        return found[:2] + [nodes.add("ReduceLogSumExp", pair, np.array([-1])) for pair in found[2:]]

    def attend(self, nodes: Nodes, x: str, queried: str, mask: str, length: int) -> str:
        """Softmax of s_i + the sum of -log f up to i: what the decays after the window's last token add, cancels."""
        values, scores, *decay = (
            nodes.add("Transpose", part, perm=[0, 2, 1, 3]) for part in self.inputs(nodes, x, length)
        )
        scores = nodes.add("Add", scores, nodes.add("CumSum", decay[0], np.array(2))) if decay else scores
        scores = nodes.add("Add", nodes.reshape(scores, 0, 0, 1, length), nodes.as_type(mask, "float64", nodes.dtype))
        mixed = nodes.add("MatMul", nodes.add("Softmax", scores, axis=-1), values)
        mixed = nodes.as_type(mixed, nodes.dtype, "float64")
        return nodes.reshape(nodes.add("Transpose", mixed, perm=[0, 2, 1, 3]), -1, self.heads * self.size)
