"""The same numbers as the model's own, sooner: in training on a CPU, and at rollout."""
