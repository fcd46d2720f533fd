"""Several models as one: outputs, gradients and states are those of each alone, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig
from aaren_rl.agents import stacked as stacking
from aaren_rl.agents.scan.rows import tensors
from aaren_rl.agents.stacked import affine, stack

SEEDS, ROWS, STEPS = 3, 2, 24
STACKABLE = [name for name, mixer in MIXERS.items() if mixer.stackable]


def models(mixer: str, dtype: torch.dtype, **settings: object) -> list[DecisionModel]:
    sizes: dict[str, object] = {
        "observation_dim": 5,
        "action_dim": 2,
        "max_timestep": 40,
        "width": 32,
        "layers": 2,
        "heads": 4,
        "dropout": 0.0,
    }
    config = ModelConfig(mixer=mixer, **(sizes | settings))
    torch.manual_seed(1)
    return [DecisionModel(config).to(dtype) for _ in range(SEEDS)]


def batch(dtype: torch.dtype) -> dict[str, Tensor]:
    shape = SEEDS * ROWS, STEPS
    return {
        "observations": torch.randn(*shape, 5, dtype=dtype),
        "actions": torch.rand(*shape, 2, dtype=dtype),
        "returns_to_go": torch.randn(shape, dtype=dtype),
        "timesteps": torch.randint(40, shape),
        "starts": torch.rand(shape) < 0.2,
    }


def test_which_mixers_are() -> None:
    assert {"aaren", "attention", "mingru"} <= set(STACKABLE) and "gru" not in STACKABLE


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", [{"tokens_per_step": 3, "timestep_embedding": True}, {"block": "pre-norm"}], ids=str)
@pytest.mark.parametrize("mixer", STACKABLE)
def test_outputs_states_and_gradients_are_those_of_each_alone(
    mixer: str, form: dict[str, object], dtype: torch.dtype
) -> None:
    each = models(mixer, dtype, forget_gate=mixer == "aaren", **form)
    alone, whole, steps = copy.deepcopy(each), stack(each), batch(dtype)
    state = whole.initial_state(SEEDS * ROWS) if MIXERS[mixer].constant_state else None
    found, after = whole(**steps, state=state)
    found.square().sum().backward()
    compared = 0
    for k, model in enumerate(alone):
        mine = slice(k * ROWS, (k + 1) * ROWS)
        before = model.initial_state(ROWS) if MIXERS[mixer].constant_state else None
        expected, own = model(**{name: value[mine] for name, value in steps.items()}, state=before)
        expected.square().sum().backward()
        assert torch.equal(found[mine], expected)
        assert all(torch.equal(a[mine], b) for a, b in zip(tensors(after), tensors(own), strict=True))
        for (name, parameter), (other, stacked) in zip(model.named_parameters(), whole.named_parameters(), strict=True):
            assert name == other
            if parameter.grad is not None:
                assert torch.equal(stacked.grad[k], parameter.grad), name
                compared += 1
    assert compared > 20 * SEEDS


@pytest.mark.filterwarnings("ignore:.*CPU autocast:UserWarning")
def test_bfloat16_rounds_as_alone() -> None:
    each = models("aaren", torch.float32)
    alone, whole, steps = copy.deepcopy(each), stack(each), batch(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = whole(**steps)
        expected = [
            model(**{name: value[k * ROWS : (k + 1) * ROWS] for name, value in steps.items()})[0]
            for k, model in enumerate(alone)
        ]
    assert found.dtype == expected[0].dtype == torch.bfloat16
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=0.02)


def test_where_sums_are_not_apart_gradients_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    assert [stacking.sums_apart(torch.device(name)) for name in ("cpu", "cuda")] == [True, False]
    monkeypatch.setattr(stacking, "sums_apart", lambda _: False)
    each = models("aaren", torch.float64)
    alone, whole, steps = copy.deepcopy(each), stack(each), batch(torch.float64)
    whole(**steps)[0].square().sum().backward()
    for k, model in enumerate(alone):
        model(**{name: value[k * ROWS : (k + 1) * ROWS] for name, value in steps.items()})[0].square().sum().backward()
        for (name, parameter), of_all in zip(model.named_parameters(), whole.parameters(), strict=True):
            if parameter.grad is not None and of_all.grad is not None:
                torch.testing.assert_close(of_all.grad[k], parameter.grad, msg=name)


def test_the_models_share_the_memory_of_the_stack() -> None:
    each = models("aaren", torch.float32)
    whole = stack(each)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.mul_(2.0).add_(torch.arange(SEEDS).view(-1, *(1,) * (parameter.dim() - 1)))
    for k, model in enumerate(each):
        assert all(torch.equal(a, b[k]) for a, b in zip(model.parameters(), whole.parameters(), strict=True))
    assert [name for name, _ in whole.named_parameters()] == [name for name, _ in each[0].named_parameters()]
    assert sum(p.requires_grad for p in whole.parameters()) == sum(p.requires_grad for p in each[0].parameters())


def test_a_layer_without_a_bias_and_gaps_in_the_input() -> None:
    layers = [nn.Linear(4, 3, bias=with_bias, dtype=torch.float64) for with_bias in (True, True)]
    x = torch.randn(6, 5, 4, dtype=torch.float64)[:, 1::2]
    whole = stack(layers)
    assert torch.equal(whole(x), torch.cat([layers[0](x[:3]), layers[1](x[3:])]))
    plain = [nn.Linear(4, 3, bias=False) for _ in range(2)]
    x = torch.randn(6, 4)
    assert torch.equal(stack(plain)(x), torch.cat([plain[0](x[:3]), plain[1](x[3:])]))
    assert torch.equal(affine(x, plain[0].weight, None), plain[0](x))
