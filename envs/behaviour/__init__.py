"""Behaviour policies that ship with the package: safetensors weights, read by aaren_rl.envs.behaviour.local_sets."""
