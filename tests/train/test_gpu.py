"""What only a GPU can show: updates that wait for nothing, graphs against what they replay, resume, and acting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from windows import SCALE, make_episodes

from aaren_rl.agents import Policy
from aaren_rl.train import acceleration
from aaren_rl.train.contexts.batches import StepData
from aaren_rl.train.settings import build_config
from aaren_rl.train.trainer import Trainer

CONTEXTS = ["window", "mixed", "episode"]
UPDATES = 8  # more of a size than are made before it is recorded
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def make(context: str, **changes: object) -> Trainer:
    network = {"width": 64, "layers": 2, "heads": 2, "dropout": 0.1, "timestep_embedding": True}
    optimizer = {"updates": UPDATES, "warmup_updates": 3, "precision": "float32", "optimizer": "adamw"}
    data = {"context": context, "steps_per_update": 256, "schedule": "constant"}
    return Trainer(
        build_config({**data, **network, **optimizer, **changes}), StepData(make_episodes(), SCALE, "cuda"), 2, 60
    )


def trained(trainer: Trainer, updates: int = UPDATES) -> Trainer:
    for _ in range(updates):
        trainer.step()
    return trainer


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for model in (trainer.model, trainer.average) for p in model.parameters()]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_an_update_does_not_wait_for_the_device(context: str, non_finite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "EAGER", UPDATES)
    trainer = trained(make(context, non_finite=non_finite), 2)  # kernels are compiled, moments are made
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained(trainer, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_graph_is_the_update_it_replays(context: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = trained(make(context, optimizer=optimizer))
    assert mine._there._recorded
    monkeypatch.setattr(acceleration, "EAGER", UPDATES)
    true = trained(make(context, optimizer=optimizer))
    torch.testing.assert_close(weights(mine), weights(true), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("context", CONTEXTS)
def test_it_goes_on_where_it_was(context: str) -> None:
    whole, cut = trained(make(context)), trained(make(context), 5)
    fresh = make(context)
    fresh.restore(cut.update, cut.states())
    trained(fresh, UPDATES - 5)
    assert all(map(torch.equal, weights(whole), weights(fresh)))


def test_it_acts_as_on_a_cpu() -> None:
    trainer, actions = trained(make("mixed"), 3), []
    for device in ("cuda", "cpu"):
        data = trainer.data
        scales = data.observation_mean.to(device), data.observation_std.to(device)
        policy = Policy(trainer.average.to(device), *scales, SCALE, "carry", 20)
        state, rng = policy.initial_state(3, 1.0), np.random.default_rng(0)
        for _ in range(10):
            observation = rng.normal(size=(3, 3)).astype(np.float32)
            action, state = policy.act(observation, np.ones(3, np.float32), state)
            actions.append(action)
    np.testing.assert_allclose(actions[:10], actions[10:], rtol=0, atol=1e-5)
