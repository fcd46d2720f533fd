"""A step of a decision model in the environment's units: in PyTorch's operations, or in one compiled call on a CPU."""

from itertools import accumulate
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from .. import kernels
from ..mixers.base import StepWeights
from ..mixers.rsa import GatedEncoding, Recurrence
from ..model.decision import Array, Block, DecisionModel, Scaling, Step, to_array
from ..scan.state import STATE_DTYPE


class PlainStep:
    """`DecisionModel.step` of a model in evaluation mode, in units of the environment: `CompiledStep` equals it."""

    def __init__(self, model: Any, scaling: Scaling) -> None:  # what has a DecisionModel's `step`
        self.model, self.scaling = model, scaling

    def initial_state(self, batch_size: int) -> Any:  # the model's own
        return self.model.initial_state(batch_size)

    @torch.no_grad()
    def step(self, step: Step, state: Any, begins: Array | None = None) -> tuple[Array, Any]:
        """The actions (B, A), float32, and the new state; `begins` as in `DecisionModel.step`, bool (B,)."""
        started = None if begins is None else torch.tensor(begins, device=self.scaling.observation_mean.device)
        action, state = self.model.step(*self.scaling.to_model(step), state, started)
        return to_array(self.scaling.actions(action)), state


def can_compile(model: DecisionModel) -> bool:
    """Whether `CompiledStep` supports this model: one token per step, a supported mixer, float32 on a CPU."""
    config, weight = model.config, model.head.weight
    return (
        model.trunk.mixer.compiled_step
        and config.tokens_per_step == 1
        and config.width % 4 == 0
        and config.activation in ("gelu", "relu")
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and kernels.available("numba")
    )


