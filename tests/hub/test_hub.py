"""Policies in the Hugging Face hub's layout: the same policy comes back, and the card says what it scored and how."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file, save_file

from aaren_rl import load_policy
from aaren_rl.base.errors import CheckpointError, UsageError
from aaren_rl.evaluate import main as evaluate
from aaren_rl.hub import main, model_card, read_scores, save_pretrained
from aaren_rl.policies.folder import read_card


@pytest.fixture(scope="module")
def scores_file(trained_run, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("scores") / "scores.json"
    assert evaluate([str(trained_run), "--episodes", "2", "--eval-seed", "7", "--json", str(file)]) == 0
    return file


@pytest.fixture
def saved(trained_run, scores_file, tmp_path) -> Path:
    return save_pretrained(trained_run, tmp_path / "hopper-aaren", scores=read_scores(scores_file), license="cc0-1.0")


def test_the_same_policy_comes_back(trained_run, saved):
    assert sorted(file.name for file in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    policy, again, rng = load_policy(trained_run), load_policy(saved), np.random.default_rng(0)
    ours, theirs = policy.initial_state(2, 3600.0), again.initial_state(2, 3600.0)
    for _ in range(5):
        observation, reward = rng.normal(size=(2, 11)), rng.normal(size=2)
        expected, ours = policy.act(observation, reward, ours)
        action, theirs = again.act(observation, reward, theirs)
        np.testing.assert_array_equal(action, expected)
    assert load_policy(saved, rollout="staggered", rollout_context=6).rollout == "staggered"
    with pytest.raises(CheckpointError, match="EMA weights only"):
        load_policy(saved, weights="raw")
    data = Path(read_card(trained_run).source_path)  # nothing of this machine is published
    assert read_card(saved).source_path == data.name == "hopper.hdf5"
    assert not any(str(data.parent).encode() in file.read_bytes() for file in saved.iterdir())


def test_the_hub_reads_the_card(saved, scores_file):
    (score,) = json.loads(scores_file.read_text())
    card = ModelCard.load(saved / "README.md")
    assert (card.data.license, card.data.library_name) == ("cc0-1.0", "aaren-rl")
    assert {"reinforcement-learning", "decision-aaren", "Hopper-v4", "hopper-medium"} <= set(card.data.tags)
    assert card.data.model_name == "hopper-aaren" and card.data.pipeline_tag == "reinforcement-learning"
    for said in ("D4RL v2", f"{score['target_return']:g} ", "2 episodes from seed 7", f"{score['length_mean']:.1f}"):
        assert said in card.text
    mean = read_card(saved).data_returns["mean"]
    for said in (f"data: mean {mean:.1f} (", "a file of yours", "5 gradient steps on episode contexts", "gymnasium"):
        assert said in card.text
    quoted = model_card(dataclasses.replace(read_card(saved), source_path="a`<b>`.hdf5"), [], "name", "mit")
    assert "(`a'<b>'.hdf5`)" in quoted
    windowed = dataclasses.replace(read_card(saved), context="window", context_length=20)
    assert "5 gradient steps on windows of 20 steps" in model_card(windowed, [], "name", "mit")
    assert "- Training: elsewhere\n" in model_card(dataclasses.replace(windowed, source="imported"), [], "name", "mit")


def test_a_policy_without_an_environment_is_published(saved):
    text = model_card(dataclasses.replace(read_card(saved), env_id=""), [], "name", "mit")
    assert "- Environment: none\n" in text and "No scores were recorded." in text
    assert "" not in ModelCard(text).data.tags


def test_the_command(trained_run, scores_file, tmp_path, capsys):
    given = tmp_path / "given"
    assert main([str(trained_run), str(given), "--scores", str(scores_file)]) == 0
    assert "hf upload" in capsys.readouterr().out and "Hopper-v4, 2 episodes" in (given / "README.md").read_text()
    assert main([str(trained_run), str(given)]) == 2
    assert f"error: {given}: already exists; " in capsys.readouterr().err


def test_scores_of_another_policy_are_refused(trained_run, scores_file, tmp_path):
    (score,) = json.loads(scores_file.read_text())
    other = tmp_path / "other.json"
    for change in ({"training_seed": 3}, {"env_id": "Hopper-v5"}, {"attention": "tree"}):
        other.write_text(json.dumps([{**score, **change}]))
        with pytest.raises(CheckpointError, match="evaluate this policy"):
            save_pretrained(trained_run, tmp_path / "a", scores=read_scores(other))
    changed = ({"x": 1}, {"return_mean": float("inf")}, {"return_std": "1"})
    for tree in ({"a": 1}, [[1]], *([{**score, **change}] for change in changed)):
        other.write_text(json.dumps(tree))
        with pytest.raises(UsageError, match="not what evaluate --json writes"):
            read_scores(other)
    assert not (tmp_path / "a").exists()


def test_a_missing_weight_is_refused_by_one_line(saved):
    """With the SHA-256 of the right ones, and without."""
    config, file = saved / "config.json", saved / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "head.bias"}, file)
    for message in ("damaged", "head.bias"):
        with pytest.raises(CheckpointError, match=message) as caught:
            load_policy(saved)
        assert "\n" not in str(caught.value) and str(saved) in str(caught.value)
        config.write_text(json.dumps(json.loads(config.read_text()) | {"card_sha256": None, "sha256": {}}))
