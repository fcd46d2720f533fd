"""A policy's layers as ONNX nodes, each of two-dimensional tokens (rows, C).

Shape suffixes: N states of the scan, M tokens of one, Q of them whose outputs are wanted, C channels, H heads,
D = C / H channels a head.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import nn

from ..agents import Aaren, Attention, Block, Encoded, Policy
from ..agents.mixers.rsa.encoding import GatedEncoding
from .onnx_nodes import Array, Nodes, Value
from .onnx_weights import (
    ERFC,
    TOKENS,
    Linear,
    beside,
    encoding_maps,
    exact,
    in_blocks,
    layer,
    scaled_query,
    scores_and_values,
)


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
        self.width, self.heads = model.config.width, model.config.heads
        self.size = self.width // self.heads
        self.blocks = [cast(Block, block) for block in model.trunk.blocks]

    def scan(
        self, mixer: Aaren, x: str, state: tuple[str, str], mask: str, final: bool
    ) -> tuple[str, str, tuple[str, str]]:
        """Three tokens (3 N, C) of the scan, all prefixes as one small product in float64: `_dense` of agents/scan.

        `state` and the last of what comes out: w and u side by side (N, H, 1, D + 1), and m (N, H, 1, 1). Before it
        the heads' outputs (N, H, Q, D), and the tokens' values with a one behind each (N, H, 3, D + 1).
        """
        nodes, size = self.nodes, self.size
        leaves = self.as_type(self.linear(x, scores_and_values(mixer)), "float64")
        leaves = nodes.add("Transpose", nodes.reshape(leaves, -1, TOKENS, self.heads, size + 2), perm=[0, 2, 1, 3])
        values, scores = nodes.split(leaves, [size + 1, 1], -1)
        scores = nodes.add("Concat", state[1], nodes.reshape(scores, 0, 0, 1, TOKENS), axis=-1)
        scores = nodes.add("Add", scores, mask)
        m = nodes.add("ReduceMax", scores, np.array([-1]), keepdims=1)
        shares = nodes.add("Exp", nodes.add("Sub", scores, m))
        w_and_u = nodes.add("MatMul", shares, nodes.add("Concat", state[0], values, axis=2))
        # Of what a position may attend to the largest has share 1, so u is at least 1.
        mixed = nodes.add("Div", *nodes.split(w_and_u, [size, 1], -1))
        if not final:
            w_and_u, m = (nodes.part(part, 2, TOKENS - 1, TOKENS) for part in (w_and_u, m))
        return mixed, values, (w_and_u, m)

    def encode(
        self, encoding: GatedEncoding, mixed: str, values: str, sums: str, fresh: str, final: bool
    ) -> tuple[str, str]:
        """The gate of recurrence encoding around the scan's outputs; also its sums (N, H, F, D) after three tokens.

        A head's outputs and next sums are linear in its sums and values. Where a state is `fresh` (N, 1, 1, 1) there
        is no first token: as long as all sums are zero, one of value zero changes nothing but their places.
        """
        nodes = self.nodes
        of_sums, of_values, gates = encoding_maps(encoding, self.heads)
        first = np.array([True, False, False]).reshape(TOKENS, 1)
        ignored = nodes.add("And", fresh, first)
        values = nodes.add("Where", ignored, np.array(0.0), nodes.part(values, 3, 0, self.size))
        both = nodes.add("Add", nodes.add("MatMul", of_sums, sums), nodes.add("MatMul", of_values, values))
        encoded, after = nodes.split(both, [TOKENS, of_sums.shape[-1]], 2)
        if final:
            encoded = nodes.part(encoded, 2, TOKENS - 1, TOKENS)
        return nodes.add("Add", mixed, nodes.add("Mul", nodes.add("Sub", encoded, mixed), gates)), after

    def attend_fixed(self, mixer: nn.Module, x: str, queried: str, mask: str, length: int) -> str:
        """Aaren over a window (B M, C): softmax attention of the learned query."""
        assert isinstance(mixer, Aaren)
        nodes, size = self.nodes, self.size
        leaves = nodes.reshape(self.linear(x, scores_and_values(mixer)), -1, length, self.heads, size + 2)
        leaves = nodes.add("Transpose", leaves, perm=[0, 2, 1, 3])
        values, _, scores = nodes.split(leaves, [size, 1, 1], -1)
        scores = nodes.add("Add", nodes.reshape(scores, 0, 0, 1, length), mask)
        return self.join_heads(nodes.add("MatMul", nodes.add("Softmax", scores, axis=-1), values))

    def attend(self, mixer: nn.Module, x: str, queried: str, mask: str, length: int) -> str:
        """Self-attention of the `queried` tokens over a window (B M, C)."""
        assert isinstance(mixer, Attention)
        nodes, heads, size = self.nodes, self.heads, self.size
        pairs = nodes.reshape(self.linear(x, beside(layer(mixer.key), layer(mixer.value))), -1, length, 2 * heads, size)
        keys, values = nodes.split(nodes.add("Transpose", pairs, perm=[0, 2, 1, 3]), [heads, heads], 1)
        queries = self.linear(queried, scaled_query(mixer))
        queries = nodes.reshape(queries, -1, length if queried == x else 1, heads, size)
        queries = nodes.add("Transpose", queries, perm=[0, 2, 1, 3])
        scores = nodes.add("MatMul", queries, nodes.add("Transpose", keys, perm=[0, 1, 3, 2]))
        shares = nodes.add("Softmax", nodes.add("Add", scores, mask), axis=-1)
        return self.join_heads(nodes.add("MatMul", shares, values))

    def rest(self, block: Block, x: str, mixed: str) -> str:
        """The block after its mixer's heads: `Block._rest` of tokens (N Q, C)."""
        nodes, mlp, mixer = self.nodes, block.mlp, block.mixer
        inner = mixer.inner if isinstance(mixer, Encoded) else mixer
        x = self.norm(nodes.add("Add", x, self.linear(mixed, layer(inner.output))), block.norm1)
        hidden = self.gelu(self.linear(x, layer(cast(nn.Linear, mlp[0]))))
        return self.norm(nodes.add("Add", x, self.linear(hidden, layer(cast(nn.Linear, mlp[2])))), block.norm2)

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
        x = self.nodes.reshape(x, -1, length, self.width)
        return self.nodes.add("Gather", x, np.array(position), axis=1)

    def norm(self, x: str, norm: nn.LayerNorm) -> str:
        """Layer normalisation of the last dimension."""
        weights = (self.constant(exact(part)) for part in (norm.weight, norm.bias))
        return self.nodes.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def linear(self, x: str, weights: Linear) -> str:
        """A layer of the trunk, (rows, inputs) -> (rows, outputs)."""
        if not self._quantize:
            return self.gemm(x, weights)
        nodes, blocks = self.nodes, in_blocks(weights.weight)
        inputs, outputs = weights.weight.shape
        # Activations are rounded to 8 bits row by row (accuracy level 4), so that a row's result is its own.
        product = nodes.add(
            "MatMulNBits",
            x,
            blocks.values,
            blocks.scales,
            domain="com.microsoft",
            K=inputs,
            N=outputs,
            bits=8,
            block_size=blocks.values.shape[-1],
            accuracy_level=4,
        )
        return nodes.add("Add", product, self.constant(weights.bias))

    def gemm(self, x: str, weights: Linear) -> str:
        """A layer whose weights are never quantized."""
        return self.nodes.add("Gemm", x, *(self.constant(part) for part in weights))
