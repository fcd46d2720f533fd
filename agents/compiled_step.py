"""`DecisionModel.step` of a Decision-Aaren on the CPU as one compiled call."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from . import kernels
from .mixers import Aaren
from .scan import ScanState
from .trunk import Block

if TYPE_CHECKING:
    from .decision import DecisionModel
    from .kernels.step import Array


def can_compile(model: DecisionModel) -> bool:
    """Whether `CompiledStep` can stand for this model: Aaren, float32, on the CPU, of a common shape."""
    config, weight = model.config, model.head.weight
    return (
        config.mixer == "aaren"
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
        self._shape = (config.layers, config.heads, config.width // config.heads)
        self._actions, self._moments = config.action_dim, _copy(model.embed_timestep.weight)
        embeddings = [model.embed_action, model.embed_return, model.embed_observation]
        biases = _copy(torch.stack([layer.bias for layer in embeddings]))
        self._embedding = (*(_copy(layer.weight.T) for layer in embeddings), biases)
        self._blocks = _packed(blocks)
        norms = [model.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2)), model.trunk.norm]
        self._norms = _copy(torch.stack([_scale_and_shift(norm, config.width) for norm in norms]))
        self._head = (_copy(model.head.weight.T), _copy(model.head.bias))
        self._form = (config.block == "pre-norm", config.activation == "gelu")
        nothing = torch.zeros(1, config.observation_dim)
        self.step(nothing, nothing[:, 0], 0, None, self.initial_state(1))

    def initial_state(self, batch_size: int) -> ScanState:
        """The state before any step: m and u (B, L, H), w (B, L, H, D)."""
        return ScanState.identity((batch_size, *self._shape[:2]), self._shape[2])

    def step(
        self,
        observation: Tensor,
        return_to_go: Tensor,
        timestep: int,
        previous_action: Tensor | None,
        state: ScanState,
    ) -> tuple[Tensor, ScanState]:
        """As `DecisionModel.step`; all layers' states are in one."""
        batch, newest = len(observation), len(self._moments) - 1
        moments = self._moments[[min(max(timestep - 1, 0), newest), min(timestep, newest)]]
        first = previous_action is None
        if previous_action is None:
            previous_action = torch.zeros(batch, self._actions)
        after = ScanState(*(torch.empty_like(part) for part in state))
        actions = torch.empty(batch, self._actions)
        kernels.load_step().step(
            (_view(previous_action), _view(return_to_go.unsqueeze(-1)), _view(observation)),
            moments,
            self._embedding,
            self._blocks,
            self._norms,
            self._head,
            int(first),
            *self._form,
            tuple(part.contiguous().numpy() for part in state),
            tuple(part.numpy() for part in after),
            actions.numpy(),
        )
        return actions, after


def _packed(blocks: list[Block]) -> tuple[Array, ...]:
    """All blocks' weights (L, in, out) and biases (L, out): values and scores; output; MLP up; MLP down."""
    mixers = [cast("Aaren", block.mixer) for block in blocks]
    scores = [mixer.score_projection() for mixer in mixers]
    values = [mixer.value for mixer in mixers]
    mix = [(torch.cat([v.weight, s[0]]), torch.cat([v.bias, s[1]])) for v, s in zip(values, scores, strict=True)]
    output = [(mixer.output.weight, mixer.output.bias) for mixer in mixers]
    up, down = ([_weight_and_bias(block, i) for block in blocks] for i in (0, 2))
    stacks = [torch.stack(stack) for maps in (mix, output, up, down) for stack in zip(*maps, strict=True)]
    return tuple(_copy(stack.transpose(1, -1)) for stack in stacks)  # a bias stays as it is


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


def _view(x: Tensor) -> Array:
    """A contiguous float32 array, a copy where it has to be one."""
    return x.detach().float().contiguous().numpy()
