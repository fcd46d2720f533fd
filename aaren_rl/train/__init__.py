"""The command train: configuration, batches, updates, ranks, checkpoints and the loop."""
