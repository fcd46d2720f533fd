"""A run's folder: its lock, metrics, numbered checkpoints and TensorBoard events."""
