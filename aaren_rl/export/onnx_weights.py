"""The weights of a policy for its ONNX graph: numpy, with constants folded in float64.

Shape suffixes: A action, O observation, F = A + 1 + O features of a step, J tokens per step, C channels.
"""

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev
from scipy import special

from ..agents import Policy
from ..agents.mixers.forms import Doubles, Linear, beside, exact, layer

BLOCK = 128  # weights per scale; a quarter of it takes 1.5 times as long and is hardly more accurate

_NODES = chebyshev.chebpts1(29)
_T = (_NODES + 1) / 2
# Coefficients of the polynomial P in y = 2 t - 1 with erfc(z) = t exp(P - z^2), t = 2 / (2 + z), for z >= 0; to 1e-15.
_FITTED = chebyshev.chebfit(_NODES, np.log(special.erfcx(2 / _T - 2) / _T), 28)
ERFC = np.asarray(chebyshev.cheb2poly(_FITTED), np.float64)


def embedding(policy: Policy) -> tuple[Doubles, Linear]:
    """The embedding of the concatenated features (action, return-to-go, observation) of a step, (F,) -> (J C).

    Returns:
        The means to subtract from the features, (F,), and the layer after it, which includes the division of the
        normalization. Subtracting in its bias would lose digits if a mean is far larger than its standard deviation.
    """
    model, scaling = policy.model, policy.scaling
    center = np.concatenate([exact(scaling.action_middle), [0.0], exact(scaling.observation_mean)])
    parts = [layer(model.embed_action), layer(model.embed_return), layer(model.embed_observation)]
    scales = (exact(scaling.action_half), np.ones(1), exact(scaling.observation_std))
    blocks, row = [], 0
    for part, scale in zip(parts, scales, strict=True):
        block = np.zeros((len(center), part.weight.shape[1]))
        block[row : row + len(scale)] = part.weight / scale[:, None]
        blocks.append(Linear(block, part.bias))
        row += len(scale)
    if model.config.tokens_per_step == 1:
        return center, Linear(*(np.sum(parts, 0) for parts in zip(*blocks, strict=True)))
    return center, beside(*blocks)


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
