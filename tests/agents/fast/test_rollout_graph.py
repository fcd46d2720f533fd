"""Acting by recorded graphs, with a recorder that calls again what a GPU would replay; and on a GPU, the graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from policies import unit_scaling
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aaren_rl.agents import DecisionModel, ModelConfig, Policy
from aaren_rl.agents.fast.rollout_graph import GraphedCallable, GraphedStep

Results = tuple[Tensor, ...]
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


def again(function: Callable[[], Results]) -> Callable[[], Results]:
    """As a graph does, every call writes its results where those of the call before are."""
    places = function()

    def replay() -> Results:
        for place, result in zip(places, function(), strict=True):
            place.copy_(result)
        return places

    return replay


def model(device: str = "cpu", mixer: str = "aaren") -> DecisionModel:
    torch.manual_seed(0)
    return DecisionModel(ModelConfig(3, 2, mixer, width=16, layers=2, heads=2, max_timestep=20)).to(device).eval()


@torch.no_grad()
def test_what_is_recorded_asks_for_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors have no memory there: a number that is asked for, or a shape made from one, is an error."""
    monkeypatch.setattr("aaren_rl.agents.kernels.choose", lambda values: "blocked")  # Numba's would read the memory
    step = GraphedStep(model(), unit_scaling(model()), again)
    attention = model(mixer="attention")
    with FakeTensorMode(allow_non_fake_inputs=True):
        times, begins = torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.bool)
        given = torch.zeros(3, 3), torch.zeros(3, dtype=torch.float64), times, torch.zeros(3, 2), begins
        step._step(*given, step.initial_state(3))
        for whole in (step._model, attention):
            whole(torch.zeros(3, 5, 3), torch.zeros(3, 5, 2), torch.zeros(3, 5), torch.zeros(3, 5).long())


@pytest.mark.parametrize("rollout", ["recurrent", "staggered", "window"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_policy_acts_by_it(rollout: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through two resets: the actions are those without graphs."""
    made = []
    if device == "cpu":
        monkeypatch.setattr("aaren_rl.agents.fast.rollout._can_record", lambda model: True)
        monkeypatch.setattr("aaren_rl.agents.fast.rollout.can_compile", lambda model: False)
        monkeypatch.setattr(GraphedCallable.__init__, "__defaults__", (again,))
        monkeypatch.setattr(GraphedStep.__init__, "__defaults__", (again,))
    for compiled in (True, False):
        scales = torch.zeros(3, device=device), torch.ones(3, device=device)
        policy = Policy(model(device), *scales, 10.0, rollout, 6, compiled=compiled)
        assert compiled == (isinstance(policy._stepper, GraphedStep) or policy._windows is not None)
        state, rng, actions, kept = policy.initial_state(3, 5.0), np.random.default_rng(0), [], []
        for step in range(14):
            if step in (4, 9):
                state = policy.reset(state, [step % 3], 4.0)
            action, state = policy.act(rng.normal(size=(3, 3)).astype(np.float32), np.ones(3), state)
            actions.append(action)
            kept.append(action.copy())
        assert np.array_equal(actions, kept)  # no replay writes over what was handed out
        made.append(np.array(actions))
    np.testing.assert_allclose(*made, rtol=0, atol=1e-6)
