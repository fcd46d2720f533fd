"""`DecisionModel.step` of a Decision-Aaren, with recurrence encoding or without, on the CPU as one compiled call."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from .. import kernels
from ..mixers import Aaren, AarenRsa
from ..mixers.rsa.encoding import Recurrence
from ..model.block import Block
from ..model.decision import DecisionModel
from ..scan.state import STATE_DTYPE, ScanState

if TYPE_CHECKING:
    from ..kernels.compiling.bfloat16 import Array


class StepState(NamedTuple):
    """The state of all layers of E sequences, in float64.

    Attributes:
        m: (E, L, H), as in `ScanState`.
        u: (E, L, H), likewise.
        w: (E, L, H, D), likewise.
        sums: (E, L, F), the recurrence encoding's: of every head (d, P, D), as in `EncodingState`; F = 0 without one.
    """

    m: Tensor
    u: Tensor
    w: Tensor
    sums: Tensor


def can_compile(model: DecisionModel) -> bool:
    """Whether `CompiledStep` can stand for this model: Aaren, REMs not masked, a width in fours, float32, CPU."""
    config, weight = model.config, model.head.weight
    return (
        (config.mixer == "aaren" or (config.mixer == "aaren-rsa" and not config.rem_max_power))
        and config.width % 4 == 0
        and config.activation in ("gelu", "relu")
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and kernels.available("numba")
    )


class CompiledStep:
    """The same step as the model's, with the weights that it has now, many times sooner for few environments.

    An environment's actions do not depend on how many others are stepped with it, to the last bit.
    """

    def __init__(self, model: DecisionModel) -> None:
        """Packs the weights, and compiles where that has not been done on this machine."""
        config, blocks = model.config, [cast("Block", block) for block in model.trunk.blocks]
        self.config = config
        self._shape = (len(blocks), config.heads, config.width // config.heads)
        self._actions, self._moments = config.action_dim, _copy(model.embed_timestep.weight)
        # Of every step up to one beyond the table; and whether a sequence begins, for one environment.
        times = torch.arange(len(self._moments) + 1)
        self._pairs = _copy(torch.stack((times - 1, times), 1).clamp(0, len(self._moments) - 1))
        self._flags = (torch.zeros(1, dtype=torch.long).numpy(), torch.ones(1, dtype=torch.long).numpy())
        embeddings = [model.embed_action, model.embed_return, model.embed_observation]
        biases = _copy(torch.stack([layer.bias for layer in embeddings]))
        self._embedding = (*(_copy(layer.weight.T) for layer in embeddings), biases)
        self._blocks = _packed(blocks)
        norms = [model.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2)), model.trunk.norm]
        self._norms = _copy(torch.stack([_scale_and_shift(norm, config.width) for norm in norms]))
        self._head = (_copy(model.head.weight.T), _copy(model.head.bias))
        self._encoding = _packed_encoding(blocks)
        self._form = (config.block == "pre-norm", config.activation == "gelu")
        # Of observation, return-to-go, action and a state's parts, for each environment.
        state = [part.shape[1:] for part in self.initial_state(1)]
        self._shapes = ((config.observation_dim,), (), (config.action_dim,), *state)
        nothing = torch.zeros(1, config.observation_dim)
        self.step(nothing, nothing[:, 0], 0, None, self.initial_state(1))

    def initial_state(self, batch_size: int) -> StepState:
        """The state before any step."""
        scan = ScanState.identity((batch_size, *self._shape[:2]), self._shape[2])
        begins = self._encoding[2]
        return StepState(*scan, torch.zeros(batch_size, self._shape[0], int(begins[-1]), dtype=STATE_DTYPE))

    def step(
        self,
        observation: Tensor,
        return_to_go: Tensor,
        timestep: int | Tensor,
        previous_action: Tensor | None,
        state: StepState,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, StepState]:
        """As `DecisionModel.step`; all layers' states are in one.

        Raises:
            ValueError: the shapes do not fit one another: the compiled code would read other memory.
        """
        batch = len(observation)
        when = self._when(timestep, batch)
        first = self._flags[previous_action is None].repeat(batch) if begins is None else begins.long().numpy()
        if previous_action is None:
            previous_action = torch.zeros(batch, self._actions)
        wanted = [(batch, *shape) for shape in self._shapes]
        given = [tuple(part.shape) for part in (observation, return_to_go, previous_action, *state)]
        if given != wanted or len(when) != batch or len(first) != batch:
            raise ValueError(f"observation, return-to-go, action and state have the shapes {given}, not {wanted}")
        after = tuple(np.empty(part.shape) for part in state)
        actions = np.empty((batch, self._actions), np.float32)
        kernels.load_kernels("step").step(
            (_view(previous_action), _view(return_to_go)[:, None], _view(observation)),
            self._moments,
            when,
            self._embedding,
            self._blocks,
            self._norms,
            self._head,
            first,
            *self._form,
            self._encoding,
            tuple(_view(part, STATE_DTYPE) for part in state),
            after,
            actions,
        )
        return torch.from_numpy(actions), StepState(*map(torch.from_numpy, after))

    def _when(self, timestep: int | Tensor, batch: int) -> Array:
        """The rows of time's embedding at t - 1 and t, (E, 2); those beyond the table are its first and last."""
        last = len(self._pairs) - 1
        if isinstance(timestep, Tensor):
            rows: Array = self._pairs[timestep.clamp(0, last).numpy()]
        else:
            place = min(max(timestep, 0), last)
            rows = self._pairs[place : place + 1].repeat(batch, 0)
        return rows


