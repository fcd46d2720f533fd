"""Discrete actions through the commands and adapters: training, scores, the held-out measure, ONNX, vectors, SB3."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import fails
from policies import CARTPOLE, make_discrete, make_discrete_card, save_discrete_run, save_run
from small_run import SMALL, scores, typed

from aaren_rl import load_policy
from aaren_rl.envs import Episodes, make_env, rollout
from aaren_rl.envs.data.episodes import join
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.envs.simulation import play_episode
from aaren_rl.evaluate import main as evaluate
from aaren_rl.evaluate.play import EpisodePlan, action_error, score_policy
from aaren_rl.export import export as exporting
from aaren_rl.export.export import main as export
from aaren_rl.policies.folder import make_policy as policy_of
from aaren_rl.policies.held_out import HeldOut
from aaren_rl.train.config import RunConfig, make_config
from aaren_rl.train.config import main as train
from aaren_rl.train.data import StepData
from aaren_rl.train.trainer import Trainer, action_loss

TARGET = 100.0


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    """Data of a behavior that mostly pushes against the pole's fall."""
    rng = np.random.default_rng(0)

    def push(seen: np.ndarray) -> int:
        good = int(seen[2] + 0.5 * seen[3] > 0)
        return good if rng.random() < 0.8 else 1 - good

    with make_env(CARTPOLE) as env:
        return join([play_episode(env, push, number, 500) for number in range(60)], env_id=CARTPOLE)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return save_discrete_run(tmp_path_factory.mktemp("runs") / "seed0")


@pytest.fixture(scope="module")
def file(run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "STEPS", 50)
        assert export([str(run), "--out", str(path)]) == 0
    return path


