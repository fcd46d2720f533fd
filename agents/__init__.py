"""The models: the scan, the mixers, the decision model and the policy. Imports torch and NumPy, and only on demand.

A command line lists the model settings (`agents/model/config.py`) without importing torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Import all public names on first access to one of them."""
    if name != "__all__" and (name.startswith("__") or find_spec(f"{__name__}.{name}")):  # modules are left to `import`
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    api = import_module(".api", __name__)
    return sorted(own for own in vars(api) if own[0] != "_") if name == "__all__" else getattr(api, name)
