"""A run's folder: its lock, metrics, numbered checkpoints and events for TensorBoard."""
