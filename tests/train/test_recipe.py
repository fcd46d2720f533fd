"""What a run keeps from training and measures on it, what it fits beside its policy, and what it says of its data."""

import copy
import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from small_run import quick, records, scores

from aaren_rl import load_policy
from aaren_rl.agents import ReturnEstimate
from aaren_rl.agents.model.decision import MAX_EXPECTILE
from aaren_rl.compare.measure import Evaluation, gather
from aaren_rl.envs import DataError, Episodes, get_task, load_episodes
from aaren_rl.envs.data.draws import best_of
from aaren_rl.envs.data.episodes import held_out
from aaren_rl.envs.data.files import read_file
from aaren_rl.envs.local.behavior import mode_returns
from aaren_rl.evaluate import main as evaluate
from aaren_rl.evaluate.scores import Score
from aaren_rl.policies.folder import amend_card, read_card
from aaren_rl.policies.held_out import all_episodes
from aaren_rl.train import run as run_module
from aaren_rl.train.data import StepData
from aaren_rl.train.run import return_bounds
from aaren_rl.train.trainer import fit_return


@pytest.fixture(scope="module")
def trained(tmp_path_factory, hopper_file) -> Path:
    """A run of 6 updates that asks for the maximum achievable return."""
    return quick(tmp_path_factory.mktemp("runs"), hopper_file, "--target-return auto")


def test_every_evaluation_measures_imitation(trained, hopper_file, tmp_path, capsys):
    errors = {line["update"]: line for line in records(trained) if "val/action_mse" in line}
    assert set(errors) == {3, 6}
    card = read_card(trained)
    assert card.held_out == 0.05 and card.action_error == errors[6]["val/action_mse"]
    assert card.action_error_floor is None  # a file's behavior is not known
    # The mean over held-out steps of uniform actions' error: at least their variance, by about the prediction's square.
    assert 0.25 < card.action_error < 0.6
    own = scores(trained, "--episodes 1 --held-out", tmp_path / "x.json")[0]["action_error"]
    weights = np.array(own["weights"])  # drawn by return
    assert weights @ own["sums"] / (weights @ own["lengths"]) == pytest.approx(card.action_error, rel=1e-6)
    assert "held-out action MSE: 0." in capsys.readouterr().out
    alone = shutil.copytree(trained, tmp_path / "run")
    amend_card(alone / "policy", env_id="")  # as of a run that plays nothing
    assert scores(alone, "--held-out", tmp_path / "alone.json")[0]["action_error"] == own


def test_other_data_than_a_run_was_trained_on_hold_nothing_out(trained, hopper_file, tmp_path, capsys):
    """Made again, a set may have other episodes, and the run may have seen those that would be held out of it."""
    other, copied = shutil.copy(hopper_file, tmp_path / "other.hdf5"), shutil.copytree(trained, tmp_path / "run")
    with h5py.File(other, "a") as file:
        file["rewards"][0] += 1.0
    settings = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(settings.replace(str(hopper_file), str(other)))
    assert evaluate([str(copied), "--episodes", "1", "--held-out"]) == 3
    said = capsys.readouterr().err
    assert "differs from the training data (mean return " in said
    how = Evaluation(1, 1000, sweep_episodes=1, target_returns=None)
    with pytest.raises(DataError, match="differs from the training data"):
        gather(copied, how)
    assert gather(trained, how).last.action_error is not None


def test_the_best_episodes_alone_none_held_out_and_a_target_above_them(hopper_file, tmp_path, capsys):
    episodes = read_file(hopper_file)
    best = best_of(episodes.returns, 0.1)
    assert sorted(episodes.returns[best]) == sorted(episodes.returns)[-round(0.1 * len(episodes)) :]
    assert len(best_of(episodes.returns, 1e-9)) == 1
    target = episodes.returns.max() + 1
    drawn = "--updates 1 --draws best --draw-share 0.1 --held-out 0"
    run = quick(tmp_path, hopper_file, f"{drawn} --target-return {target}")
    said = capsys.readouterr()
    assert f"the best drawn alike: {len(best)} of {len(episodes)} episodes effective" in said.out
    assert "is above the best in the training data" in said.err
    assert read_card(run).action_error is None
    assert evaluate([str(run), "--episodes", "1", "--held-out", "--target-return", "1"]) == 2
    said = capsys.readouterr()
    assert "has no held-out episodes" in said.err and "is above" not in said.err


def test_behavior_cloning_does_not_see_what_is_asked(hopper_file, tmp_path):
    run = quick(tmp_path, hopper_file, "--updates 1", agent="bc")
    (low,), (high,) = (scores(run, f"--episodes 2 --target-return {g}", tmp_path / "x.json") for g in (1, 3000))
    assert low["returns"] == high["returns"]


