"""Policies to and from the Hugging Face hub: the commands `hub` and `import-weights`."""

from .hub import save_pretrained
from .import_weights import import_model

__all__ = ["import_model", "save_pretrained"]
