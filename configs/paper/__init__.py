"""The paper's experiments as grids of runs: YAML files for `aaren_rl.sweep`."""
