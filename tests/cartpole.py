"""Policies of discrete actions that nobody trained, and data for them: CartPole-v1, or actions from -1 to 1."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policies import make_card

from aaren_rl.agents import DecisionModel, ModelConfig, Policy
from aaren_rl.envs import Episodes, make_env
from aaren_rl.policies.card import PolicyCard
from aaren_rl.policies.folder import make_policy as policy_of
from aaren_rl.policies.folder import save_policy

CARTPOLE, OBSERVATION = "CartPole-v1", 4


def make_model(mixer: str = "aaren", actions: int = 2, observation: int = OBSERVATION, **changes: Any) -> DecisionModel:
    torch.manual_seed(1)
    sizes = {"width": 16, "layers": 2, "heads": 2, "max_timestep": 500, "timestep_std": 0.5}
    model = DecisionModel(ModelConfig(observation, actions, mixer, discrete=True, **sizes | changes))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.head.weight.data *= 5  # both actions are taken
    model.embed_action.weight.data *= 3
    model.head.bias.data *= 0
    return model


def make_discrete_card(model: DecisionModel, **changes: Any) -> PolicyCard:
    """A card that plays CartPole."""
    of_task: dict[str, Any] = {"env": "cartpole", "env_id": CARTPOLE, "dataset": "cartpole", "source": "file"}
    of_task |= {"action_low": [], "action_high": [], "n_actions": model.config.action_dim, "horizon": 500}
    of_task |= {"reference": None, "reference_returns": None, "target_return": 100.0, "return_scale": 100.0}
    size = model.config.observation_dim
    of_task |= {"observation_mean": [0.0] * size, "observation_std": [0.5, 1.0, 0.1, 1.0][:size]}
    return dataclasses.replace(make_card(model), **of_task | changes)


def make_discrete(
    mixer: str = "aaren", rollout: str = "recurrent", actions: int = 2, start: int = 0, **model
) -> Policy:
    made = make_model(mixer, actions, **model)
    card = make_discrete_card(made, action_start=start, rollout=rollout, rollout_context=8)
    return policy_of(made, card)


def save_discrete_run(folder: Path, observation: int = OBSERVATION, **changes: Any) -> Path:
    """A run folder with a policy in it."""
    model = make_model(observation=observation)
    save_policy(folder / "policy", make_discrete_card(model, **changes), {"ema": model.state_dict()})
    return folder


def play_cartpole(episodes: int = 40, seed: int = 0) -> Episodes:
    """Data of a behavior that mostly pushes against the pole's fall."""
    env, rng = make_env(CARTPOLE), np.random.default_rng(seed)
    observations, actions, lengths = [], [], []
    for number in range(episodes):
        observation, ended, length = env.reset(seed=number)[0], False, 0
        while not ended:
            good = int(observation[2] + 0.5 * observation[3] > 0)
            action = good if rng.random() < 0.8 else 1 - good
            observations.append(observation)
            actions.append(action)
            observation, _, terminated, cut, _ = env.step(action)
            ended, length = terminated or cut, length + 1
        lengths.append(length)
    env.close()
    return Episodes(
        observations=np.array(observations, np.float32),
        actions=np.array(actions, np.int64),
        rewards=np.ones(len(actions), np.float32),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        terminated=np.ones(episodes, bool),
        dataset="cartpole",
        env_id=CARTPOLE,
    )
