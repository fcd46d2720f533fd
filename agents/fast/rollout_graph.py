"""Acting on a GPU: the launches of a step, recorded once per number of environments, replayed as one CUDA graph.

A step of a small model takes a few hundred small launches; a replay takes one. Shape suffixes: E environments,
F numbers of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.cuda_graphs import record
from ..model.decision import DecisionModel
from ..model.scaling import Array, Scaling, Step, to_array
from ..scan.rows import each, tensors

MOST = 1024  # environments; more keep a GPU busy without a graph

Replay = Callable[[], tuple[Tensor, ...]]


class GraphedCallable:
    """A function of tensors with one row per environment, recorded for 1, 2, 4, ... 1,024 rows.

    Arguments are copied to the inputs of the recording, padded to the next power of two. Results are copies, which the
    next call does not overwrite.

    Args:
        function: computes every row from that row only, launches the same for the same shapes, never synchronizes.
        record: the recorder; without graphs, on a CPU, it calls the function again.
    """

    def __init__(
        self, function: Callable[..., tuple[Tensor, ...]], record: Callable[[Replay], Replay] = record
    ) -> None:
        self._function, self._record = function, record
        self._made: dict[int, tuple[list[Tensor], Replay]] = {}

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The results for arguments (E, ...), with the same types and row sizes at every call."""
        rows = len(arguments[0])
        if rows > MOST:
            return self._function(*arguments)
        size = 1 << (rows - 1).bit_length()
        if size not in self._made:
            places = [x.new_zeros(size, *x.shape[1:]) for x in arguments]
            self._made[size] = places, self._record(lambda: self._function(*places))
        places, replay = self._made[size]
        for place, argument in zip(places, arguments, strict=True):
            place[:rows].copy_(argument)
        return tuple(result[:rows].clone() for result in replay())


class GraphedStep:
    """The steps of a fixed model with a state of constant size: one tensor (E, F) of all layers."""

    def __init__(self, model: DecisionModel, scaling: Scaling, record: Callable[[Replay], Replay] = record) -> None:
        self._model, self._scaling, self._form = model, scaling, model.initial_state(1)
        self._recorded = GraphedCallable(self._step, record)

    def initial_state(self, batch_size: int) -> Tensor:
        """The state before any step."""
        return _joined(self._model.initial_state(batch_size))

    @torch.no_grad()
    def step(self, step: Step, state: Tensor, begins: Array | None = None) -> tuple[Array, Tensor]:
        """As `PlainStep.step`."""
        batch, previous = len(step.observation), step.previous_action
        if begins is None:
            begins = np.full(batch, previous is None)
        if previous is None:
            previous = np.zeros((batch, self._model.config.action_dim), np.float32)
        given = step.observation, step.return_to_go, step.times(), previous, begins
        action, after = self._recorded(*(torch.tensor(part, device=state.device) for part in given), state)
        return to_array(action), after

    def _step(
        self, observation: Tensor, to_go: Tensor, timestep: Tensor, previous: Tensor, begins: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = self._scaling.scale(observation, to_go, timestep, previous)
        action, after = self._model.step(*given, self._apart(state), begins)
        return self._scaling.from_model(action), _joined(after)

    def _apart(self, joined: Tensor) -> Any:  # noqa: ANN401  the model's own
        """The state of the model from one tensor (E, F)."""
        shapes = [part.shape[1:] for part in tensors(self._form)]
        parts = iter(joined.split([shape.numel() for shape in shapes], 1))
        return each(lambda same: next(parts).unflatten(1, same[0].shape[1:]), [self._form])


def _joined(state: Any) -> Tensor:  # noqa: ANN401
    """All tensors of a state, of one type, concatenated: (E, F)."""
    return torch.cat([part.flatten(1) for part in tensors(state)], 1)
