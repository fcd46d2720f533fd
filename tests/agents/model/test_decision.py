"""The decision model: in parallel as in training and step by step as at rollout."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import unit_scaling
from torch import Tensor

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig
from aaren_rl.agents.model.decision import Step
from aaren_rl.agents.policy.compiled import CompiledStep

OBSERVATION, ACTION = 5, 2
every_mixer = pytest.mark.parametrize("mixer", MIXERS)
tokens = pytest.mark.parametrize("tokens_per_step", [1, 3])
Steps = tuple[Tensor, Tensor, Tensor, Tensor]


def make(mixer: str, **changes: int) -> DecisionModel:
    torch.manual_seed(0)
    config = ModelConfig(OBSERVATION, ACTION, mixer=mixer, width=16, layers=2, heads=2)
    return DecisionModel(replace(config, **changes)).eval()


def steps(length: int, batch: int = 2, first: int = 0) -> Steps:
    """Observations, actions, returns-to-go and timesteps."""
    generator = torch.Generator().manual_seed(length)
    shape = (batch, length)
    return (
        torch.randn(*shape, OBSERVATION, generator=generator),
        torch.rand(*shape, ACTION, generator=generator) * 2 - 1,
        torch.randn(*shape, generator=generator),
        torch.arange(first, first + length).expand(shape),
    )


def stepwise(model: DecisionModel, data: Steps) -> Tensor:
    observations, actions, returns_to_go, timesteps = data
    state, outputs, previous = model.trunk.initial_state(len(actions)), [], None
    for t in range(actions.shape[1]):
        action, state = model.step(observations[:, t], returns_to_go[:, t], int(timesteps[0, t]), previous, state)
        outputs.append(action)
        previous = actions[:, t]
    return torch.stack(outputs, 1)


@tokens
@pytest.mark.parametrize(("given", "discrete", "share"), [(None, True, 0.5), (None, False, 0.0), (0.25, False, 0.25)])
def test_some_steps_of_training_do_not_see_the_action_before(tokens_per_step, given, discrete, share):
    model = make("aaren", dropout=0, action_dropout=given, discrete=discrete, tokens_per_step=tokens_per_step)
    seen, (given_to, actions, *rest) = list[Tensor](), steps(2000)
    model.embed_action.register_forward_hook(lambda _module, given, _output: seen.append(given[0]))
    for training in (True, False):
        model.train(training)(given_to, actions, *rest)
    hidden, whole = (found[:, 1:].eq(0).all(-1) for found in seen)
    assert hidden.float().mean().item() == pytest.approx(share, abs=0.03) and not whole.any()


@tokens
def test_without_the_timestep_embedding_it_does_not_matter_when(tokens_per_step):
    (early, late), sizes = (steps(30, first=first) for first in (0, 500)), {"tokens_per_step": tokens_per_step}
    model = make("aaren", timestep_embedding=False, **sizes)
    (model(*early)[0] - early[1]).square().mean().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1).step()
    assert model.embed_timestep is None and model.embed_observation.weight.grad is not None
    with torch.no_grad():
        assert torch.equal(model(*early)[0], model(*late)[0])
        rollout = CompiledStep(model, unit_scaling(model))
        given = early[0][:, 0].numpy(), early[2][:, 0].double().numpy()
        first, later = (rollout.step(Step(*given, t, None), rollout.initial_state(2))[0] for t in (0, 700))
        assert np.array_equal(first, later)
        told = make("aaren", **sizes)
        assert not torch.equal(told(*early)[0], told(*late)[0])


@pytest.mark.parametrize(("mixer", "activation"), [("aaren", "gelu-tanh"), ("attention", "relu"), ("gru", "gelu-tanh")])
@torch.no_grad()
def test_pre_norm_blocks_are_those_of_gpt2(mixer, activation):
    """x + mixer(LN1(x)), x + MLP(LN2(x)), and one more layer norm at the end; in parallel and step by step."""
    model, data = make(mixer, block="pre-norm", activation=activation), steps(30)
    torch.testing.assert_close(model(*data)[0], stepwise(model, data), rtol=0, atol=1e-5)
    x = torch.randn(2, 9, 16)
    expected = x
    for block in model.trunk.blocks:
        expected = expected + block.mixer(block.norm1(expected))[0]
        hidden = block.mlp[0](block.norm2(expected))
        hidden = hidden.relu() if activation == "relu" else torch.nn.functional.gelu(hidden, approximate="tanh")
        expected = expected + block.mlp[2](hidden)
    torch.testing.assert_close(model.trunk(x)[0], model.trunk.norm(expected), rtol=0, atol=1e-5)


@tokens
@torch.no_grad()
def test_timesteps_beyond_the_table_use_its_last_row(tokens_per_step):
    model, data = make("aaren", max_timestep=10, tokens_per_step=tokens_per_step), steps(8, first=6)
    parallel, _ = model(*data)
    torch.testing.assert_close(parallel, stepwise(model, data), rtol=0, atol=1e-5)
    assert torch.equal(parallel, model(*data[:3], data[3].clamp(max=9))[0])
    assert not torch.equal(parallel, model(*data[:3], data[3].clamp(max=8))[0])


@tokens
@every_mixer
@pytest.mark.parametrize("goes_on", [True, False])
@torch.no_grad()
def test_packed_rows_are_separate_rows(mixer, tokens_per_step, goes_on):
    """With a state before them, which the first goes on from or not; where one begins, the action before counts not."""
    model = make(mixer, tokens_per_step=tokens_per_step)
    before, parts = steps(9, batch=1), [steps(n, batch=1, first=n) for n in (3, 1, 30, 7)]
    starts = torch.zeros(1, 41, dtype=torch.bool)
    starts[0, [3, 4, 34] if goes_on else [0, 3, 4, 34]] = True
    earlier = {"state": model(*before)[1], "previous_action": before[1][:, -1]}
    packed, _ = model(*(torch.cat(kind, 1) for kind in zip(*parts, strict=True)), starts=starts, **earlier)
    separate = torch.cat([model(*part, **(earlier if goes_on and part is parts[0] else {}))[0] for part in parts], 1)
    torch.testing.assert_close(packed, separate, rtol=0, atol=1e-5)


@tokens
@torch.no_grad()
def test_tokens_are_those_of_the_papers(tokens_per_step):
    """Against the trunk fed by hand: return-to-go, observation, action; in one token the action before."""
    model, (observations, actions, returns_to_go, timesteps) = make("aaren", tokens_per_step=tokens_per_step), steps(3)
    time, to_go = model.embed_timestep.weight[timesteps], model.embed_return(returns_to_go.unsqueeze(-1))
    seen = observations @ model.embed_observation.weight.T + model.embed_observation.bias
    if tokens_per_step == 1:
        before = torch.cat([torch.zeros(2, 1, ACTION), actions[:, :-1]], 1)
        tokens, acted_on = to_go + seen + before @ model.embed_action.weight.T + time, [0, 1, 2]
    else:
        parts = []
        for t in range(3):
            parts += [part[:, t] + time[:, t] for part in (to_go, seen, model.embed_action(actions))]
        tokens, acted_on = torch.stack(parts, 1), [1, 4, 7]
    by_hand = torch.tanh(model.head(model.trunk(model.norm(tokens))[0][:, acted_on]))
    torch.testing.assert_close(model(observations, actions, returns_to_go, timesteps)[0], by_hand, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixer": "mamba"}, "'mamba' is not one of aaren, attention"),
        ({"block": "sandwich"}, "block 'sandwich' is not one of post-norm, pre-norm"),
        ({"activation": "silu"}, "activation 'silu' is not one of gelu, gelu-tanh, relu"),
        ({"width": 30, "heads": 4}, "width 30 is not a multiple of heads 4"),
        ({"tokens_per_step": 2}, "tokens_per_step must be 1 or 3, not 2"),
        ({"dropout": 1.0}, "dropout: must be below 1"),
        ({"dropout": -0.1}, "dropout: must be at least 0"),
        ({"dropout": float("nan")}, "dropout: must be finite"),
        ({"rem_counts": "1,1,1"}, "'1,1,1' is not auto or six numbers"),
        ({"rem_counts": "1,1,1,1,1,-1"}, "is not auto or six numbers"),
        ({"rem_counts": "2, 2,1,0,0,0"}, "has 5 REMs for 4 heads"),
        ({"rem_counts": "0,0,0,0,0,0"}, "not all 0"),
        ({"rem_dilation": 1}, "dilation: must be at least 2, not 1"),
        ({"rem_max_power": -1}, "rem_max_power: must be at least 0, not -1"),
        ({"rem_gate": 3.5}, "rem_gate: must be at most 3, not 3.5"),
        *(({name: 0}, f"{name}: must be at least 1, not 0") for name in ("action_dim", "width", "max_timestep")),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(ModelConfig(OBSERVATION, ACTION, "aaren-rsa", heads=4), **change)


def test_weights_of_a_seed_do_not_depend_on_the_table_of_time_steps():
    """Nor on that earlier versions had one always."""
    shape = {"observation_dim": 3, "action_dim": 2, "width": 16, "layers": 1, "heads": 2, "max_timestep": 50}
    told, not_told = [], []
    for embedded, found in ((True, told), (False, not_told)):
        torch.manual_seed(0)
        found += DecisionModel(ModelConfig(**shape, timestep_embedding=embedded)).named_parameters()
    weights = dict(told)
    assert weights.pop("embed_timestep.weight").shape == (50, 16) and weights.keys() == dict(not_told).keys()
    assert all(torch.equal(weights[name], weight) for name, weight in not_told)


MADE_ON_META = """
import sys, torch
from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig
for mixer in MIXERS:
    with torch.device("meta"):
        model = DecisionModel(ModelConfig(5, 2, mixer, 16, 2, 4, forget_gate=True, timestep_embedding=False))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert "torch._dynamo" not in sys.modules, mixer
"""


def test_a_saved_model_is_made_without_the_compiler_of_torch():
    """Whose import takes a second of loading a policy."""
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", MADE_ON_META], check=True)
