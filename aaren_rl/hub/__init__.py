"""The command hub: a policy in the layout of the Hugging Face hub."""

from .folder import from_pretrained, save_pretrained

__all__ = ["from_pretrained", "save_pretrained"]
