"""Presets: one YAML file each, read by aaren_rl.train.config."""
