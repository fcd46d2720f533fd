"""aaren-rl: sequence-model policies that train offline in parallel and act as recurrent networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from .policies.folder import load_policy
    from .train import train_policy

__all__ = ["__version__", "load_policy", "train_policy"]


def __getattr__(name: str) -> object:
    """Imports a function on demand: importing the package alone, as simulation workers do, leaves torch out."""
    if name == "load_policy":
        from .policies.folder import load_policy

        return load_policy
    if name == "train_policy":
        from .train import train_policy

        return train_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
