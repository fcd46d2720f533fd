"""What a run keeps from training and measures on it, Muon in a run, and the baselines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from aaren_rl import load_policy
from aaren_rl.agents import DecisionModel, ModelConfig
from aaren_rl.compare.measure import Evaluation, gather
from aaren_rl.envs import DataError
from aaren_rl.envs.data.episodes import held_out, split
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.evaluate.held_out import hold_out
from aaren_rl.policies.folder import read_card
from aaren_rl.train.command import main as train
from aaren_rl.train.optimizers import Optimizers
from aaren_rl.train.settings import build_config, make_config

SMALL = "--env hopper-medium --width 16 --layers 1 --heads 2 --warmup-updates 1 --steps-per-update 160 --threads 1"
SCORED = "--eval-every 3 --eval-episodes 1 --final-episodes 1"


def run(out: Path, hopper_file: Path, options: str, agent: str = "decision-aaren") -> Path:
    asked = f"{SMALL} {SCORED} --agent {agent} --source {hopper_file} --out {out} {options}"
    assert train(asked.split()) == 0
    return out / "hopper-medium" / agent / "seed0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, hopper_file: Path) -> Path:
    return run(tmp_path_factory.mktemp("runs"), hopper_file, "--updates 6")


def test_every_evaluation_measures_imitation(trained: Path, hopper_file: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    errors = {line["update"]: line for line in lines if "eval/action_error" in line}
    assert set(errors) == {3, 6} and all("eval_raw/action_error" in line for line in errors.values())
    card = read_card(trained)
    assert card.held_out == 0.05 and card.action_error == errors[6]["eval/action_error"]
    assert card.action_error_floor is None  # a file's behaviour is not known
    # The mean over held-out steps of uniform actions' error: at least their variance, by about the prediction's square.
    assert 0.25 < card.action_error < 0.6


def test_held_out_episodes_are_not_trained_on(hopper_file: Path) -> None:
    episodes = read_hdf5(hopper_file)
    training, kept = hold_out(episodes, 0.2, seed=3)
    assert kept is not None and kept.floor is None
    assert len(training) + len(kept.episodes) == len(episodes)
    chosen = held_out(len(episodes), 0.2, 3)
    np.testing.assert_array_equal(kept.episodes.returns, episodes.returns[chosen])
    assert hold_out(episodes, 0.0, 3) == (episodes, None)
    assert split(episodes, 0.2, 4)[1].returns.tolist() != kept.episodes.returns.tolist()


def test_evaluate_gives_the_runs_own_error(
    trained: Path, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    assert evaluate([str(trained), "--episodes", "1", "--held-out", "--json", str(file)]) == 0
    error = json.loads(file.read_text())[0]["action_error"]
    assert sum(error["sums"]) / sum(error["lengths"]) == pytest.approx(read_card(trained).action_error, rel=1e-6)
    assert "held-out action error: 0." in capsys.readouterr().out
    assert evaluate([str(trained), "--episodes", "1", "--held-out", str(hopper_file), "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())[0]["action_error"]["sums"]) > 40  # all of them


def test_other_data_than_a_run_was_trained_on_hold_nothing_out(
    trained: Path, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made anew, a set may have other episodes, and the run may have seen those that would be held out of it."""
    other, copy = tmp_path / "other.hdf5", tmp_path / "run"
    shutil.copy(hopper_file, other)
    with h5py.File(other, "a") as file:
        file["rewards"][0] += 1.0
    shutil.copytree(trained, copy)
    settings = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(settings.replace(str(hopper_file), str(other)))
    assert evaluate([str(copy), "--episodes", "1", "--held-out"]) == 3
    said = capsys.readouterr().err
    assert "is not what it was trained on (mean return " in said and "--held-out FILE.hdf5" in said
    how = Evaluation(1, 1000, sweep_episodes=1, target_returns=None)
    with pytest.raises(DataError, match="is not what it was trained on"):
        gather(copy, how)
    assert gather(trained, how).last.action_error is not None


def test_without_held_out_episodes_there_is_no_error(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path, hopper_file, "--updates 3 --held-out 0")
    assert read_card(folder).action_error is None
    assert evaluate([str(folder), "--episodes", "1", "--held-out"]) == 2
    assert "kept no episodes" in capsys.readouterr().err


def test_behaviour_cloning_does_not_see_what_is_asked(hopper_file: Path, tmp_path: Path) -> None:
    folder = run(tmp_path, hopper_file, "--updates 3", agent="bc")
    policy = load_policy(folder)
    observations = np.random.default_rng(0).standard_normal((5, 1, 11)).astype(np.float32)
    played = []
    for asked in (100.0, 3000.0):
        state = policy.initial_state(1, asked)
        for observation in observations:
            action, state = policy.act(observation, np.ones(1), state)
            played.append(action)
    assert np.array_equal(np.stack(played[:5]), np.stack(played[5:]))


def test_the_best_episodes_alone(hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = read_hdf5(hopper_file)
    best = episodes.best(0.1)
    assert len(best) == round(0.1 * len(episodes))
    assert sorted(best.returns) == sorted(episodes.returns)[-len(best) :]
    assert episodes.best(1.0) is episodes and len(episodes.best(1e-9)) == 1
    run(tmp_path, hopper_file, "--updates 3 --best-fraction 0.1 --held-out 0")
    assert f"on {len(best)} episodes, {best.n_steps:,} steps" in capsys.readouterr().out


def test_who_steps_what() -> None:
    model = DecisionModel(ModelConfig(5, 2, width=8, layers=2, heads=2))
    config = build_config({"optimizer": "muon", "warmup_updates": 0}).optimizer
    optimizers = Optimizers(model, config, torch.float32)
    assert optimizers.muon is not None
    shapes = [p.shape for p in optimizers.muon.param_groups[0]["params"]]
    assert len(shapes) == 2 * 6 and all(len(shape) == 2 for shape in shapes)
    every = {id(p) for opt in (optimizers.muon, optimizers.adamw) for g in opt.param_groups for p in g["params"]}
    assert every == {id(p) for p in model.parameters()}
    with pytest.raises(KeyError):  # AdamW's alone, of a run that was trained so
        optimizers.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())


def test_a_small_table_of_time_steps() -> None:
    torch.manual_seed(0)
    small = DecisionModel(ModelConfig(5, 2, width=32)).embed_timestep.weight.detach()
    torch.manual_seed(0)
    large = DecisionModel(ModelConfig(5, 2, width=32, timestep_std=1.0)).embed_timestep.weight.detach()
    torch.testing.assert_close(small, 0.02 * large)
    assert 0.9 < float(large.std()) < 1.1
    preset = make_config({}, "paper")
    assert (preset.network.timestep_std, preset.optimizer.optimizer, preset.data.held_out) == (1.0, "adamw", 0.0)
