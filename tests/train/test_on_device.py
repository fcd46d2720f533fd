"""Updates that wait for nothing: on a CPU against those that do, on a GPU as graphs against what they replay."""

import numpy as np
import pytest
import torch
from policies import make_card, make_model
from torch import Tensor
from windows import SCALE, make_episodes

from aaren_rl.agents import Policy
from aaren_rl.train import trainer as trainer_module
from aaren_rl.train.config import build_config
from aaren_rl.train.data import StepData
from aaren_rl.train.run import acting_policy
from aaren_rl.train.trainer import Trainer

UPDATES = 8  # more of a size than are made before it is recorded
SETTINGS = {
    "width": 16, "layers": 2, "heads": 2, "dropout": 0.2, "timestep_embedding": True, "steps_per_update": 64,
    "updates": UPDATES, "warmup_updates": 3, "optimizer": "adamw", "precision": "float32",
}  # fmt: skip
ON_GPU = {"device": "cuda", "on_device": None, "width": 64, "steps_per_update": 256}
CONTEXTS = ["window", "mixed", "episode"]
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
on_gpu = pytest.mark.parametrize("changes", [pytest.param(ON_GPU, marks=GPU)], ids=["cuda"])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(context: str = "mixed", *, device: str = "cpu", on_device: bool | None = True, **changes: object) -> Trainer:
    config = build_config({"context": context, **SETTINGS, **changes})
    return Trainer(config, StepData(make_episodes(), SCALE, device), 2, 60, on_device=on_device)


def go_on(trainer: Trainer, updates: int) -> Trainer:
    for _ in range(updates):
        trainer.step()
    return trainer


def trained(context: str = "mixed", *, updates: int = UPDATES, **changes: object) -> Trainer:
    """One after another: they draw dropout by the same generator."""
    return go_on(make(context, **changes), updates)


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def ema(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.ema.parameters()]


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_weights_are_the_same_to_the_last_bit(context):
    mine, true = (trained(context, on_device=there) for there in (True, False))
    assert all(map(torch.equal, weights(mine), weights(true)))
    torch.testing.assert_close(ema(mine), ema(true), rtol=1e-6, atol=1e-7)
    assert mine.optimizers.learning_rate == true.optimizers.learning_rate > 0
    assert mine.optimizers.state_dict()["param_groups"] == true.optimizers.state_dict()["param_groups"]
    go_on(mine, 2)  # after the last update its rates stay
    assert mine.optimizers.learning_rate == true.optimizers.learning_rate


@pytest.mark.parametrize(
    ("context", "changes"),
    [
        *((context, {"optimizer": "muon"}) for context in ("mixed", "episode")),
        *(pytest.param(context, ON_GPU, marks=GPU) for context in CONTEXTS),
    ],
)
def test_it_goes_on_where_it_was(context, changes):
    whole, cut = (trained(context, updates=n, **changes) for n in (UPDATES, 5))
    saved = cut.states()
    fresh = make(context, **changes)
    fresh.restore(cut.update, saved)
    go_on(fresh, UPDATES - 5)
    assert all(map(torch.equal, weights(whole) + ema(whole), weights(fresh) + ema(fresh)))


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # not every operation that waits is detected
@pytest.mark.parametrize("context", CONTEXTS)
def test_an_update_does_not_wait_for_the_device(changes, context, monkeypatch):
    monkeypatch.setattr(trainer_module, "EAGER", UPDATES)
    trainer = trained(context, updates=2, **changes)  # kernels are compiled, moments are made
    torch.cuda.set_sync_debug_mode("error")
    try:
        go_on(trainer, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_graph_is_the_update_it_replays(changes, context, optimizer, monkeypatch):
    mine = trained(context, optimizer=optimizer, **changes)
    assert mine._learn._recorded
    monkeypatch.setattr(trainer_module, "EAGER", UPDATES)
    true = trained(context, optimizer=optimizer, **changes)
    torch.testing.assert_close(weights(mine) + ema(mine), weights(true) + ema(true), rtol=1e-5, atol=1e-6)


@on_gpu
def test_it_acts_as_on_a_cpu(changes):
    trainer, actions = trained(updates=3, **changes), []
    for device in ("cuda", "cpu"):
        data = trainer.data
        scales = data.observation_mean.to(device), data.observation_std.to(device)
        policy = Policy(trainer.ema.to(device), *scales, SCALE, "recurrent", 20)
        state, rng = policy.initial_state(3, 1.0), np.random.default_rng(0)
        for _ in range(10):
            observation = rng.normal(size=(3, 3)).astype(np.float32)
            action, state = policy.act(observation, np.ones(3, np.float32), state)
            actions.append(action)
    np.testing.assert_allclose(actions[:10], actions[10:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mixer", "rollout", "there"),
    [("aaren", "recurrent", "cpu"), ("aaren", "window", "cuda"), ("attention", "recurrent", "cuda")],
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_training_acts_on_the_cpu_if_a_step_is_compiled_there(mixer, rollout, there, device):
    model = make_model(mixer).to(device)
    policy = acting_policy(model, make_card(model, rollout=rollout))
    assert policy.model.head.weight.device.type == (there if device == "cuda" else "cpu")
    assert (policy.model is model) == (policy.model.head.weight.device == model.head.weight.device)
