"""The data of a run: read, on the training device, in batches of every context."""
