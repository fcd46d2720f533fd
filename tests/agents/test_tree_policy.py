"""Tree attention in a policy, and in `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aaren_rl import load_policy
from aaren_rl.agents import Policy, TreeConfig, tree_config, with_softmax_attention, with_tree_attention
from aaren_rl.evaluate import command as evaluate
from aaren_rl.train import command as train

SMALL = ("--width", "16", "--layers", "2", "--heads", "2", "--updates", "1", "--threads", "1", "--eval-episodes", "1")


def trained(folder: Path, data: Path, agent: str) -> Path:
    arguments = ("--agent", agent, "--source", str(data), "--env", "hopper-medium", "--final-episodes", "1")
    long = ("--context", "mixed", "--rollout", "carry", "--steps-per-update", "64", "--out", str(folder))
    assert train.main([*arguments, *SMALL, *long]) == 0
    return folder / "hopper-medium" / agent / "seed0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, hopper_file: Path) -> Path:
    return trained(tmp_path_factory.mktemp("runs"), hopper_file, "decision-transformer")


def act(policy: Policy, steps: int) -> np.ndarray:
    rng, state, actions = np.random.default_rng(0), policy.initial_state(2, 3600.0), []
    for _ in range(steps):
        action, state = policy.act(rng.standard_normal((2, 11)), np.ones(2), state)
        actions.append(action)
    return np.stack(actions)


@pytest.mark.parametrize("rollout", ["carry", "rolling"])
def test_all_terms_act_like_softmax_and_few_do_not(run: Path, rollout: str) -> None:
    policy = load_policy(run, rollout=rollout)
    exact = act(policy, 25)
    np.testing.assert_allclose(act(with_tree_attention(policy, TreeConfig(1.0)), 25), exact, rtol=0, atol=1e-6)
    assert np.abs(act(with_tree_attention(policy, TreeConfig(0.2)), 25) - exact).max() > 1e-5
    assert tree_config(policy) is None  # what was given stays as it was
    np.testing.assert_array_equal(act(policy, 25), exact)


def test_rows_can_be_selected(run: Path) -> None:
    policy = with_tree_attention(load_policy(run), TreeConfig(0.5, "align"))
    state, observation = policy.initial_state(3, 3600.0), np.random.default_rng(0).standard_normal((3, 11))
    for _ in range(5):
        _, state = policy.act(observation, np.ones(3), state)
    kept = policy.select(state, np.array([2, 0]))
    some, _ = policy.act(observation[[2, 0]], np.ones(2), kept)
    every, _ = policy.act(observation, np.ones(3), state)
    np.testing.assert_allclose(some, every[[2, 0]], rtol=0, atol=1e-6)


def test_evaluate_is_repeatable_and_says_how(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name, options in (
        ("one", ("tree", "--budget", "0.3", "--sampler", "uniform")),
        ("two", ("tree", "--budget", "0.3", "--sampler", "uniform")),
        ("softmax", ("softmax",)),
    ):
        file = tmp_path / name
        assert evaluate.main([str(run), "--episodes", "2", "--json", str(file), "--attention", *options]) == 0
        found.append(json.loads(file.read_text())[0])
    one, two, softmax = found
    assert one["returns"] == two["returns"] != softmax["returns"]
    assert one["attention"] == "tree attention, E = 0.3, sampler uniform, seed 1000"
    assert softmax["attention"] == "softmax"
    assert "rollout carry, tree attention, E = 0.3, sampler uniform, seed 1000;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--attention", "tree", "--budget", "1.5"), "--attention tree: budget must be from 0 to 1, not 1.5"),
        (
            ("--attention", "tree", "--rollout", "window"),
            "--attention tree: tree attention needs a growing memory: use the rollout carry or rolling, not window",
        ),
        (("--budget", "0.5"), "--budget is for --attention tree"),
        (("--sampler", "edh"), "--sampler is for --attention tree"),
    ],
)
def test_evaluate_refuses(
    run: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main([str(run), *options]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_recurrent_agent_is_refused(tmp_path: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aaren = trained(tmp_path, hopper_file, "decision-aaren")
    capsys.readouterr()
    assert evaluate.main([str(aaren), "--attention", "tree"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "replaces a Transformer's softmax attention; this policy's mixer is 'aaren', which has none" in err


@pytest.fixture(scope="module")
def tree_run(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the agent that acts with a tree."""
    out, agent = tmp_path_factory.mktemp("tree"), "decision-transformer-tree"
    asked = ("--agent", agent, "--source", str(hopper_file), "--env", "hopper-medium", "--tree-budget", "0.4")
    small = ("--steps-per-update", "60", "--final-episodes", "2", "--out", str(out))
    assert train.main([*asked, *SMALL, *small]) == 0
    return out / "hopper-medium" / agent / "seed0"


def test_the_agent_with_a_tree_acts_with_it_and_says_so(tree_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_policy(tree_run)
    assert tree_config(policy) == TreeConfig(0.4, "edh") and policy.rollout == "rolling"
    assert evaluate.main([str(tree_run), "--episodes", "2"]) == 0
    assert "tree attention, E = 0.4, sampler edh, seed 0" in capsys.readouterr().out
    exact = with_tree_attention(policy, TreeConfig(1.0))
    softmax = with_softmax_attention(policy)
    assert tree_config(softmax) is None and tree_config(policy) is not None
    np.testing.assert_allclose(act(exact, 25), act(softmax, 25), rtol=0, atol=1e-6)
    assert np.abs(act(policy, 25) - act(softmax, 25)).max() > 1e-6
    assert np.array_equal(act(policy, 25), act(with_tree_attention(softmax, TreeConfig(0.4)), 25))


def test_the_agent_with_a_tree_can_be_asked_for_other_attention(
    tree_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main([str(tree_run), "--episodes", "1", "--attention", "softmax"]) == 0
    assert "tree" not in capsys.readouterr().out.splitlines()[1]
    assert evaluate.main([str(tree_run), "--episodes", "1", "--rollout", "window"]) == 0  # recomputed: no tree
    assert "E = " not in capsys.readouterr().out
    assert evaluate.main([str(tree_run), "--episodes", "1", "--attention", "tree", "--sampler", "align"]) == 0
    assert "E = 0.5, sampler align, seed 1000" in capsys.readouterr().out


def test_a_tree_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        train.main(["--env", "hopper-medium", "--tree-budget", "2"])
    assert "--tree-budget: must be at most 1, not 2.0" in capsys.readouterr().err
