"""Datasets made on this machine, and the behavior policies that ship for them as safetensors weights."""
