"""`presets.yaml`, read by aaren_rl.train.settings, and grids of runs."""
