"""A small writer of ONNX graphs: nodes in the order they are computed, with constants inline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = str | Array  # the name of a computed value, or a constant

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # ONNX Runtime refuses files of a newer one than its own
DTYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


class Nodes:
    """Collects a graph; every method that adds a node returns the name of what it computes."""

    def __init__(self) -> None:
        """An empty graph."""
        self._nodes: list[onnx.NodeProto] = []
        self._count = 0  # nodes so far, those of branches too
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._tensors: list[TensorProto] = []

    def add(self, op: str, *inputs: Value, out: str | None = None, **attributes: Any) -> str:  # noqa: ANN401  any of ONNX's
        """One node with one output; `out` is the name that users of the graph see."""
        return self._add(op, *inputs, outputs=[out], **attributes)[0]

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> list[str]:
        """Cuts a value into parts of these sizes."""
        return self._add("Split", x, np.array(sizes, np.int64), outputs=[None] * len(sizes), axis=axis)

    def reshape(self, x: Value, *shape: int, out: str | None = None) -> str:
        """0 keeps a size, -1 is what is left."""
        return self.add("Reshape", x, np.array(shape, np.int64), out=out)

    def cast(self, x: Value, dtype: str) -> str:
        """The value in another type."""
        return self.add("Cast", x, to=DTYPES[dtype])

    def either(self, condition: str, then: Callable[[], str], otherwise: Callable[[], str], dtype: str) -> str:
        """What `then` adds, or `otherwise`: only one of them is computed. A value of this type each."""
        branches, around = [], self._nodes
        for branch in (then, otherwise):
            self._nodes = []
            output = helper.make_tensor_value_info(branch(), DTYPES[dtype], None)
            branches.append(helper.make_graph(self._nodes, branch.__name__, [], [output]))
        self._nodes = around
        return self.add("If", condition, then_branch=branches[0], else_branch=branches[1])

    def model(
        self,
        inputs: Sequence[tuple[str, str, Sequence[int | str]]],
        outputs: Sequence[tuple[str, str, Sequence[int | str]]],
        producer: str,
    ) -> onnx.ModelProto:
        """The finished model; inputs and outputs are (name, type, shape), with names for free sizes."""
        taken, given = (
            [helper.make_tensor_value_info(name, DTYPES[dtype], shape) for name, dtype, shape in side]
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
