"""Batches of gradient steps: how they are sampled, and which contexts suit a dataset."""
