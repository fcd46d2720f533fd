"""What other engines compute a mixer's step from: its weights for `kernels/step.py`, and its nodes of an ONNX graph.

A mixer's `graph` is a subclass of `MixerGraph`; `aaren_rl.export` builds the graph around it. Weights are NumPy arrays
in float64, with constants folded in. A node costs more than most computations: what can be folded into weights is.

Shape suffixes: N states of the memory, J tokens per step, M tokens of a window, C channels, H heads, D = C / H channels
per head, F sums of a recurrence encoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .rsa.encoding import GatedEncoding

Doubles: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = str | npt.NDArray[Any]  # the name of a computed value, or a constant
NOTHING = -1e300  # the level without tokens, and a score below all others; finite, unlike -inf


class StepWeights(NamedTuple):
    """The weights of Aaren, from which `kernels/step.py` and `ScanGraph` compute a step.

    Attributes:
        weight: of a token's values, scores and, with a forget gate, gates: (C + H or C + 2 H, C).
        bias: likewise, (C + H or C + 2 H,).
        output: W_o.
        heads: H.
        encoding: recurrence encoding around the heads; None: there is none.
    """

    weight: Tensor
    bias: Tensor
    output: nn.Linear
    heads: int
    encoding: GatedEncoding | None = None


class Linear(NamedTuple):
    """x @ weight + bias, (inputs, outputs) and (outputs,)."""

    weight: Doubles
    bias: Doubles

    def less(self, shift: Doubles) -> Linear:
        """A layer with the same outputs for inputs plus `shift` (inputs,)."""
        return Linear(self.weight, self.bias - shift @ self.weight)


def exact(tensor: Tensor) -> Doubles:
    """A tensor in float64."""
    return np.asarray(tensor.detach().cpu(), np.float64)


def layer(module: nn.Linear) -> Linear:
    """One layer, with a zero bias if it has none."""
    weight = exact(module.weight).T
    return Linear(weight, np.zeros(weight.shape[1]) if module.bias is None else exact(module.bias))


def beside(*layers: Linear) -> Linear:
    """Several layers of the same inputs as one, with concatenated outputs."""
    return Linear(*(np.concatenate(parts, -1) for parts in zip(*layers, strict=True)))


class Nodes(Protocol):
    """What adds nodes to a graph; its methods return names of outputs."""

    dtype: str  # of the graph, "float32" or "float64"
    tokens: int  # J

    def add(self, op: str, *inputs: Value, out: str | None = None, **attributes: Any) -> str: ...  # noqa: ANN401  ONNX's

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> list[str]: ...

    def reshape(self, x: Value, *shape: int, out: str | None = None) -> str: ...

    def linear(self, x: str, weights: Linear, onto: str | None = None) -> str: ...

    def as_type(self, x: str, dtype: str, given: str | None = None) -> str: ...


class MixerGraph:
    """One mixer's part of a graph.

    Attributes:
        heads: rows of its memory.
        parts: sizes of what the memory has in every row, and the numbers with which an episode begins.
        output: what follows the outputs of the heads; None: nothing does.
    """

    heads: int
    parts: tuple[tuple[int, float], ...]
    output: nn.Linear | None

    def refusal(self, rollout: str, tokens: int) -> str | None:
        """None where there is a graph in this rollout mode and of so many tokens per step; else what follows "the mixer
        NAME": what it has a graph for, and what to do.
        """
        raise NotImplementedError

    def step(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], list[str]]:
        """One step.

        Args:
            nodes: takes the nodes.
            x: tokens (N J, C), larger by the bias of `output`.
            old: the parts of the memory, (N, 1, heads, size) each, in float64.
            ignored: bool (N, J, 1, 1), tokens that the next one overwrites; None where there are none.

        Returns:
            The outputs of every token, (N, 1, heads, C / heads) in float64, and the parts of the memory after them.
        """
        raise NotImplementedError

    def attend(self, nodes: Nodes, x: str, queried: str, mask: str, length: int) -> str:
        """Attention over a window.

        Args:
            nodes: takes the nodes.
            x: tokens (B M, C), larger by the bias of `output`.
            queried: those whose outputs (rows, C) are wanted: all, or the last of every window.
            mask: added to the scores, (B or 1, 1, M or 1, M).
            length: M.
        """
        raise NotImplementedError


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


class EncodedGraph(MixerGraph):
    """Aaren with recurrence encoding: a step of the encoding is a linear map of its sums and of the values."""

    def __init__(self, weights: StepWeights) -> None:
        assert weights.encoding is not None
        self.inner, self.encoding = ScanGraph(weights), weights.encoding
        self.output, self.heads = weights.output, weights.heads
        self.sums = encoding_maps(self.encoding, self.heads, 1)[0].shape[-1]  # F
        self.parts = (*self.inner.parts, (self.sums * self.inner.size, 0.0))

    def refusal(self, rollout: str, tokens: int) -> str | None:
        if rollout != "window":
            return None
        return "has an ONNX graph in the rollouts recurrent and staggered; use --rollout recurrent"

    def step(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], list[str]]:
        outputs, values, after = self.inner.scan(nodes, x, old[:2], ignored)
        if ignored is not None:
            values = nodes.add("Where", ignored, np.array(0.0), values)
        heads, size, tokens = self.heads, self.inner.size, nodes.tokens
        of_sums, of_values, gates = encoding_maps(self.encoding, heads, tokens)
        before = nodes.reshape(old[2], -1, heads, self.sums, size)
        values = nodes.add("Transpose", values, perm=[0, 2, 1, 3])
        both = nodes.add("Add", nodes.add("MatMul", of_sums, before), nodes.add("MatMul", of_values, values))
        *encoded, sums = nodes.split(both, [1] * tokens + [of_sums.shape[-1]], 2)
        gated = []
        for mixed, recurrent in zip(outputs, encoded, strict=True):
            less = nodes.add("Sub", nodes.reshape(recurrent, -1, 1, heads, size), mixed)
            gated.append(nodes.add("Add", mixed, nodes.add("Mul", less, gates.reshape(-1, 1))))
        return gated, [*after, nodes.reshape(sums, -1, 1, heads, self.sums * size)]


class AttentionGraph(MixerGraph):
    """Self-attention over a window; its key-value cache grows, which a graph's state cannot."""

    parts = ()

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, heads: int) -> None:
        self.output, self.heads, self.size = output, heads, output.in_features // heads
        self.pairs = beside(layer(key), layer(value)).less(exact(output.bias))
        self.query = Linear(*(part / math.sqrt(self.size) for part in layer(query))).less(exact(output.bias))

    def refusal(self, rollout: str, tokens: int) -> str | None:
        if rollout == "window":
            return None
        return f"has no state of constant size to export in the rollout {rollout}; use --rollout window"

    def attend(self, nodes: Nodes, x: str, queried: str, mask: str, length: int) -> str:
        heads, size = self.heads, self.size
        pairs = nodes.reshape(nodes.linear(x, self.pairs), -1, length, 2 * heads, size)
        keys, values = nodes.split(nodes.add("Transpose", pairs, perm=[0, 2, 1, 3]), [heads, heads], 1)
        queries = nodes.reshape(nodes.linear(queried, self.query), -1, length if queried == x else 1, heads, size)
        queries = nodes.add("Transpose", queries, perm=[0, 2, 1, 3])
        scores = nodes.add("MatMul", queries, nodes.add("Transpose", keys, perm=[0, 1, 3, 2]))
        mixed = nodes.add("MatMul", nodes.add("Softmax", nodes.add("Add", scores, mask), axis=-1), values)
        return nodes.reshape(nodes.add("Transpose", mixed, perm=[0, 2, 1, 3]), -1, heads * size)


