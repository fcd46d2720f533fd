"""A module's step as an ONNX file: any module with `step` and `initial_state`, a user's own around these included."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..agents.mixers.rsa import Recurrence
from ..agents.scan.rows import State, each, tensors
from ..base.errors import NumericsError, ResourcesError, one_line

if TYPE_CHECKING:
    import onnx

OPSET = 20  # the first opset with Gelu
LARGEST = 2**30  # elements of a constant that is computed here instead of by every session
TOLERANCE = 1e-5  # of an output, relative to the largest one
GROWN = 3  # tokens after which a state shows which of its sizes grow


def export_step(module: nn.Module, file: str | Path, x: Tensor) -> float:
    """Writes `module.step` to an ONNX file, and lets ONNX Runtime stream `x` with it before anybody gets it.

    Inputs are x (B, C) and the state's tensors, named by where they are (`state_0_m`, `state_0_inner_m`); outputs are
    y and `next_state_0_m` and so on. B is free, and so is the size of a key-value cache. A state begins as
    `module.initial_state(B)`: zeros, and m the least float64.

    Args:
        module: Aaren, AarenRSA, Attention, CrossAttention, a trunk of these, or a module of your own whose `step(x,
            state)` calls theirs, with `initial_state(batch_size)`; its weights of now are written, without dropout.
        file: is replaced.
        x: example tokens (B, N, C) in float32, as the module, at least 2 rows of at least 4.

    Returns:
        The largest difference of a streamed output from PyTorch's, relative to the largest output.

    Raises:
        ValueError: no such folder, too few example tokens, or a module that has no ONNX graph: recurrence encoding that
            masks powers, as RSA does by default, and tree attention.
        NumericsError: the difference is above 1e-5; nothing is written.
        ResourcesError: onnxscript or onnxruntime is not installed.
    """
    if not Path(file).parent.is_dir():
        raise ValueError(f"{file}: its folder does not exist")
    if x.dim() != 3 or len(x) < 2 or x.shape[1] <= GROWN:
        raise ValueError(
            f"x must be example tokens (B, N, C), B from 2 and N from {GROWN + 1} on, not {tuple(x.shape)}"
        )
    if any(isinstance(part, Recurrence) and part.max_power for part in module.modules()):
        raise ValueError(f"{type(module).__name__}.step has no ONNX graph: its REMs mask powers; max_power=0 does not")
    module = copy.deepcopy(module).eval()
    model = _exported(module, x)
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises a dozen classes of its own, derived from Exception
        name = type(module).__name__
        raise ValueError(f"{name}.step has no ONNX graph that ONNX Runtime can run: {one_line(error)}") from error
    difference = _difference(module, session, x)
    if not difference <= TOLERANCE:
        raise NumericsError(f"the exported step differs from PyTorch's by {difference:.2g}; nothing was written")
    from ..base.files import write_whole  # with filelock, which the other modules need not

    write_whole(Path(file), model)
    return difference


class _Step(nn.Module):
    """`step` as a function of the tokens and of those tensors of a state that hold numbers."""

    def __init__(self, module: nn.Module, like: Any) -> None:  # noqa: ANN401  any module's state
        super().__init__()
        self.module, self.like = module, like

    def forward(self, x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        step = cast(Any, self.module.step)
        y, state = step(x, filled(self.like, iter(parts), x.shape[0]))  # not len(x), which would be a constant
        return (y, *(part for part in tensors(state) if part.numel()))


@torch.no_grad()
def _exported(module: nn.Module, x: Tensor) -> bytes:
    step: Any = module.step
    state, sizes = module.initial_state(len(x)), []  # type: ignore[operator]
    for token in x[:, :GROWN].unbind(1):
        _, state = step(token, state)
        sizes.append({name: part.shape for name, part in _named(state, "state").items()})
    parts = _named(state, "state")
    free = [{0: torch.export.Dim.DYNAMIC}, *({} for _ in parts)]
    for i, (name, part) in enumerate(parts.items(), 1):
        grows = [d for d in range(1, part.dim()) if len({size[name][d] for size in sizes}) > 1]
        free[i] = {d: torch.export.Dim.DYNAMIC for d in (0, *grows)}
    # Copies: of tensors that share memory the graph would say so.
    given = {"x": x[:, GROWN].clone(), **{name: part.clone() for name, part in parts.items()}}
    outputs = ["y", *(f"next_{name}" for name in parts)]
    try:
        model = make_graph(_Step(module, state), given, outputs, (free[0], tuple(free[1:])))
    except ValueError as error:
        raise ValueError(f"{type(module).__name__}.step has no ONNX graph: {error}") from error
    content: bytes = model.SerializeToString()
    return content


@torch.no_grad()
def _difference(module: nn.Module, session: Any, x: Tensor) -> float:  # noqa: ANN401  onnxruntime's
    step: Any = module.step
    state, largest, size = module.initial_state(len(x)), 0.0, 0.0  # type: ignore[operator]
    parts = {name: part.numpy() for name, part in _named(state, "state", empty=True).items()}
    known = {given.name for given in session.get_inputs()}
    for token in x.unbind(1):
        wanted, state = step(token, state)
        fed = {name: part for name, part in {"x": token.numpy(), **parts}.items() if name in known}
        y, *after = session.run(None, fed)
        parts = dict(zip((name.name.removeprefix("next_") for name in session.get_outputs()[1:]), after, strict=True))
        largest = float(np.maximum(largest, np.abs(y - wanted.numpy()).max()))  # of a NaN, NaN
        size = max(size, float(wanted.abs().max()))
    return largest / size if size else largest


def _named(state: Any, name: str, *, empty: bool = False) -> dict[str, Tensor]:  # noqa: ANN401
    """A state's tensors that hold numbers, by where they are; `empty`: those that hold none, too."""
    if isinstance(state, Tensor):
        return {name: state} if state.numel() or empty else {}
    if not isinstance(state, tuple):
        raise ValueError(f"a state with {type(state).__name__} in it, as tree attention's, has no ONNX graph")
    fields = getattr(state, "_fields", range(len(state)))
    inner = [_named(part, f"{name}_{field}", empty=empty) for field, part in zip(fields, state, strict=True)]
    return {key: part for parts in inner for key, part in parts.items()}


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
