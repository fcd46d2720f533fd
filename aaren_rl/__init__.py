"""aaren-rl: sequence-model policies that train offline in parallel and act as recurrent networks.

`aaren_rl.agents`, `.envs` and `.configs` are the folders of these names beside this one in the repository; the
installation puts them here (pyproject.toml).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from .agents import Policy
    from .envs.data.episodes import Episodes
    from .train import train_policy

__all__ = ["Episodes", "__version__", "load_policy", "train_policy"]


def load_policy(path: str | Path, **options: Any) -> Policy | Any:  # noqa: ANN401  those of two functions
    """A policy, ready to act: an `agents.Policy` of a folder, a `runtime.OnnxPolicy` of a file.

    Args:
        path: a run folder or its policy/, or the file that `aaren-rl export` wrote, which needs no PyTorch.
        options: those of `aaren_rl.policies.folder.load_policy` or of `aaren_rl.runtime.load_policy`.

    Raises:
        CheckpointError, ArgumentError, ResourcesError: as these two.
    """
    # `Path.is_file` raises for a name that is too long. Where an exported file is missing, torch may be, too.
    if os.path.isfile(path) or os.fspath(path).endswith(".onnx"):
        from . import runtime

        return runtime.load_policy(path, **options)
    from .policies import folder

    return folder.load_policy(path, **options)


def __getattr__(name: str) -> object:
    """Imports a name on demand: importing the package alone, as simulation workers do, leaves torch and NumPy out."""
    if name == "train_policy":
        from .train import train_policy

        return train_policy
    if name == "Episodes":
        from .envs.data.episodes import Episodes

        return Episodes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
