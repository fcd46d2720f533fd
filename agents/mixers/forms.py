"""What other engines compute a mixer's step from: its weights for `kernels/step.py`, and its nodes of an ONNX graph.

A mixer's `graph` is a subclass of `MixerGraph`, in the file of the mixer; `aaren_rl.export` builds the graph around it.
Weights are NumPy arrays in float64, with constants folded in. A node costs more than most computations: what can be
folded into weights is.

Shape suffixes: N states of the memory, J tokens per step, M tokens of a window, C channels, H heads, D = C / H channels
per head, F sums of a recurrence encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
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
