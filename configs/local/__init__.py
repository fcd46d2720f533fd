"""The paper's experiments on local sets, as grids of runs: YAML files for `aaren_rl.sweep`."""
