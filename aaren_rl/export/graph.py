"""A PyTorch module as an ONNX model, by `torch.onnx.export`."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..agents.scan.rows import State, each
from ..base.errors import ResourcesError, one_line

if TYPE_CHECKING:
    import onnx

OPSET = 20  # the first opset with Gelu
LARGEST = 2**30  # elements of a constant that is computed here instead of by every session


def make_graph(module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], free: Any) -> onnx.ModelProto:  # noqa: ANN401
    """The ONNX model of `module.forward`, without dropout.

    Args:
        module: in evaluation mode; takes the inputs in their order.
        inputs: example inputs by name, with the batch as the first dimension, at least 2.
        outputs: their names.
        free: the dimensions that are free at every call, as `dynamic_shapes` of `torch.export.export`.

    Raises:
        ValueError: an operation has no ONNX form, or depends on values.
        ResourcesError: a package is missing.
    """
    try:
        import onnxruntime  # noqa: F401  which the caller runs the model with
        import onnxscript
    except ImportError as error:
        raise ResourcesError(f"export needs {error.name}: pip install 'aaren-rl[export]'") from error
    logging.disable(logging.WARNING)  # of the exporter about its own parts, as the warnings are
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            traced = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=free)
            program = torch.onnx.export(
                traced, input_names=[*inputs], output_names=outputs, opset_version=OPSET, optimize=False, verbose=False
            )
            assert program is not None
            onnxscript.optimizer.optimize(program.model, input_size_limit=LARGEST, output_size_limit=LARGEST)
    except (torch._dynamo.exc.UserError, RuntimeError, ValueError, AttributeError) as error:
        raise ValueError(one_line(error)) from error
    finally:
        logging.disable(logging.NOTSET)
    return _without_traces(program.model_proto)


def filled(like: State, parts: Iterator[Tensor], rows: Any) -> State:  # noqa: ANN401  a number, symbolic while tracing
    """A state of as many rows, as `like` is one: with `parts` in the place of its tensors that hold numbers."""
    return each(lambda own: next(parts) if own[0].numel() else own[0].new_zeros(rows, *own[0].shape[1:]), [like])


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without stack traces, which name files of this machine; the free dimension of the first input is "batch"."""
    graph = model.graph
    del graph.value_info[:], graph.metadata_props[:], model.metadata_props[:]
    parts: list[Any] = [*graph.node, *graph.input, *graph.output, *graph.initializer]
    for part in parts:
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == batch:
                size.dim_param = "batch"
    return model


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
