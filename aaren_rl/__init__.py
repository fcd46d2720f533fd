"""aaren-rl: sequence-model policies that train offline in parallel and act as recurrent networks."""

from ._version import __version__
from .checkpoint import load_policy

__all__ = ["__version__", "load_policy"]