class UnitGraph(MixerGraph):
    """A gated unit, whose output is its state h, (N, 1, 1, C): h' = new + kept (h - new)."""

    heads, output = 1, None

    def __init__(self, width: int) -> None:
        self.width = width
        self.parts = ((width, 0.0),)

    def refusal(self, rollout: str, tokens: int) -> str | None:
        if rollout != "window" and tokens == 1:
            return None
        return (
            "has an ONNX graph in the rollouts recurrent and staggered, with one token per step; "
            "use --rollout recurrent and a policy trained with --tokens-per-step 1"
        )

    def step(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], list[str]]:
        h = nodes.reshape(old[0], -1, self.width)
        new, kept = self.new_and_kept(nodes, x, h)
        after = nodes.add("Add", new, nodes.add("Mul", kept, nodes.add("Sub", h, new)))
        after = nodes.reshape(after, -1, 1, 1, self.width)
        return [after], [after]

    def new_and_kept(self, nodes: Nodes, x: str, h: str) -> tuple[str, str]:
        """Of tokens (N, C) and h (N, C) the new values and the shares of h that are kept, (N, C) in float64."""
        raise NotImplementedError


class GRUGraph(UnitGraph):
    """The gated recurrent unit."""

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__(gru.hidden_size)
        weights = gru.all_weights[0]
        self.maps = [Linear(exact(weights[i]).T, exact(weights[i + 2])) for i in range(2)]  # of x, of h

    def new_and_kept(self, nodes: Nodes, x: str, h: str) -> tuple[str, str]:
        sides = zip((x, nodes.as_type(h, nodes.dtype, "float64")), self.maps, strict=True)
        products = (nodes.as_type(nodes.linear(side, of), "float64") for side, of in sides)
        sizes = [2 * self.width, self.width]
        (gate, new), (its_gate, its_new) = (nodes.split(product, sizes, 1) for product in products)
        gates = nodes.add("Sigmoid", nodes.add("Add", gate, its_gate))
        reset, kept = nodes.split(gates, [self.width] * 2, 1)
        return nodes.add("Tanh", nodes.add("Add", new, nodes.add("Mul", reset, its_new))), kept


