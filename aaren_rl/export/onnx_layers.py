"""A policy's layers as ONNX nodes, each of two-dimensional tokens (rows, C).

A node takes longer than what most of them compute. So a residual connection is the third input of the product that it
is added to. The bias that would stand there is added by the layer normalisation before; what else reads that one's
outputs takes it off again, in its own bias (`Linear.less`).

Shape suffixes: N states of the scan, J tokens per step, M tokens, Q of them whose outputs are wanted, C channels,
H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import nn

from ..agents import Aaren, Attention, Block, Encoded, Policy
from ..agents.mixers import HeadMixer
from ..agents.mixers.rsa.encoding import GatedEncoding
from .onnx_nodes import Array, Nodes, Value
from .onnx_weights import (
    ERFC,
    Doubles,
    Linear,
    beside,
    encoding_maps,
    exact,
    in_blocks,
    layer,
    scaled_query,
    scores_and_values,
)

NOTHING = -1e300  # the level of no tokens, and a score beside which every other is larger; finite, unlike -inf


class Layers:
    """Writes layers into `nodes`.

    Args:
        policy: whose layers.
        precision: see `onnx_graph.step_graph`.
    """

    def __init__(self, policy: Policy, precision: str) -> None:
        """No nodes yet."""
        self.nodes, self.policy, self._quantize = Nodes(), policy, precision == "int8"
        self.dtype = "float64" if precision == "float64" else "float32"
        model = policy.model
        self.width, self.heads, self.tokens = model.config.width, model.config.heads, model.config.tokens_per_step
        self.size = self.width // self.heads
        self.blocks = [cast(Block, block) for block in model.trunk.blocks]

    def scan(self, mixer: Aaren, x: str, mean: str, level: str, ignored: str | None) -> tuple[list[str], str, str]:
        """A step's tokens (N J, C) one after another, in float64.

        A state is the mean of the values, o = w / u (N, 1, H, D), and the level L = m + log u of their scores
        (N, 1, H, 1). After a token with value v and score s,

            L' = log(exp L + exp s)        o' = v + exp(L - L') (o - v)

        Returns:
            Every token's outputs, which are the means after it; the tokens' values (N, J, H, D); the level after them.
            Tokens that are `ignored`, bool (N, J, 1, 1), are overwritten by the next.
        """
        nodes, size, tokens = self.nodes, self.size, self.tokens
        leaves = self.as_type(self.linear(x, scores_and_values(mixer).less(exact(mixer.output.bias))), "float64")
        values, scores = nodes.split(nodes.reshape(leaves, -1, tokens, self.heads, size + 1), [size, 1], -1)
        if ignored is not None:
            scores = nodes.add("Where", ignored, np.array(NOTHING), scores)
        each = [nodes.split(part, [1] * tokens, 1) if tokens > 1 else [part] for part in (values, scores)]
        outputs = []
        for value, score in zip(*each, strict=True):
            after = nodes.add("ReduceLogSumExp", nodes.add("Concat", level, score, axis=-1), np.array([-1]))
            kept = nodes.add("Exp", nodes.add("Sub", level, after))
            mean = nodes.add("Add", value, nodes.add("Mul", kept, nodes.add("Sub", mean, value)))
            level = after
            outputs.append(mean)
        return outputs, values, level

    def encode(self, encoding: GatedEncoding, outputs: list[str], values: str, sums: str) -> tuple[list[str], str]:
        """The gate of recurrence encoding around the scan's outputs; also its sums (N, H, F, D) after the tokens.

        A head's outputs and next sums are linear in its sums and values.
        """
        nodes, tokens = self.nodes, self.tokens
        of_sums, of_values, gates = encoding_maps(encoding, self.heads, tokens)
        values = nodes.add("Transpose", values, perm=[0, 2, 1, 3])
        both = nodes.add("Add", nodes.add("MatMul", of_sums, sums), nodes.add("MatMul", of_values, values))
        *encoded, after = nodes.split(both, [1] * tokens + [of_sums.shape[-1]], 2)
        gated = []
        for mixed, recurrent in zip(outputs, encoded, strict=True):
            recurrent = nodes.reshape(recurrent, -1, 1, self.heads, self.size)
            less = nodes.add("Sub", recurrent, mixed)
            gated.append(nodes.add("Add", mixed, nodes.add("Mul", less, gates.reshape(-1, 1))))
        return gated, after

    def attend_fixed(self, mixer: nn.Module, x: str, queried: str, mask: str, length: int) -> str:
        """Aaren over a window (B M, C): softmax attention of the learned query."""
        assert isinstance(mixer, Aaren)
        nodes, size = self.nodes, self.size
        leaves = self.linear(x, scores_and_values(mixer).less(exact(mixer.output.bias)))
        leaves = nodes.reshape(leaves, -1, length, self.heads, size + 1)
        leaves = nodes.add("Transpose", leaves, perm=[0, 2, 1, 3])
        values, scores = nodes.split(leaves, [size, 1], -1)
        scores = nodes.add("Add", nodes.reshape(scores, 0, 0, 1, length), mask)
        return self.join_heads(nodes.add("MatMul", nodes.add("Softmax", scores, axis=-1), values))

    def attend(self, mixer: nn.Module, x: str, queried: str, mask: str, length: int) -> str:
        """Self-attention of the `queried` tokens over a window (B M, C)."""
        assert isinstance(mixer, Attention)
        nodes, heads, size = self.nodes, self.heads, self.size
        shift = exact(mixer.output.bias)
        pairs = self.linear(x, beside(layer(mixer.key), layer(mixer.value)).less(shift))
        pairs = nodes.reshape(pairs, -1, length, 2 * heads, size)
        keys, values = nodes.split(nodes.add("Transpose", pairs, perm=[0, 2, 1, 3]), [heads, heads], 1)
        queries = self.linear(queried, scaled_query(mixer).less(shift))
        queries = nodes.reshape(queries, -1, length if queried == x else 1, heads, size)
        queries = nodes.add("Transpose", queries, perm=[0, 2, 1, 3])
        scores = nodes.add("MatMul", queries, nodes.add("Transpose", keys, perm=[0, 1, 3, 2]))
        shares = nodes.add("Softmax", nodes.add("Add", scores, mask), axis=-1)
        return self.join_heads(nodes.add("MatMul", shares, values))

    def rest(self, number: int, x: str, mixed: str) -> str:
        """The block after its mixer's heads: `Block._rest` of tokens (N Q, C)."""
        block = self.blocks[number]
        widen, _, narrow = cast(tuple[nn.Linear, nn.Module, nn.Linear], tuple(block.mlp))
        shift = exact(narrow.bias)
        x = self.norm(self.linear(mixed, layer(_inner(block).output), x), block.norm1, shift)
        hidden = self.gelu(self.linear(x, layer(widen).less(shift)))
        return self.norm(self.linear(hidden, layer(narrow), x), block.norm2, self.shift(number + 1))

    def shift(self, number: int) -> Doubles:
        """What is added to the input of a block, and of none to what follows the last."""
        return exact(_inner(self.blocks[number]).output.bias) if number < len(self.blocks) else np.zeros(self.width)

    def gelu(self, x: str) -> str:
        """x (1 + erf(x / sqrt(2))) / 2."""
        nodes = self.nodes
        if self.dtype == "float32":
            return nodes.add("Gelu", x)
        # ONNX Runtime has no erf in float64. For z >= 0 it is 1 - t exp(P(t) - z^2), t = 2 / (2 + z).
        z = nodes.add("Abs", nodes.add("Mul", x, self.constant(math.sqrt(0.5))))
        t = nodes.add("Div", self.constant(2), nodes.add("Add", z, self.constant(2)))
        y = nodes.add("Sub", nodes.add("Add", t, t), self.constant(1))
        exponent: Value = self.constant(0)
        for coefficient in ERFC[::-1]:
            exponent = nodes.add("Add", nodes.add("Mul", exponent, y), self.constant(coefficient))
        tail = nodes.add("Mul", t, nodes.add("Exp", nodes.add("Sub", exponent, nodes.add("Mul", z, z))))
        erf = nodes.add("Mul", nodes.add("Sign", x), nodes.add("Sub", self.constant(1), tail))
        return nodes.add("Mul", nodes.add("Mul", x, self.constant(0.5)), nodes.add("Add", erf, self.constant(1)))

    def as_type(self, x: str, dtype: str, given: str | None = None) -> str:
        """The value in another type; `given` is its own, the graph's unless said."""
        return x if dtype == (given or self.dtype) else self.nodes.cast(x, dtype)

    def constant(self, array: npt.ArrayLike) -> Array:
        """Numbers in the graph's type."""
        return np.array(array, self.dtype, order="C")

    def join_heads(self, mixed: str) -> str:
        """(N, H, Q, D) to (N Q, C)."""
        return self.nodes.reshape(self.nodes.add("Transpose", mixed, perm=[0, 2, 1, 3]), -1, self.width)

    def last_token(self, x: str, length: int, position: int = -1) -> str:
        """Of tokens (N M, C) one of every M, (N, C)."""
        if length == 1:
            return x
        x = self.nodes.reshape(x, -1, length, self.width)
        return self.nodes.add("Gather", x, np.array(position), axis=1)

    def norm(self, x: str, norm: nn.LayerNorm, shift: Doubles) -> str:
        """Layer normalisation of the last dimension, and `shift` (C,) on top."""
        weights = self.constant(exact(norm.weight)), self.constant(exact(norm.bias) + shift)
        return self.nodes.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def linear(self, x: str, weights: Linear, onto: str | None = None) -> str:
        """A layer of the trunk, (rows, inputs) -> (rows, outputs), added to `onto` instead of to its bias."""
        if not self._quantize:
            return self.gemm(x, weights, onto)
        values, scales = in_blocks(weights.weight)
        inputs, outputs = weights.weight.shape
        # Activations are rounded to 8 bits row by row (accuracy level 4), so that a row's result is its own.
        kind = {"K": inputs, "N": outputs, "bits": 8, "block_size": values.shape[-1], "accuracy_level": 4}
        product = self.nodes.add("MatMulNBits", x, values, scales, domain="com.microsoft", **kind)
        return self.nodes.add("Add", product, self.constant(weights.bias) if onto is None else onto)

    def gemm(self, x: str, weights: Linear, onto: str | None = None) -> str:
        """A layer whose weights are never quantized."""
        bias = self.constant(weights.bias) if onto is None else onto
        return self.nodes.add("Gemm", x, self.constant(weights.weight), bias)


def _inner(block: Block) -> HeadMixer:
    """A block's mixer, without the encoding around it."""
    inner = block.mixer.inner if isinstance(block.mixer, Encoded) else block.mixer
    assert isinstance(inner, HeadMixer)  # of those that are exported
    return inner
