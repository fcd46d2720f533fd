"""Tree attention in a policy, and in `evaluate`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policies import act, make_policy, save_run

from aaren_rl import load_policy
from aaren_rl.agents import NonFiniteActionError, TreeConfig
from aaren_rl.evaluate import main as evaluate


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the agent that acts with a tree."""
    acts = {"agent": "decision-transformer-tree", "rollout": "staggered", "rollout_context": 50}
    return save_run(tmp_path_factory.mktemp("runs") / "seed0", "tree", {"tree_budget": 0.4}, **acts)


@pytest.mark.parametrize("rollout", ["recurrent", "staggered"])
def test_all_terms_act_like_softmax_and_few_do_not(run, rollout):
    planted = load_policy(run, rollout=rollout)
    assert planted.tree == TreeConfig(0.4, "edh")
    policy = replace(planted, tree=None)
    exact = act(policy, 25)
    np.testing.assert_allclose(act(replace(planted, tree=TreeConfig(1.0)), 25), exact, rtol=0, atol=1e-6)
    assert np.abs(act(planted, 25) - exact).max() > 1e-6
    np.testing.assert_array_equal(act(planted, 25), act(replace(policy, tree=TreeConfig(0.4)), 25))
    assert policy.tree is None  # what was given stays as it was
    np.testing.assert_array_equal(act(policy, 25), exact)


@pytest.mark.parametrize("sampler", ["align", "edh"])
def test_a_nan_ends_in_an_error(run, sampler):
    policy, seen = replace(load_policy(run), tree=TreeConfig(0.5, sampler)), np.zeros((1, 11))
    state = policy.initial_state(1, 3600.0)
    for _ in range(6):
        _, state = policy.act(seen, np.ones(1), state)
    with pytest.raises(NonFiniteActionError):
        policy.act(seen * np.nan, np.ones(1), state)


def test_evaluate_is_repeatable_and_says_how(run, tmp_path, capsys):
    found = []
    for options in ((), (), ("--rollout", "window")):
        file = tmp_path / "scores.json"
        assert evaluate([str(run), "--episodes", "2", "--json", str(file), *options]) == 0
        found.append(json.loads(file.read_text())[0])
    one, two, window = found
    assert one["returns"] == two["returns"] != window["returns"]
    assert one["attention"] == "tree attention, E = 0.4, sampler edh, seed 0" and one["rollout"] == "staggered"
    assert window["attention"] == "softmax"  # a window is recomputed: no tree
    assert ", tree attention, E = 0.4, sampler edh, seed 0;" in capsys.readouterr().out


def test_only_softmax_attention_is_replaced():
    with pytest.raises(ValueError, match="the place of softmax attention, and this model has none"):
        replace(make_policy("aaren"), tree=TreeConfig())
