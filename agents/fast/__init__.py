"""Faster forms of the model with the same numbers: for training on a CPU, and for rollout."""