class MinGRUGraph(UnitGraph):
    """minGRU; the weights of its gate are negated, so that the sigmoid is of what is kept."""

    def __init__(self, gate: nn.Linear, candidate: nn.Linear) -> None:
        super().__init__(gate.out_features)
        self.map = beside(Linear(*(-part for part in layer(gate))), layer(candidate))

    def new_and_kept(self, nodes: Nodes, x: str, h: str) -> tuple[str, str]:
        of_token = nodes.as_type(nodes.linear(x, self.map), "float64")
        gate, new = nodes.split(of_token, [self.width] * 2, 1)
        return new, nodes.add("Sigmoid", gate)


def encoding_maps(encoding: GatedEncoding, heads: int, tokens: int) -> tuple[Doubles, Doubles, Doubles]:
    """A step of recurrence encoding as linear maps per head: from its sums and J values to outputs and sums.

    Returns:
        Two maps, from the F sums of a head (oldest token first) and from its `tokens` J values, to J outputs and the
        new F sums, (H, J + F, F) and (H, J + F, J); and the gates (H, 1, 1), 0 for a head without an encoding.
    """
    groups: list[Any] = list(encoding.groups)
    count = max(group.dilation * group.rows for group in groups)
    maps, gates = np.zeros((heads, tokens + count, count + tokens)), np.zeros((heads, 1, 1))
    head = 0
    for group in groups:
        for own_row, z in zip(group.own_rows, exact(group.powers(torch.ones(1))[:, 0]), strict=True):
            rows, dilation = group.rows, group.dilation
            sums = list(np.eye(count, count + tokens)[: rows * dilation].reshape(dilation, rows, -1))
            for token in range(tokens):
                recurrent = z @ sums[token]
                maps[head, token] = recurrent[own_row]
                recurrent[0, count + token] += 1
                sums.append(recurrent)
            maps[head, tokens : tokens + rows * dilation] = np.concatenate(sums[tokens : tokens + dilation])
            gates[head] = float(encoding.mu.detach().double().sigmoid())
            head += 1
    return maps[..., :count], maps[..., count:], gates
