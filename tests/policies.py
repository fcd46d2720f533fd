"""Policies that nobody trained, and their folders, for the tests of export and runtime."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig, Policy, ReturnRange
from aaren_rl.agents.model.scaling import Scaling
from aaren_rl.policies.card import PolicyCard
from aaren_rl.policies.folder import save_policy
from aaren_rl.runtime import OnnxPolicy, from_bytes

OBSERVATION, ACTION, TARGET, SCALE = 11, 3, 300.0, 50.0
MEAN, STD = torch.linspace(-1, 1, OBSERVATION), torch.linspace(0.5, 2, OBSERVATION)
# Of intervals of 5 steps; narrow enough that returns-to-go of the tests lie on both sides.
RANGE = ReturnRange(5, np.array([[280.0, 310.0], [-100.0, 290.0], [-50.0, 250.0]]))
LOW, HIGH = torch.tensor([-1.0, -2.0, 0.5]), torch.tensor([1.0, 1.0, 0.75])
# Tests for each mixer take their lists from here, so that a new one is tested.
CONSTANT_STATE = [name for name, mixer in MIXERS.items() if mixer.constant_state]
COMPILED = [name for name, mixer in MIXERS.items() if mixer.compiled_step]
GROWING = [name for name in MIXERS if name not in CONSTANT_STATE]


def make_model(mixer: str = "aaren", *, seed: int = 0, **changes) -> DecisionModel:
    """A model whose Aaren has a forget gate, as `train` makes it."""
    torch.manual_seed(seed)
    sizes = {
        "width": 16,
        "layers": 2,
        "heads": 2,
        "max_timestep": 20,
        "timestep_std": 0.5,
        "forget_gate": mixer == "aaren",
    }
    model = DecisionModel(ModelConfig(OBSERVATION, ACTION, mixer, **sizes | changes))
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


def make_card(model: DecisionModel, **changes) -> PolicyCard:
    """A card that plays in Hopper-v4."""
    attention = model.config.mixer == "attention"
    card = PolicyCard(
        agent="decision-transformer" if attention else "decision-aaren",
        env="hopper-medium",
        env_id="Hopper-v4",
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
