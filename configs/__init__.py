"""`presets.yaml`, read by aaren_rl.train.config, and grids of runs."""
