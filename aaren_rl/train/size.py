"""How much memory a training run takes at the least, from its configuration alone."""

from __future__ import annotations

import torch

from ..envs.memory import require_memory
from ..errors import SMALLER
from .config import RunConfig


def require_room(config: RunConfig, device: torch.device) -> None:
    """Refuses a run that cannot fit, before anything is made for it.

    Raises:
        ResourcesError: it needs more memory than is free.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    require_memory(model_bytes(config), "the model", SMALLER, free=free)
    require_memory(batch_bytes(config), "a batch", SMALLER, free=free)


def model_bytes(config: RunConfig) -> int:
    """Of weights, their gradient, their moving average and one moment, in float32; of the blocks' matrices alone.

    A block has 2 matrices of width x width in its mixer at the least, and 8 in its MLP.
    """
    return 4 * 4 * 10 * config.network.layers * config.network.width**2


def batch_bytes(config: RunConfig) -> int:
    """Of an update's activations, kept for the backward: a block's input and its MLP's hidden layer, in bfloat16."""
    steps = max(config.data.steps_per_update, config.data.context_length if config.data.context == "window" else 0)
    return 2 * (1 + 4) * 3 * steps * config.network.layers * config.network.width
