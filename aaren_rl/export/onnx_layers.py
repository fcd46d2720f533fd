"""The layers of a policy as ONNX nodes on two-dimensional tokens (rows, C).

The overhead of a node exceeds most computations. So a residual connection is the third input of the product that it is
added to. The bias in its place moves to the layer normalization before, and other readers of that normalization
subtract it in their own bias (`Linear.less`).

Shape suffixes: N states of the memory, M tokens, Q of them with outputs, C channels.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from ..agents import Block, Policy
from ..agents.mixers.forms import Doubles, Linear, Value, exact, layer
from ..agents.model.trunk import PreNormBlock
from .onnx_weights import ERFC, in_blocks

Array: TypeAlias = npt.NDArray[Any]
Sizes: TypeAlias = dict[str, tuple[str, list[int]]]  # name -> type, and shape without the batch

OPSET = 20  # the first opset with Gelu
IR_VERSION = 9  # ONNX Runtime rejects files with a newer version than its own
DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


class Layers:
    """Collects the nodes of a graph in order of computation. Methods add nodes and return the name of their output."""

    def __init__(self, policy: Policy, precision: str) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._count = 0  # number of nodes so far, including branches
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._tensors: list[TensorProto] = []
        self.policy, self._quantize = policy, precision == "int8"
        self.dtype = "float64" if precision == "float64" else "float32"
        model = policy.model
        self.width, self.tokens = model.config.width, model.config.tokens_per_step
        self.features = model.config.action_dim + 1 + model.config.observation_dim
        self.blocks = [cast(Block, block) for block in model.trunk.blocks]
        self.mixers = [block.mixer.graph() for block in self.blocks]
        self.pre_norm = isinstance(self.blocks[0], PreNormBlock)

    def add(self, op: str, *inputs: Value, out: str | None = None, **attributes: Any) -> str:  # noqa: ANN401  any ONNX attribute
        """Add a node with one output. `out` is its public name."""
        return self._add(op, *inputs, outputs=[out], **attributes)[0]

    def observed(self) -> str:
        """Observations (B, O) in float32, without the policy's origin."""
        if (origin := self.policy.scaling.origin) is None:
            return "observation"
        return self.as_type(self.add("Sub", "observation", origin), "float32", "float64")

    def normalized(self) -> str:
        """Normalized observations (B, O), in float32."""
        scaling = self.policy.scaling
        mean, std = (exact(x).astype(np.float32) for x in (scaling.observation_mean, scaling.observation_std))
        return self.add("Div", self.add("Sub", self.observed(), mean), std)

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> list[str]:
        return self._add("Split", x, np.array(sizes, np.int64), outputs=[None] * len(sizes), axis=axis)

    def reshape(self, x: Value, *shape: int, out: str | None = None) -> str:
        """Reshape. 0 keeps a size, -1 is inferred."""
        return self.add("Reshape", x, np.array(shape, np.int64), out=out)

    def either(self, condition: str, then: Callable[[], str], otherwise: Callable[[], str], dtype: str) -> str:
        """A conditional: computes only `then` or `otherwise`. Both return a value of this type."""
        branches, around = [], self._nodes
        for branch in (then, otherwise):
            self._nodes = []
            output = helper.make_tensor_value_info(branch(), DTYPES[dtype], None)
            branches.append(helper.make_graph(self._nodes, branch.__name__, [], [output]))
        self._nodes = around
        return self.add("If", condition, then_branch=branches[0], else_branch=branches[1])

    def model(self, inputs: Sizes, outputs: Sizes, producer: str) -> onnx.ModelProto:
        taken, given = (
            [helper.make_tensor_value_info(name, DTYPES[kind], ["batch", *size]) for name, (kind, size) in side.items()]
            for side in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, "policy_step", taken, given, self._tensors)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain for node in self._nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name=producer)

    def _add(self, op: str, *inputs: Value, outputs: Sequence[str | None], **attributes: Any) -> list[str]:  # noqa: ANN401
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        made = [name or f"{op.lower()}_{self._count}_{i}" for i, name in enumerate(outputs)]
        self._count += 1
        self._nodes.append(helper.make_node(op, names, made, name=made[0], **attributes))
        return made

    def _constant(self, array: Array) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self._tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), self._constants[key]))
        return self._constants[key]

    def read(self, number: int, x: str) -> str:
        """What the mixer of a block sees, plus `shift(number)`: `Block._read` of tokens (N M, C)."""
        return self.norm(x, self.blocks[number].norm1, self.shift(number)) if self.pre_norm else x

    def rest(self, number: int, x: str, mixed: str) -> str:
        """The block after the heads of its mixer: `Block._rest` of tokens (N Q, C)."""
        block, output = self.blocks[number], self.mixers[number].output
        widen, activation, narrow = cast(tuple[nn.Linear, nn.Module, nn.Linear], tuple(block.mlp))
        if self.pre_norm:
            x = self.add("Add", x, mixed if output is None else self.linear(mixed, layer(output)))
            hidden = self.activated(activation, self.linear(self.norm(x, block.norm2), layer(widen)))
            x = self.add("Add", x, self.linear(hidden, layer(narrow)))
            last = number == len(self.blocks) - 1
            return self.norm(x, cast(nn.LayerNorm, self.policy.model.trunk.norm)) if last else x
        shift = exact(narrow.bias)
        x = self.add("Add", x, mixed) if output is None else self.linear(mixed, layer(output), x)
        x = self.norm(x, block.norm1, shift)
        hidden = self.activated(activation, self.linear(x, layer(widen).less(shift)))
        return self.norm(self.linear(hidden, layer(narrow), x), block.norm2, self.carried(number + 1))

    def shift(self, number: int) -> Doubles:
        """The bias of a block's mixer, which what it sees is larger by; zeros if no layer follows the mixer."""
        output = self.mixers[number].output
        return np.zeros(self.width) if output is None else exact(output.bias)

    def carried(self, number: int) -> Doubles:
        """What the input of a block is larger by; zeros before pre-norm blocks and after the last one."""
        return np.zeros(self.width) if self.pre_norm or number == len(self.blocks) else self.shift(number)

    def activated(self, activation: nn.Module, x: str) -> str:
        """A name in ACTIVATIONS; the exact GELU is x (1 + erf(x / sqrt(2))) / 2."""
        if isinstance(activation, nn.ReLU):
            return self.add("Relu", x)
        assert isinstance(activation, nn.GELU)
        if activation.approximate == "tanh" or self.dtype == "float32":
            return self.add("Gelu", x, approximate=activation.approximate)
        # ONNX Runtime has no erf in float64. For z >= 0 it is 1 - t exp(P(t) - z^2), t = 2 / (2 + z).
        z = self.add("Abs", self.add("Mul", x, self.constant(math.sqrt(0.5))))
        t = self.add("Div", self.constant(2), self.add("Add", z, self.constant(2)))
        y = self.add("Sub", self.add("Add", t, t), self.constant(1))
        exponent: Value = self.constant(0)
        for coefficient in ERFC[::-1]:
            exponent = self.add("Add", self.add("Mul", exponent, y), self.constant(coefficient))
        tail = self.add("Mul", t, self.add("Exp", self.add("Sub", exponent, self.add("Mul", z, z))))
        erf = self.add("Mul", self.add("Sign", x), self.add("Sub", self.constant(1), tail))
        return self.add("Mul", self.add("Mul", x, self.constant(0.5)), self.add("Add", erf, self.constant(1)))

    def as_type(self, x: str, dtype: str, given: str | None = None) -> str:
        """Cast a value. `given` is its type, by default that of the graph."""
        return x if dtype == (given or self.dtype) else self.add("Cast", x, to=DTYPES[dtype])

    def constant(self, array: npt.ArrayLike) -> Array:
        """Constants in the type of the graph."""
        return np.array(array, self.dtype, order="C")

    def last_token(self, x: str, length: int, position: int = -1) -> str:
        """Select one of every M tokens: (N M, C) to (N, C)."""
        if length == 1:
            return x
        x = self.reshape(x, -1, length, self.width)
        return self.add("Gather", x, np.array(position), axis=1)

    def norm(self, x: str, norm: nn.LayerNorm, shift: Doubles | float = 0.0) -> str:
        """Layer normalization of the last dimension, plus `shift` (C,)."""
        weights = self.constant(exact(norm.weight)), self.constant(exact(norm.bias) + shift)
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.eps)

    def linear(self, x: str, weights: Linear, onto: str | None = None) -> str:
        """A layer of the trunk, (rows, inputs) -> (rows, outputs), added to `onto` instead of its bias."""
        if not self._quantize:
            return self.gemm(x, weights, onto)
        values, scales = in_blocks(weights.weight)
        inputs, outputs = weights.weight.shape
        # Activations are quantized row by row (accuracy level 4), so that rows do not depend on each other.
        kind = {"K": inputs, "N": outputs, "bits": 8, "block_size": values.shape[-1], "accuracy_level": 4}
        product = self.add("MatMulNBits", x, values, scales, domain="com.microsoft", **kind)
        return self.add("Add", product, self.constant(weights.bias) if onto is None else onto)

    def gemm(self, x: str, weights: Linear, onto: str | None = None) -> str:
        """A layer whose weights are never quantized."""
        bias = self.constant(weights.bias) if onto is None else onto
        return self.add("Gemm", x, self.constant(weights.weight), bias)
