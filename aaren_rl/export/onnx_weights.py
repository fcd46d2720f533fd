"""The weights of a policy for its ONNX graph: numpy, with constants folded in float64.

Shape suffixes: A action, O observation, F = A + 1 + O features of a step, J tokens per step, C channels, H heads,
D = C / H channels per head.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.polynomial import chebyshev
from scipy import special
from torch import Tensor, nn

from ..agents import Aaren, Policy
from ..agents.mixers.rsa.encoding import GatedEncoding, Recurrence
from ..agents.model.scaling import middle_and_half

BLOCK = 128  # weights per scale; a quarter of it takes 1.5 times as long and is hardly more accurate
Doubles: TypeAlias = npt.NDArray[np.float64]


class Linear(NamedTuple):
    """x @ weight + bias, (inputs, outputs) and (outputs,)."""

    weight: Doubles
    bias: Doubles

    def less(self, shift: Doubles) -> Linear:
        """A layer with the same outputs for inputs plus `shift` (inputs,)."""
        return Linear(self.weight, self.bias - shift @ self.weight)


_NODES = chebyshev.chebpts1(29)
_T = (_NODES + 1) / 2
# Coefficients of the polynomial P in y = 2 t - 1 with erfc(z) = t exp(P - z^2), t = 2 / (2 + z), for z >= 0; to 1e-15.
_FITTED = chebyshev.chebfit(_NODES, np.log(special.erfcx(2 / _T - 2) / _T), 28)
ERFC = np.asarray(chebyshev.cheb2poly(_FITTED), np.float64)


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


def action_range(policy: Policy) -> tuple[Doubles, Doubles]:
    """The middle and half the width of the action range, (A,) each."""
    size = policy.model.config.action_dim
    low, high = (
        torch.as_tensor(bound, dtype=torch.float64).expand(size) for bound in (policy.action_low, policy.action_high)
    )
    middle, half = middle_and_half(low, high)
    return exact(middle), exact(half)


def embedding(policy: Policy) -> tuple[Doubles, Linear]:
    """The embedding of the concatenated features (action, return-to-go, observation) of a step, (F,) -> (J C).

    Returns:
        The means to subtract from the features, (F,), and the layer after it, which includes the division of the
        normalization. Subtracting in its bias would lose digits if a mean is far larger than its standard deviation.
    """
    model = policy.model
    middle, half = action_range(policy)
    center = np.concatenate([middle, [0.0], exact(policy.observation_mean)])
    parts = [layer(model.embed_action), layer(model.embed_return), layer(model.embed_observation)]
    scales = (half, np.ones(1), exact(policy.observation_std))
    blocks, row = [], 0
    for part, scale in zip(parts, scales, strict=True):
        block = np.zeros((len(center), part.weight.shape[1]))
        block[row : row + len(scale)] = part.weight / scale[:, None]
        blocks.append(Linear(block, part.bias))
        row += len(scale)
    if model.config.tokens_per_step == 1:
        return center, Linear(*(np.sum(parts, 0) for parts in zip(*blocks, strict=True)))
    return center, beside(*blocks)


def scores_and_values(mixer: Aaren) -> Linear:
    """The layer for the scan inputs of a token, (C,) -> (H (D + 1)): value and score of each head.

    The query is the same for every token, so q . (W_k x) = (W_k^T q) . x.
    """
    heads, size = mixer.heads, mixer.head_dim
    width = heads * size
    score = Linear(*(exact(part).T for part in copy.deepcopy(mixer).double().score_projection()))
    value = layer(mixer.value)
    weight = np.concatenate([value.weight.reshape(width, heads, size), score.weight[..., None]], -1)
    bias = np.concatenate([value.bias.reshape(heads, size), score.bias[:, None]], -1)
    return Linear(weight.reshape(width, -1), bias.reshape(-1))


def encoding_maps(encoding: GatedEncoding, heads: int, tokens: int) -> tuple[Doubles, Doubles, Doubles]:
    """A step of recurrence encoding as linear maps per head: from its sums and J values to outputs and sums.

    Returns:
        Two maps, from the F sums of a head (oldest token first) and from its `tokens` J values, to J outputs and the
        new F sums, (H, J + F, F) and (H, J + F, J); and the gates (H, 1, 1), 0 for a head without an encoding.
    """
    groups = [cast(Recurrence, group) for group in encoding.groups]
    count = max(group.dilation * group.rows for group in groups)
    maps, gates = np.zeros((heads, tokens + count, count + tokens)), np.zeros((heads, 1, 1))
    head = 0
    for group in groups:
        for own_row, z in zip(group.own_rows, exact(group.powers(torch.ones(1))[:, 0]), strict=True):
            rows, dilation = group.rows, group.dilation
            sums = list(np.eye(count, count + tokens)[: rows * dilation].reshape(dilation, rows, -1))
            for token in range(tokens):
                recurrent = z @ sums[token]
                maps[head, token] = recurrent[own_row]
                recurrent[0, count + token] += 1
                sums.append(recurrent)
            maps[head, tokens : tokens + rows * dilation] = np.concatenate(sums[tokens : tokens + dilation])
            gates[head] = float(encoding.mu.detach().double().sigmoid())
            head += 1
    return maps[..., :count], maps[..., count:], gates


def in_blocks(weight: Doubles) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Quantize weights (inputs, outputs) in blocks of inputs that share a scale; the last is padded with 0.

    Returns 8-bit integers (outputs, blocks, size) with zero point 128, and the scales (outputs * blocks,).
    """
    inputs, outputs = weight.shape
    size = min(BLOCK, max(16, 1 << (inputs - 1).bit_length()))
    padded = np.pad(weight, ((0, -inputs % size), (0, 0))).T.reshape(outputs, -1, size)
    scales = np.abs(padded).max(-1, keepdims=True) / 127
    scales[scales == 0] = 1
    return (np.rint(padded / scales) + 128).astype(np.uint8), scales.astype(np.float32).reshape(-1)