def test_the_loss_is_the_cross_entropy_over_real_steps():
    rng = np.random.default_rng(0)
    logits, actions = 3 * rng.normal(size=(2, 5, 3)), rng.integers(0, 3, (2, 5))
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = -np.log(np.take_along_axis(chances, actions[..., None], -1))[mask].mean()
    one_hot = torch.from_numpy(np.eye(3, dtype=np.float32)[actions])
    found = action_loss(torch.from_numpy(logits), one_hot, torch.from_numpy(mask), discrete=True)
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_training_learns_what_the_behavior_does(episodes):
    """Its noise leaves an entropy of 0.5 nats; batches hold one-hot vectors of the data's integers."""
    shifted = dataclasses.replace(episodes, actions=episodes.actions - 3)
    settings = {"env": "hopper-medium", "context": "mixed", "updates": 60, "width": 16, "layers": 1, "heads": 2}
    config: RunConfig = make_config({**settings, "warmup_updates": 5, "steps_per_update": 320, "return_scale": 100.0})
    data = StepData(shifted, 100.0, n_actions=2, action_start=-3)
    index = torch.arange(7)
    np.testing.assert_array_equal(data.scaled_actions(index).argmax(1) - 3, shifted.actions[:7])
    assert (data.scaled_actions(index).sum(1) == 1).all()
    trainer = Trainer(config, data, 2, 500)
    losses = [float(trainer.step()[0]) for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.6 and abs(losses[0] - np.log(2)) < 0.05  # at first by chance
    card = make_discrete_card(trainer.model, action_start=-3)
    statistics = {name: getattr(data, name).tolist() for name in ("observation_mean", "observation_std")}
    policy = policy_of(trainer.model, dataclasses.replace(card, **statistics))
    error = action_error(policy, HeldOut(shifted))
    assert error.accuracy > 0.7 and error.mean < 0.6


@pytest.mark.parametrize("rollout", ["recurrent", "window"])
def test_the_held_out_measure_is_the_models_on_whole_episodes(rollout, episodes):
    policy, some = make_discrete(rollout=rollout), episodes.take([3, 0, 7])
    policy = dataclasses.replace(policy, context_length=500)
    found = action_error(policy, HeldOut(some))
    sums, correct = [], []
    for episode in some:
        seen = (torch.from_numpy(episode.observations) - policy.observation_mean) / policy.observation_std
        seen = seen.float()
        taken = torch.from_numpy(episode.actions)
        to_go = torch.arange(len(episode), 0, -1).float() / 100
        given = seen, torch.nn.functional.one_hot(taken, 2).float(), to_go, torch.arange(len(episode))
        with torch.no_grad():
            (logits,), _ = policy.model(*(part.unsqueeze(0) for part in given))
        sums.append(float(torch.nn.functional.cross_entropy(logits, taken, reduction="sum")))
        correct.append(int((logits.argmax(1) == taken).sum()))
    np.testing.assert_allclose(found.sums, sums, rtol=1e-4)
    assert found.correct == correct and found.accuracy == sum(correct) / some.n_steps
    assert set(found.scalars()) == {"val/nll", "val/accuracy"} and "one action" in found.without_looking
    assert found.measure == "negative log-likelihood" and "accuracy 0." in str(found) and "accuracy 0." in found.short()


@pytest.mark.slow
def test_scores_of_a_run_and_of_its_file(run, file, tmp_path, capsys):
    played = []
    for path, more in ((run, ""), (run, " --temperature 2"), (file, " --temperature 2")):
        played += scores(path, f"--episodes 3{more}", tmp_path / "scores.json")
    assert played[0]["returns"] != played[1]["returns"] == played[2]["returns"]
    assert [score["temperature"] for score in played] == [None, 2.0, 2.0]
    assert "temperature 2" in capsys.readouterr().out


def test_a_sampled_episode_does_not_depend_on_how_many_are_played(run):
    policy = load_policy(run, temperature=1.5)
    together = rollout(policy, CARTPOLE, episodes=40, target_return=TARGET, seed=5, workers=0).returns
    alone = rollout(policy, CARTPOLE, episodes=3, target_return=TARGET, seed=12, workers=0).returns
    assert together[7:10].tolist() == alone.tolist()
    (score,) = score_policy(policy, policy.card, EpisodePlan("ema", 3, [TARGET], 12))
    assert score.returns == alone.tolist() and "temperature 1.5" in score.acting()


def test_a_temperature_for_continuous_actions(tmp_path, capsys):
    words = [str(save_run(tmp_path / "seed0")), "--temperature", "1"]
    assert "--temperature: needs discrete actions" in fails(capsys, evaluate, words, 2)


BAD_CARDS = {
    "no actions": {"n_actions": 0},
    "of another model": {"n_actions": 3},
    "continuous": {"n_actions": None, "action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]},
    "endless": {"n_actions": 2**40, "action_start": 2**40},
    "another environment's": {"env_id": "Acrobot-v1"},
    "a continuous environment's": {"env_id": "Pendulum-v1"},
    "another start": {"action_start": 1},
}


@pytest.mark.parametrize("changes", BAD_CARDS.values(), ids=BAD_CARDS)
def test_a_card_that_does_not_fit(changes, tmp_path, capsys):
    assert fails(capsys, evaluate, [str(save_discrete_run(tmp_path / "seed0", **changes))], 4)


@pytest.mark.parametrize(("task", "start"), [("tmaze", 0), ("tmaze-discrete-10", 1)])
def test_a_built_in_task_of_other_actions_is_not_played(task, start, tmp_path, capsys):
    """Of a number, and of as many actions from another start; of the same ones it is."""
    of_maze = {"observation": 3, "env_id": "aaren_rl/TMazeDiscrete-v0", "horizon": 20}
    other = save_discrete_run(tmp_path / "a", action_start=start, **of_maze)
    line = fails(capsys, evaluate, [str(other), "--env", task], 4)
    assert "3 observations and Discrete(2" in line and "choose another environment" in line
    run = save_discrete_run(tmp_path / "b", **of_maze)
    assert evaluate([str(run), "--env", "tmaze-discrete-10", "--episodes", "1"]) == 0


def test_a_continuous_policy_does_not_play_a_discrete_environment(tmp_path, capsys):
    run = save_run(tmp_path / "seed0", env_id=CARTPOLE)
    assert "choose another environment" in fails(capsys, evaluate, [str(run)], 4)


def test_a_run_from_data_to_scores(episodes, tmp_path, capsys):
    """Every line and file names the measure; a resumed run goes on; another start is another action."""
    data = tmp_path / "cartpole.hdf5"
    write_hdf5(data, episodes, {})
    own = ["--env-id", CARTPOLE, "--env", "cartpole", "--source", str(data), "--out", str(tmp_path)]
    small = typed({**SMALL, "updates": 4, "eval_every": 2, "return_scale": 100})
    assert train([*own, *small]) == 0
    out = capsys.readouterr().out
    assert "held-out negative log-likelihood: " in out and "MSE" not in out
    folder = tmp_path / "cartpole" / "decision-aaren" / "seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "val/nll" in line]
    assert [line["update"] for line in measured] == [2, 4] and 0 < measured[-1]["val/accuracy"] <= 1
    assert not any("mse" in name for line in lines for name in line)
    card = load_policy(folder).card
    assert (card.n_actions, card.action_start, card.action_low, card.action_error) == (2, 0, [], None)
    assert card.action_nll == measured[-1]["val/nll"]
    assert train([*own, *small, "--updates=6", "--resume"]) == 0
    assert evaluate([str(folder), "--episodes", "1", "--held-out"]) == 0
    assert "held-out negative log-likelihood: " in capsys.readouterr().out
    assert evaluate([str(folder), "--episodes", "1", "--held-out", "--temperature", "1"]) == 0