class CompiledStep:
    """As `PlainStep`, with the current weights of the model, in a fraction of the time for few environments.

    The actions of an environment are bit-identical for any number of other environments. A state is one
    float64 tensor (E, L, S), of every layer w (H, D), u (H) and m (H) of `ScanState`, and the sums of the recurrence
    encoding (F), of every head (d, P, D) as in `EncodingState`; S = H (D + 2) + F.
    """

    def __init__(self, model: DecisionModel, scaling: Scaling) -> None:
        config, blocks = model.config, [cast("Block", block) for block in model.trunk.blocks]
        seen = torch.cat([model.embed_return.weight, model.embed_observation.weight], 1)
        bias, table = model.embed_observation.bias, model.embed_timestep
        moments = (torch.zeros(1, len(bias)) if table is None else table.weight) + bias
        norms = [model.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2)), model.trunk.norm]
        mixers = [block.mixer.step_weights() for block in blocks]
        own = [mixer.encoding for mixer in mixers if mixer.encoding is not None]
        encoding = _packed_encoding(own, len(blocks), config.width // config.heads)
        units = scaling.observation_mean, scaling.observation_std, scaling.action_middle, scaling.action_half
        self._scaling = tuple(packed(part.float()) for part in units), float(scaling.return_scale)
        self._model = (
            (packed(moments), packed(model.embed_action.weight.T), packed(seen.T)),
            _packed_blocks(mixers, blocks),
            packed(torch.stack([_scale_and_shift(norm, config.width) for norm in norms])),
            (packed(model.head.weight.T), packed(model.head.bias)),
            (config.heads, config.block == "pre-norm", config.activation == "gelu", config.discrete),
            encoding,
        )
        self._step = kernels.load("step").step
        self._sizes = config.observation_dim, config.action_dim
        self._state = len(blocks), config.width + 2 * config.heads + int(encoding[2][-1])
        self._maxima = slice(config.width + config.heads, config.width + 2 * config.heads)
        nothing = np.zeros((1, config.observation_dim), np.float32)
        self.step(Step(nothing, np.zeros(1), 0, None), self.initial_state(1))

    def initial_state(self, batch_size: int) -> Tensor:
        state = torch.zeros(batch_size, *self._state, dtype=STATE_DTYPE)
        state[:, :, self._maxima] = torch.finfo(STATE_DTYPE).min
        return state

    def step(self, step: Step, state: Tensor, begins: Array | None = None) -> tuple[Array, Tensor]:
        """As `PlainStep.step`.

        Raises:
            ValueError: the shapes do not match: the compiled code would read out of bounds.
        """
        observed, to_go, timestep, previous = step
        batch, (observations, actions) = len(observed), self._sizes
        observed = plain(observed)
        # For small arrays, the overhead of operations dominates.
        if begins is None:
            begins = np.empty(batch, np.bool_)
            begins.fill(previous is None)
        if previous is None:
            previous = np.zeros((batch, actions), np.float32)
        previous = plain(previous)
        if isinstance(timestep, int):
            times = np.empty(batch, np.int64)
            times.fill(timestep)
        else:
            times = plain(timestep)
        old = state.numpy()
        given = observed.shape, previous.shape, to_go.shape, times.shape, begins.shape, old.shape
        if given != ((batch, observations), (batch, actions), (batch,), (batch,), (batch,), (batch, *self._state)):
            raise ValueError(f"observation, action, return-to-go, time, begin, state: shapes that do not fit, {given}")
        after, acted = np.empty(old.shape), np.empty(previous.shape, np.float32)
        self._step((observed, to_go, times, previous, begins), *self._scaling, *self._model, old, after, acted)
        return acted, torch.from_numpy(after)


Stepper: TypeAlias = PlainStep | CompiledStep  # each has its own kind of state


def packed(x: Tensor) -> Array:
    """A contiguous copy as an array."""
    return x.detach().clone(memory_format=torch.contiguous_format).numpy()


def plain(array: Array) -> Array:
    """The array, or a copy where it is read-only or strided, for which Numba would compile the code again."""
    return array if array.flags.carray else array.copy()


def _packed_blocks(mixers: list[StepWeights], blocks: list[Block]) -> tuple[Array, ...]:
    """Weights (L, in, out) and biases (L, out) of all blocks: values, scores and gates; output; MLP up; MLP down."""
    maps = []
    for mixer, block in zip(mixers, blocks, strict=True):
        up, down = (cast("nn.Linear", block.get_submodule(f"mlp.{i}")) for i in (0, 2))
        layers = (part for layer in (mixer.output, up, down) for part in (layer.weight, layer.bias))
        maps.append([mixer.weight, mixer.bias, *layers])
    # Biases are not transposed.
    return tuple(packed(torch.stack(parts).transpose(1, -1)) for parts in zip(*maps, strict=True))


def _packed_encoding(own: list[GatedEncoding], count: int, dim: int) -> tuple[Array, ...]:
    """The recurrence encoding of `count` layers, or none; `dim` is D.

    Returns gates, first columns of Z, offsets of the sums of heads, their rows and own rows.
    """
    layers = [[cast("Recurrence", group) for group in encoding.groups] for encoding in own] or [[]] * count
    gates = [encoding.mu.double().sigmoid() for encoding in own] or [torch.zeros((), dtype=STATE_DTYPE)] * count
    columns = [torch.cat([torch.zeros(0, 2, dtype=STATE_DTYPE), *map(_first_column, groups)]) for groups in layers]
    heads = [(group, row) for group in layers[0] for row in group.own_rows]  # same in every layer
    sizes = [group.dilation * group.rows * dim for group, _ in heads]
    numbers = list(accumulate(sizes, initial=0)), [group.rows for group, _ in heads], [row for _, row in heads]
    parts = (torch.stack(gates), torch.stack(columns), *(torch.tensor(part, dtype=torch.long) for part in numbers))
    return tuple(part.detach().numpy() for part in parts)


def _first_column(group: Recurrence) -> Tensor:
    """The entries of Z for every head: (R, 2)."""
    return nn.functional.pad(group.powers(torch.ones(1))[:, 0, :, 0], (0, 2 - group.rows))


def _scale_and_shift(norm: nn.Module, width: int) -> Tensor:
    """Scale and shift (2, C); ones and zeros if there is no norm."""
    if isinstance(norm, nn.LayerNorm):
        return torch.stack([norm.weight, norm.bias])
    return torch.stack([torch.ones(width), torch.zeros(width)])