# By hand, from tau E[(G - v)+] = (1 - tau) E[(v - G)+]: v = 10 + 10 * 0.995; 100 + 200 * 0.0995 / (0.0995 + 0.0045).
@pytest.mark.parametrize(("expectile", "values"), [(MAX_EXPECTILE, [19.95, 291.3]), (0.5, [15.0, 120.0])])
@pytest.mark.slow
def test_an_estimate_is_of_what_followed(expectile, values):
    """Two places; from the one 10 or 20 follow, as often, from the other 100 or, one time in ten, 300."""
    rng = np.random.default_rng(0)
    place = rng.integers(2, size=2000)
    reward = np.where(place == 0, rng.choice([10.0, 20.0], 2000), rng.choice([100.0, 300.0], 2000, p=[0.9, 0.1]))
    columns = place[:, None].astype(np.float32), np.zeros((2000, 1), np.float32), reward.astype(np.float32)
    data = StepData(Episodes(*columns, np.arange(2001), np.ones(2000, bool)), return_scale=100.0)
    torch.manual_seed(0)
    model = ReturnEstimate(1)
    again, once = copy.deepcopy(model), copy.deepcopy(model)
    fit_return(model, data, expectile, seed=0)
    places = (torch.tensor([[0.0], [1.0]]) - data.observation_mean) / data.observation_std
    np.testing.assert_allclose(model(places) * 100, values, rtol=0.05)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    for other in (again, once):
        fit_return(other, data, expectile, seed=0, updates=50)
    assert torch.equal(once(places), again(places)) and not torch.equal(once(places), model(places))


def test_a_run_that_asks_for_the_best(trained, tmp_path, capsys):
    card = read_card(trained)
    assert load_policy(trained).target_return == card.target_return == "auto" and card.model["max_return_estimate"]
    (score,) = scores(trained, "--episodes 2", tmp_path / "scores.json")
    assert "\n    auto " in capsys.readouterr().out and score["target_return"] == "auto"
    best, number = scores(trained, "--target-return auto 500 --episodes 2", tmp_path / "scores.json")
    assert best["returns"] == score["returns"] and number["target_return"] == 500.0


def test_a_policy_without_an_estimate_is_otherwise_the_same(hopper_file, tmp_path):
    """But for dropout, whose random numbers come after those of the weights."""
    runs = (quick(tmp_path / more, hopper_file, f"--dropout 0 {more}") for more in ("", "--no-max-return-estimate"))
    own, other = (load_policy(path).model.state_dict() for path in runs)
    assert all(torch.equal(own[name], tensor) for name, tensor in other.items())
    assert {name.split(".")[0] for name in own.keys() - other.keys()} == {"max_return_estimate"}


@pytest.mark.slow
def test_what_a_local_set_returns(tmp_path, monkeypatch, capsys):
    """Later evaluations score lower here, so that policy_best is the first one's."""
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    score_policy = run_module.score_policy

    def worse(policy: Any, card: Any, plan: Any) -> list[Score]:
        found = score_policy(policy, card, plan)
        return [dataclasses.replace(score, normalized_score_mean=-float(card.updates)) for score in found]

    monkeypatch.setattr(run_module, "score_policy", worse)
    run = quick(tmp_path, "auto", "--local-steps 3000 --draws best --draw-share 0.5")
    returns = np.sort(load_episodes("hopper-medium", "local", local_steps=3000).returns)
    mode = mode_returns(get_task("hopper-medium"))
    card, best = read_card(run), read_card(run / "policy_best")
    assert mode is not None and card.data_returns == {
        "mean": pytest.approx(returns.mean()),
        "best": pytest.approx(returns[-1]),
        "best_tenth": pytest.approx(returns[-max(1, round(0.1 * len(returns))) :].mean()),
        "mode": pytest.approx(mode.mean()),
    }
    assert (best.updates, best.data_returns) == (3, card.data_returns)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "deterministic behavior policy" in line]
    assert line.startswith(f"data: mean {returns.mean():.0f} (")
    shutil.rmtree(run / "policy_best")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    (tmp_path / "hopper_medium-v2.hdf5").touch()  # "auto" would be this file now
    quick(tmp_path, "auto", "--local-steps 3000 --draws best --draw-share 0.5 --resume --updates 9")
    assert len(all_episodes(run / "policy.onnx", card)) == len(returns)  # an exported policy in the run's folder
    assert read_card(run / "policy_best").updates == 6  # made again from the checkpoint; update 9 scores lower


def test_range_that_a_model_is_fed(hopper_file, trained):
    """From the minimum to the 99 % quantile of every interval."""
    episodes = read_file(hopper_file)
    found, to_go, times = return_bounds(episodes), episodes.returns_to_go(), episodes.timesteps()
    for k, (low, high) in enumerate(zip(found.low, found.high, strict=True)):
        there = np.sort(to_go[times // found.every == k].astype(np.float64))
        rank = 0.99 * (len(there) - 1)
        assert low == there[0] and there[math.floor(rank)] <= high <= there[math.ceil(rank)]
    assert found.every == math.ceil(episodes.lengths.max() / 50) > 1
    fed = load_policy(trained).return_range  # of the run's own episodes, without those that it holds out
    kept = return_bounds(episodes.take(np.setdiff1d(np.arange(len(episodes)), held_out(len(episodes), 0.05, 0))))
    assert fed is not None and fed.every == kept.every and fed.bounds.T.tolist() == [kept.low, kept.high]
