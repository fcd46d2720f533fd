"""A policy's weights in files: safetensors, of which nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..envs.errors import one_line
from ..errors import CheckpointError

FORMAT = 3
WEIGHTS = {"raw": "weights.safetensors", "average": "weights_average.safetensors"}


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Reads safetensors.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        return load(file.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not readable: {one_line(str(error))}") from error


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes safetensors; raises OSError where that cannot be done."""
    file.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
