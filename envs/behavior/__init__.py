"""Behavior policies that ship with the package: safetensors weights, read by aaren_rl.envs.behavior.local_sets."""
