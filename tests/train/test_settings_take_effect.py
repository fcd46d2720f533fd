"""Settings take effect: in the loss, the model, the optimizers, the batches, the logs and the scores."""

import numpy as np
import pytest
import torch
from small_run import quick, records
from torch import Tensor, nn
from windows import SCALE, make_episodes

from aaren_rl.train import run as run_module
from aaren_rl.train.config import OptimizerConfig, build_config, make_config
from aaren_rl.train.data import StepData
from aaren_rl.train.optimizers import ITERATIONS, QUINTIC, Muon, orthogonalize, rates_at
from aaren_rl.train.trainer import Trainer, action_loss

SMALL = {
    "context": "mixed", "width": 16, "layers": 2, "heads": 2, "steps_per_update": 64, "updates": 8,
    "warmup_updates": 1, "precision": "float32",
}  # fmt: skip


def make(**changes: object) -> Trainer:
    return Trainer(build_config({**SMALL, **changes}), StepData(make_episodes(), SCALE), 2, 60)


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def by_muon(trainer: Trainer) -> list[bool | None]:
    """Of every parameter after a step whether it is Muon's or AdamW's; None: the step does not use it."""
    assert trainer.optimizers.muon is not None
    matrices = {id(matrix) for matrix in trainer.optimizers.muon.matrices}
    return [None if p.grad is None else id(p) in matrices for p in trainer.model.parameters()]


def test_the_loss_is_the_squared_error_over_real_steps():
    rng = np.random.default_rng(0)
    predicted, actions = rng.normal(size=(2, 2, 5, 3))
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    found = action_loss(*map(torch.from_numpy, (predicted, actions, mask)))
    assert float(found) == pytest.approx(np.square(predicted - actions).mean(-1)[mask].mean(), rel=1e-6)


def test_the_seed_draws_the_weights_and_the_batches():
    first, again, other = make(seed=0), make(seed=0), make(seed=1)
    drawn = [torch.cat([p.flatten() for p in weights(trainer)]) for trainer in (first, again, other)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    batches = [trainer.sampler.sample(trainer.generator).observations for trainer in (first, again, other)]
    assert torch.equal(batches[0], batches[1]) and not torch.equal(batches[0], batches[2])


def test_weights_decay_at_the_rate_of_their_optimizer():
    plain, decayed = (make(weight_decay=decay, dropout=0.0) for decay in (0.0, 0.5))
    rates, before = rates_at(0, plain.config.optimizer), weights(plain)
    assert rates.adamw != rates.muon
    plain.step()
    decayed.step()
    for muon, old, mine, less in zip(by_muon(plain), before, weights(plain), weights(decayed), strict=True):
        rate = {None: 0.0, True: rates.muon, False: rates.adamw}[muon]
        torch.testing.assert_close(mine - less, 0.5 * rate * old, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("still", ["learning_rate", "muon_learning_rate"])
def test_either_optimizer_has_its_own_rate(still):
    trainer = make(weight_decay=0.0, **{still: 1e-12})
    before = weights(trainer)
    trainer.step()
    for muon, old, new in zip(by_muon(trainer), before, weights(trainer), strict=True):
        moves = muon is not None and muon == (still == "learning_rate")
        assert (float((new - old).abs().max()) > 1e-6) == moves


def test_gradients_are_clipped_and_their_norm_before_is_returned():
    trainer = make(max_grad_norm=1e-3)
    _, norm = trainer.step()
    clipped = torch.stack([p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]).norm()
    assert float(norm) > 0.01 and float(clipped) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_trunk_computes_in_the_precision(precision):
    trainer, seen = make(precision=precision), list[torch.dtype]()
    for layer in trainer.model.trunk.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _layer, _given, out: seen.append(out.dtype))
    trainer.step()
    assert {*seen} == {getattr(torch, precision)}


def test_aaren_has_its_forget_gate_by_default_and_not_in_the_papers_preset():
    def gated(agent: str, preset: str = "default", **changes: object) -> bool:
        network = make_config({"agent": agent, **changes}, preset).network
        return bool(network.forget_gate)

    assert gated("decision-aaren") and gated("bc") and not gated("decision-aaren", "paper")
    assert not gated("decision-aaren-rsa") and gated("decision-aaren-rsa", forget_gate=True)
    with_gate, without = (make(forget_gate=gate).model for gate in (True, False))
    names = {name for name, _ in with_gate.named_parameters()} - {name for name, _ in without.named_parameters()}
    assert names == {f"trunk.blocks.{i}.mixer.forget.{part}" for i in (0, 1) for part in ("weight", "bias")}
    trained = make(forget_gate=True)
    before = [block.mixer.forget.weight.detach().clone() for block in trained.model.trunk.blocks]
    trained.step()
    after = [block.mixer.forget.weight for block in trained.model.trunk.blocks]
    assert not any(map(torch.equal, before, after))


def test_a_logged_loss_is_that_of_the_steps_since_the_last(hopper_file, tmp_path, monkeypatch):
    losses, step = list[float](), Trainer.step

    def seen(self: Trainer) -> tuple[Tensor, Tensor]:
        loss, norm = step(self)
        losses.append(float(loss))
        return loss, norm

    monkeypatch.setattr(Trainer, "step", seen)
    monkeypatch.setattr(run_module, "LOG_EVERY", 3)
    run = quick(tmp_path, hopper_file, "--precision float32")
    logged = [line["train/loss"] for line in records(run) if "train/loss" in line]
    assert logged == pytest.approx([np.mean(losses[:3]), np.mean(losses[3:])], rel=1e-5)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 16)])  # of a wide one, some iterations are of its square alone
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_steps_are_orthogonal(shape, dtype, apart):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthogonalize(x.to(dtype)).double()
    expected = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(ITERATIONS):
        gram = expected @ expected.mT
        expected = QUINTIC[0] * expected + (QUINTIC[1] * gram + QUINTIC[2] * gram @ gram) @ expected
    torch.testing.assert_close(found, expected, rtol=0, atol=apart)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.55 and values.max() < 1.3
    assert orthogonalize(torch.zeros(shape, dtype=dtype)).abs().max() == 0


def test_agrees_with_torchs_own():
    torch.manual_seed(0)
    start, gradients = torch.randn(32, 24), torch.randn(3, 32, 24)
    mine, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    muon = Muon([mine], 0.1, torch.bfloat16)
    its = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step(0.1)
        its.step()
    # Both round to bfloat16 inside; a step is about 0.1 * 0.2 an element.
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-3)


def test_rates_rise_and_fall_and_the_average_forgets_the_first_weights():
    config = OptimizerConfig(updates=1000, warmup_updates=10, learning_rate=1.0, ema_decay=0.95)
    first, middle, last = (rates_at(update, config) for update in (0, 500, 999))
    assert first.adamw == pytest.approx(0.1) and middle.adamw == pytest.approx(0.5) and last.adamw < 0.001
    assert middle.muon == pytest.approx(0.5 * config.muon_learning_rate)
    assert first.ema == pytest.approx(0.9) and last.ema == pytest.approx(1 - 0.95)
