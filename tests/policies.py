"""Policies that nobody trained, their cards and folders: of Hopper-v4, and of the two actions of CartPole-v1."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig, Policy, ReturnRange
from aaren_rl.agents.model.decision import Scaling
from aaren_rl.agents.policy.base import BasePolicy
from aaren_rl.policies.card import PolicyCard
from aaren_rl.policies.folder import make_policy as policy_of
from aaren_rl.policies.folder import save_policy
from aaren_rl.runtime import OnnxPolicy, from_bytes

HOPPER, CARTPOLE = "Hopper-v4", "CartPole-v1"
OBSERVATION, ACTION, TARGET, SCALE = 11, 3, 300.0, 50.0
MEAN, STD = torch.linspace(-1, 1, OBSERVATION), torch.linspace(0.5, 2, OBSERVATION)
# Of intervals of 5 steps; narrow enough that returns-to-go of the tests lie on both sides.
RANGE = ReturnRange(5, np.array([[280.0, 310.0], [-100.0, 290.0], [-50.0, 250.0]]))
LOW, HIGH = torch.tensor([-1.0, -2.0, 0.5]), torch.tensor([1.0, 1.0, 0.75])
# Tests for each mixer take their lists from here, so that a new one is tested.
CONSTANT_STATE = [name for name, mixer in MIXERS.items() if mixer.constant_state]
COMPILED = [name for name, mixer in MIXERS.items() if mixer.compiled_step]
GROWING = [name for name in MIXERS if name not in CONSTANT_STATE]


def make_model(
    mixer: str = "aaren", *, seed: int = 0, sizes: tuple[int, int] = (OBSERVATION, ACTION), **changes: Any
) -> DecisionModel:
    """A model of O observations and A actions whose Aaren has a forget gate, as `train` makes it."""
    torch.manual_seed(seed)
    shape = {"width": 16, "layers": 2, "heads": 2, "max_timestep": 20, "timestep_std": 0.5}
    model = DecisionModel(ModelConfig(*sizes, mixer, **shape | {"forget_gate": mixer == "aaren"} | changes))
    for parameter in model.parameters():  # norms and biases that are 1 and 0 would hide where they are left out
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def unit_scaling(model: DecisionModel) -> Scaling:
    """Of an environment whose units are the model's own."""
    sizes, place = (model.config.observation_dim, model.config.action_dim), {"device": model.head.weight.device}
    (zeros, ones), (middle, half) = ((torch.zeros(n, **place), torch.ones(n, **place)) for n in sizes)
    return Scaling(zeros, ones, 1.0, middle, half)


def make_policy(mixer: str = "aaren", rollout: str = "recurrent", context_length: int = 8, **model) -> Policy:
    return Policy(make_model(mixer, **model), MEAN, STD, SCALE, rollout, context_length, LOW, HIGH, RANGE)


def draw_episode(length: int, batch: int, size: int = OBSERVATION, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations (T, B, O) and the reward before each step (T, B), 0 at the first."""
    rng = np.random.default_rng(seed)
    rewards = rng.uniform(0, 3, (length, batch)).astype(np.float32)
    rewards[0] = 0
    return rng.normal(size=(length, batch, size)).astype(np.float32), rewards


def act(policy: BasePolicy, steps: int = 30) -> np.ndarray:
    """The actions (T, 2, A) of two episodes."""
    state, actions = policy.initial_state(2, 3000.0), []
    for observation, reward in zip(*draw_episode(steps, 2), strict=True):
        action, state = policy.act(observation, reward, state)
        actions.append(action)
    return np.stack(actions)


def plain_policy(observation_dim: int = 11, action_dim: int = 3, width: int = 16, seed: int = 7) -> Policy:
    """A small one whose observations are not scaled."""
    torch.manual_seed(seed)
    model = DecisionModel(ModelConfig(observation_dim, action_dim, width=width, layers=1, heads=2, timestep_std=1.0))
    return Policy(model, torch.zeros(observation_dim), torch.ones(observation_dim), 1000.0, "recurrent", 20)


def make_card(model: DecisionModel, **changes) -> PolicyCard:
    """A card that plays in Hopper-v4."""
    attention = model.config.mixer == "attention"
    card = PolicyCard(
        agent="decision-transformer" if attention else "decision-aaren",
        env="hopper-medium",
        env_id=HOPPER,
        env_kwargs={},
        horizon=1000,
        action_low=[-1.0] * ACTION,
        action_high=[1.0] * ACTION,
        reference="D4RL v2",
        reference_returns=[-20.272305, 3234.3],
        dataset="hopper-medium",
        source="local",
        source_path="/data/hopper-medium.hdf5",
        context="window" if attention else "mixed",
        context_length=20,
        rollout="window" if attention else "recurrent",
        rollout_context=20,
        target_return=TARGET,
        return_scale=SCALE,
        exact=False,
        observation_mean=MEAN.tolist(),
        observation_std=STD.tolist(),
        model=dataclasses.asdict(model.config),
        updates=1500,
        seed=0,
        weights="ema",
        versions={"aaren-rl": "0.1.0", "device": "cpu"},
    )
    return dataclasses.replace(card, **changes)


def save_run(folder: Path, mixer: str = "aaren", settings: dict[str, Any] | None = None, **changes) -> Path:
    """A run folder with a policy in it, of a model with these settings; raw and EMA weights differ."""
    settings = settings or {}
    model = make_model(mixer, **settings)
    states = {name: make_model(mixer, seed=seed, **settings).state_dict() for name, seed in (("raw", 1), ("ema", 0))}
    save_policy(folder / "policy", make_card(model, **changes), states)
    return folder


def onnx_file_of(policy: Policy, card: PolicyCard | None = None) -> bytes:
    """The content of the file that a policy is exported to."""
    from aaren_rl.export.export import describe, policy_graph

    graph = policy_graph(policy)
    describe(graph, card or make_card(policy.model, rollout=policy.rollout), precision="float32")
    return graph.SerializeToString()


def onnx_policy_of(policy: Policy, card: PolicyCard | None = None) -> OnnxPolicy:
    """The policy of such a file."""
    return from_bytes(onnx_file_of(policy, card), "the exported model")


def make_discrete_model(mixer: str = "aaren", actions: int = 2, observation: int = 4, **changes: Any) -> DecisionModel:
    own = {"max_timestep": 500, "forget_gate": False, "discrete": True}
    model = make_model(mixer, seed=1, sizes=(observation, actions), **own | changes)
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
    made = make_discrete_model(mixer, actions, **model)
    card = make_discrete_card(made, action_start=start, rollout=rollout, rollout_context=8)
    return policy_of(made, card)


def save_discrete_run(folder: Path, observation: int = 4, **changes: Any) -> Path:
    """A run folder with a policy in it."""
    model = make_discrete_model(observation=observation)
    save_policy(folder / "policy", make_discrete_card(model, **changes), {"ema": model.state_dict()})
    return folder
