"""The command import-weights: Decision Transformers that others trained."""
