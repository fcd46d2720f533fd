"""The command hub: a policy in the layout of the Hugging Face hub."""

from ..policies.folder import load_policy as from_pretrained
from .folder import save_pretrained

__all__ = ["from_pretrained", "save_pretrained"]
