"""Updates that wait for nothing against those that do: the same weights; what follows is run as a graph on GPUs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from windows import make_data

from aaren_rl.train import trainer as module
from aaren_rl.train.settings import build_config
from aaren_rl.train.trainer import Trainer

UPDATES = 8
NETWORK = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.2, "timestep_embedding": True}
OPTIMIZER = {"updates": UPDATES, "warmup_updates": 3, "optimizer": "adamw", "precision": "float32"}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(context: str = "mixed", *, on_device: bool, **changes: object) -> Trainer:
    settings = {"context": context, "steps_per_update": 64, **NETWORK, **OPTIMIZER, **changes}
    return Trainer(build_config(settings), make_data(), 2, 60, on_device=on_device)


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def averages(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.average.parameters()]


def trained(context: str = "mixed", *, on_device: bool, updates: int = UPDATES, **changes: object) -> Trainer:
    """One after another: they draw dropout by the same generator."""
    trainer = make(context, on_device=on_device, **changes)
    for _ in range(updates):
        trainer.step()
    return trainer


@pytest.mark.parametrize("context", ["window", "mixed", "episode"])
def test_the_weights_are_the_same_to_the_last_bit(context: str) -> None:
    mine, true = (trained(context, on_device=there) for there in (True, False))
    assert all(map(torch.equal, weights(mine), weights(true)))
    torch.testing.assert_close(averages(mine), averages(true), rtol=1e-6, atol=1e-7)
    assert mine.optimizers.learning_rate == true.optimizers.learning_rate > 0
    assert mine.optimizers.state_dict()["param_groups"] == true.optimizers.state_dict()["param_groups"]


def test_by_muon_to_rounding() -> None:
    mine, true = (trained(on_device=there, optimizer="muon", weight_decay=0.1) for there in (True, False))
    torch.testing.assert_close(weights(mine), weights(true), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(averages(mine), averages(true), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_update_that_is_not_finite_is_skipped(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, found = module.masked_mse, []
    for there in (True, False):
        trainer, calls = make(on_device=there, optimizer=optimizer, non_finite="skip"), [0]

        def ill(*arguments: Tensor, calls: list[int] = calls) -> Tensor:
            calls[0] += 1
            return right(*arguments) * (torch.nan if calls[0] in (1, 4) else 1)

        monkeypatch.setattr(module, "masked_mse", ill)
        before = weights(trainer)
        trainer.step()
        assert all(map(torch.equal, before, weights(trainer)))
        for _ in range(UPDATES - 1):
            trainer.step()
        assert trainer.skipped == 2
        found.append((weights(trainer), averages(trainer)))
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found[0][0], found[1][0], **({"rtol": 0, "atol": 0} if optimizer == "adamw" else near))
    torch.testing.assert_close(found[0][1], found[1][1], **near)


@pytest.mark.parametrize("context", ["mixed", "episode"])
def test_it_goes_on_where_it_was(context: str) -> None:
    whole, cut = (trained(context, on_device=True, optimizer="muon", updates=n) for n in (UPDATES, 3))
    saved = cut.states()
    fresh = make(context, on_device=True, optimizer="muon")
    fresh.restore(cut.update, saved)
    for _ in range(UPDATES - 3):
        fresh.step()
    assert all(map(torch.equal, weights(whole) + averages(whole), weights(fresh) + averages(fresh)))


def test_after_the_last_update_its_rates_stay() -> None:
    trainer = trained(on_device=True, updates=UPDATES + 2)
    assert trainer.optimizers.learning_rate == module.rates_at(UPDATES - 1, trainer.config.optimizer).adamw
