"""A small policy for Hopper, untrained."""

import torch

from aaren_rl.agents import DecisionModel, ModelConfig, Policy

HOPPER, TARGET = "Hopper-v4", 3600.0


def make_policy(observation_dim: int = 11, action_dim: int = 3, width: int = 16, seed: int = 7) -> Policy:
    torch.manual_seed(seed)
    model = DecisionModel(ModelConfig(observation_dim, action_dim, width=width, layers=1, heads=2, timestep_std=1.0))
    return Policy(model, torch.zeros(observation_dim), torch.ones(observation_dim), 1000.0, "recurrent", 20)
