"""The step that is exported, in PyTorch and as ONNX, beside `Policy`."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from policies import ACTION, HIGH, LOW, OBSERVATION, TARGET, make_discrete, make_policy, onnx_policy_of

from aaren_rl.agents import Policy
from aaren_rl.base.errors import UsageError
from aaren_rl.export.export import PolicyStep, policy_graph

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

STEPS, BATCH = 30, 3
Run = Callable[..., tuple[torch.Tensor, ...]]


def differences(policy: Policy, step: PolicyStep, run: Run) -> list[float]:
    """Of every step; environments begin again in the middle, and every third action is replaced by an executed one."""
    policy, rng = dataclasses.replace(policy, compiled=False), np.random.default_rng(0)
    targets = [TARGET, TARGET * 3, np.inf if policy.estimates_maximum else -TARGET]
    state, given = policy.initial_state(BATCH, targets), step.example()
    given = {name: torch.cat([part, part[:1]]) for name, part in given.items()}
    # What lies in the memory and the previous action where an episode begins, is ignored.
    given["memory"] = torch.full_like(given["memory"], torch.nan)
    given |= {"return_to_go": torch.tensor(targets).double(), "timestep": torch.zeros(BATCH, dtype=torch.long)}
    found = []
    for t in range(STEPS):
        seen, rewards = rng.normal(size=(BATCH, policy.sizes[0])), rng.uniform(0, 3, BATCH) * (t > 0)
        if t in (5, 17):
            state, rewards[1] = policy.reset(state, [1], 250.0), 0
            given["timestep"][1], given["return_to_go"][1], given["memory"][1] = 0, 250.0, torch.nan
        given["observation"] = torch.from_numpy(seen).to(given["observation"].dtype)
        given["reward"] = torch.from_numpy(rewards)
        act = policy.logits if policy.discrete else policy.act
        wanted, state = act(given["observation"].numpy(), rewards, state)
        action, *others = run(**given)
        logits = others.pop(0) if policy.discrete else action
        found.append(float(np.abs(logits.numpy() - wanted).max()))
        if policy.discrete:
            np.testing.assert_array_equal(action, state.previous_action)
        np.testing.assert_array_equal(others[0], state.return_to_go)
        taken = state.previous_action
        if t % 3 == 0:
            taken = taken[::-1].copy() if policy.discrete else rng.uniform(LOW, HIGH, (BATCH, ACTION))
            taken = taken if policy.discrete else taken.astype(np.float32)
            state = state._replace(previous_action=taken)
        after = dict(zip(("return_to_go", "timestep", "memory"), others, strict=True))
        given |= {name: part.clone() for name, part in after.items()}
        given["previous_action"] = torch.from_numpy(taken.copy())
    return found


@pytest.mark.parametrize(
    ("mixer", "rollout", "length", "tokens_per_step"),
    [
        ("aaren", "recurrent", 8, 3),
        ("aaren-rsa", "staggered", 3, 1),
        ("gru", "staggered", 8, 1),
        ("attention", "window", 2, 1),
    ],
)
@torch.no_grad()
def test_the_step_is_the_policy(mixer, rollout, length, tokens_per_step):
    """Longer than the table of the time embedding (20 rows), with action ranges that are not -1 to 1."""
    policy = make_policy(mixer, rollout, length, tokens_per_step=tokens_per_step, max_return_estimate=True)
    step = PolicyStep(policy).eval()
    assert max(differences(policy, step, step)) < 1e-5


GRAPHS = {
    "aaren": lambda: make_policy(max_return_estimate=True, layers=1),
    "staggered, three tokens": lambda: make_policy("aaren-rsa", rollout="staggered", tokens_per_step=3, layers=1),
    "gru": lambda: make_policy("gru", block="pre-norm", activation="relu", layers=1),
    "mingru": lambda: make_policy("mingru", activation="gelu-tanh", layers=1),
    "window": lambda: make_policy("attention", "window", tokens_per_step=3, layers=1),
    "discrete window of aaren": lambda: make_discrete("aaren", "window", actions=3, start=-1, layers=1),
}


ALWAYS = "aaren", "window"  # the others are slow


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in ALWAYS else pytest.mark.slow) for k in GRAPHS])
def test_onnx_runtime_takes_the_same_steps(kind):
    policy = GRAPHS[kind]()
    session = onnx_policy_of(policy)._session
    names = [value.name for value in session.get_inputs()]

    def run(**given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fed = {name: part.numpy() for name, part in given.items() if name in names}
        return tuple(map(torch.from_numpy, session.run(None, fed)))

    assert max(differences(policy, PolicyStep(policy), run)) < 1e-5
    if kind == "window":
        (memory,) = (value.shape for value in session.get_inputs() if value.name == "memory")
        assert memory == ["batch", 7, ACTION + 1 + OBSERVATION]


@pytest.mark.parametrize(
    ("mixer", "rollout", "more", "message"),
    [
        ("attention", "recurrent", {}, "to export in the rollout recurrent; use --rollout window"),
        ("rsa", "staggered", {}, "has no state of constant size"),
        ("aaren-rsa", "recurrent", {"rem_max_power": 5}, "has no state of constant size"),
        ("gru", "window", {}, "the mixer gru has no ONNX graph in the rollout window"),
    ],
)
def test_what_has_no_graph_is_refused(mixer, rollout, more, message):
    with pytest.raises(UsageError, match=message):
        policy_graph(make_policy(mixer, rollout, **more))