def _packed(blocks: list[Block]) -> tuple[Array, ...]:
    """All blocks' weights (L, in, out) and biases (L, out): values and scores; output; MLP up; MLP down."""
    mixers = [_aaren(block) for block in blocks]
    scores = [mixer.score_projection() for mixer in mixers]
    values = [mixer.value for mixer in mixers]
    mix = [(torch.cat([v.weight, s[0]]), torch.cat([v.bias, s[1]])) for v, s in zip(values, scores, strict=True)]
    output = [(mixer.output.weight, mixer.output.bias) for mixer in mixers]
    up, down = ([_weight_and_bias(block, i) for block in blocks] for i in (0, 2))
    stacks = [torch.stack(stack) for maps in (mix, output, up, down) for stack in zip(*maps, strict=True)]
    return tuple(_copy(stack.transpose(1, -1)) for stack in stacks)  # a bias stays as it is


def _aaren(block: Block) -> Aaren:
    mixer = block.mixer.inner if isinstance(block.mixer, AarenRsa) else block.mixer
    assert isinstance(mixer, Aaren)
    return mixer


def _packed_encoding(blocks: list[Block]) -> tuple[Array, ...]:
    """What `step_encoding` takes: gates, Z's first columns, where heads' sums begin, their rows and own rows."""
    layers = [_recurrences(block) for block in blocks]
    gates = [block.mixer.encoding.mu.double().sigmoid() for block in blocks if isinstance(block.mixer, AarenRsa)]
    columns = [torch.cat([torch.zeros(0, 2, dtype=STATE_DTYPE), *map(_first_column, groups)]) for groups in layers]
    heads = [(group, row) for group in layers[0] for row in group.own_rows()]  # the same in every layer
    sizes = [group.dilation * group.rows * _aaren(blocks[0]).head_dim for group, _ in heads]
    begins, rows, own_rows = (
        torch.tensor(part, dtype=torch.long)
        for part in (list(accumulate(sizes, initial=0)), [group.rows for group, _ in heads], [row for _, row in heads])
    )
    without = [torch.zeros((), dtype=STATE_DTYPE)] * len(blocks)
    parts = (torch.stack(gates or without), torch.stack(columns), begins, rows, own_rows)
    return tuple(part.detach().numpy() for part in parts)


def _recurrences(block: Block) -> list[Recurrence]:
    """Of a layer's recurrence encoding; none where it has none."""
    groups = block.mixer.encoding.groups if isinstance(block.mixer, AarenRsa) else ()
    return [cast("Recurrence", group) for group in groups]


def _first_column(group: Recurrence) -> Tensor:
    """Of Z, of every head: (R, 2)."""
    column = group.powers(torch.ones(1))[:, 0, :, 0]
    return nn.functional.pad(column, (0, 2 - group.rows))


def _weight_and_bias(block: Block, place: int) -> tuple[Tensor, Tensor]:
    """Of a linear layer of the MLP."""
    assert isinstance(block.mlp, nn.Sequential)
    layer = block.mlp[place]
    assert isinstance(layer, nn.Linear)
    return layer.weight, layer.bias


def _scale_and_shift(norm: nn.Module, width: int) -> Tensor:
    """(2, C); of no norm, which is not used, ones and zeros."""
    if isinstance(norm, nn.LayerNorm):
        return torch.stack([norm.weight, norm.bias])
    return torch.stack([torch.ones(width), torch.zeros(width)])


def _copy(x: Tensor) -> Array:
    """A contiguous array of its own."""
    return x.detach().clone(memory_format=torch.contiguous_format).numpy()


def _view(x: Tensor, dtype: torch.dtype = torch.float32) -> Array:
    """A contiguous array, a copy where it has to be one."""
    # Asked first: of a few hundred numbers, an operation of PyTorch that does nothing is most of what this costs.
    if x.dtype != dtype or x.requires_grad or not x.is_contiguous():
        x = x.detach().to(dtype).contiguous()
    return x.numpy()
