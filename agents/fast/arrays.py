"""Arrays as compiled code takes them."""

import torch
from torch import Tensor

from ..model.scaling import Array, Scaling


def packed(x: Tensor) -> Array:
    """A contiguous copy as an array."""
    return x.detach().clone(memory_format=torch.contiguous_format).numpy()


def plain(array: Array) -> Array:
    """The array, or a copy where it is read-only or strided, for which Numba would compile the code again."""
    return array if array.flags.carray else array.copy()


def packed_scaling(scaling: Scaling) -> tuple[Array, ...]:
    """Mean and deviation of observations (O,), middle and half of actions (A,), in float32."""
    tensors = scaling.observation_mean, scaling.observation_std, scaling.action_middle, scaling.action_half
    return tuple(packed(tensor.float()) for tensor in tensors)
