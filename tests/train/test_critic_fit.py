"""The fit of a critic, and runs with one: what it learns, what is logged and saved, and what stays the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from run_differences import differences
from small_run import arguments, folder, quick, records, train_before

from aaren_rl import load_policy
from aaren_rl.agents import Critic
from aaren_rl.base.errors import NumericsError
from aaren_rl.compare.command import main as compare
from aaren_rl.compare.measure import Evaluation, gather
from aaren_rl.envs import Episodes
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.policies.folder import read_card
from aaren_rl.train import fit as module
from aaren_rl.train.command import main as train
from aaren_rl.train.data.batches import StepData
from aaren_rl.train.fit import discounted_returns, fit_critic, set_deviation, whole_steps
from aaren_rl.train.trainer import Trainer

WANTED = np.array([0.4, -0.6])  # the best action in the data's units, of bounds -2 and 2


def planted(steps: int = 4000, seed: int = 0, length: int = 1) -> Episodes:
    """Episodes whose reward is minus the squared distance of an action from the best one, which the state moves."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(5.0, 3.0, (steps, 3)).astype(np.float32)
    actions = rng.uniform(-2, 2, (steps, 2)).astype(np.float32)
    rewards = -np.square(actions - best(observations)).sum(1).astype(np.float32)
    offsets = np.arange(0, steps + 1, length)
    return Episodes(observations, actions, rewards, offsets, np.ones(len(offsets) - 1, bool))


def best(observations: np.ndarray) -> np.ndarray:
    return WANTED + 0.2 * np.tanh(observations[:, :1] - 5)


def data_of(episodes: Episodes) -> StepData:
    return StepData(episodes, 1.0, action_low=-2.0, action_high=2.0)


def test_a_planted_best_action_is_found() -> None:
    """What is chosen is nearer to it than the policy's action, or that itself where it is near enough."""
    episodes = planted()
    data, critic = data_of(episodes), Critic(3, 2)
    fit = fit_critic(critic, data, episodes, planted(500, seed=1), seed=0, updates=1500)
    assert fit is not None and 0.95 < fit < 1
    set_deviation([critic], 0.04)
    other = planted(300, seed=2)
    seen = (torch.from_numpy(other.observations) - data.observation_mean) / data.observation_std
    own = data.scaling.unit_actions(torch.from_numpy(other.actions))
    chosen = critic.choose(seen, own)
    before, after = (np.square(2 * x.numpy() - best(other.observations)).sum(1) for x in (own, chosen))
    assert (after <= before + 0.01).mean() > 0.97 and after.mean() < 0.85 * before.mean()
    assert ((after < before) | (chosen == own).all(1).numpy()).mean() > 0.97


def test_returns_are_discounted_within_their_episodes() -> None:
    episodes = planted(60, length=20)
    expected = np.zeros(60)
    for t in reversed(range(60)):
        expected[t] = episodes.rewards[t] + (0.9 * expected[t + 1] if (t + 1) % 20 else 0)
    np.testing.assert_allclose(discounted_returns(episodes, 0.9), expected, rtol=1e-12)


def test_the_end_of_episodes_that_a_time_limit_ended_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "CUT", 5)
    episodes = planted(60, length=20)
    episodes = dataclasses.replace(episodes, terminated=np.array([True, False, False]))
    assert whole_steps(episodes).tolist() == [*range(20), *range(20, 35), *range(40, 55)]
    data, critics = data_of(episodes), [Critic(3, 2) for _ in range(3)]
    fit_critic(critics[0], data, episodes, None, seed=0, updates=3)
    assert capsys.readouterr().out == ""
    changed = dataclasses.replace(episodes, observations=episodes.observations.copy())
    for step in (*range(35, 40), *range(55, 60)):  # as a step that is left out, whose return is what it was
        changed.observations[step] = 1e6
    other = data_of(changed)
    other.normalize_by(data.observation_mean, data.observation_std)
    fit_critic(critics[1], other, changed, None, seed=0, updates=3)
    assert_same(critics[0], critics[1])
    monkeypatch.setattr(module, "CUT", 20)
    short = dataclasses.replace(episodes, terminated=np.zeros(3, bool))
    fit_critic(critics[2], data, short, None, seed=0, updates=3)
    assert capsys.readouterr().out.startswith("critic: a time limit ended all episodes within 20 steps")


def assert_same(one: Critic, other: Critic) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_the_seed_decides_and_nothing_else() -> None:
    episodes = planted(200)
    critics = [Critic(3, 2) for _ in range(3)]
    for critic, seed in zip(critics, (0, 0, 1), strict=True):
        torch.rand(5)  # whatever was drawn before
        fit_critic(critic, data_of(episodes), episodes, None, seed=seed, updates=5)
    assert_same(critics[0], critics[1])
    assert (critics[0].weights[0] - critics[2].weights[0]).abs().max() > 1  # other initial weights, not only batches
    assert not any(parameter.requires_grad for parameter in critics[0].parameters())


def test_a_fit_that_is_not_finite_says_what_to_turn_off() -> None:
    episodes = planted(200)
    data = data_of(episodes)
    data.normalize_by(data.observation_mean, torch.zeros(3))
    with pytest.raises(NumericsError, match="--no-critic"):
        fit_critic(Critic(3, 2), data, episodes, None, seed=0, updates=2)


def test_equal_returns_have_no_r2() -> None:
    episodes = dataclasses.replace(planted(200), rewards=np.ones(200, np.float32))
    critic = Critic(3, 2)
    assert fit_critic(critic, data_of(episodes), episodes, episodes, seed=0, updates=200) is None


def test_the_deviation_is_the_root_of_the_error_up_to_a_limit() -> None:
    one, other = Critic(3, 2), Critic(3, 2)
    set_deviation([one, other], [0.01, 4.0])
    assert one.deviation.tolist() == other.deviation.tolist() == pytest.approx([0.1, 0.25])
    set_deviation([one], 0.04)
    assert one.deviation.tolist() == pytest.approx([0.2, 0.2])


@pytest.fixture(scope="module")
def with_critic(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick(tmp_path_factory.mktemp("critic"), hopper_file, "--critic --updates 60 --eval-every 60")


def test_the_policy_is_the_one_without_and_the_card_and_the_log_say_what_the_critic_adds(
    with_critic: Path, hopper_file: Path, tmp_path: Path
) -> None:
    plain = quick(tmp_path, hopper_file, "--updates 60 --eval-every 60")
    policy, other = load_policy(with_critic), load_policy(plain)
    own = policy.model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in other.model.state_dict().items())
    (line,), (before,) = ([line for line in records(run) if "eval/mean_return" in line] for run in (with_critic, plain))
    for tag in ("eval/normalized_score", "eval/mean_return"):
        assert line[f"{tag}_without_candidates"] == before[tag] != line[tag]
        assert f"{tag}_without_candidates" not in before
    card = read_card(with_critic)
    assert line["critic/r2"] == card.critic_r2 and 0 < card.critic_r2 < 1
    assert read_card(plain).critic_r2 is None and "critic/r2" not in before
    raw = load_policy(with_critic, weights="raw").model.state_dict()
    assert all(torch.equal(own[name], raw[name]) for name in own if name.startswith("critic."))  # EMA and raw weights
    assert card.model["critic"] is True and read_card(plain).model["critic"] is False


def test_the_deviation_of_a_run_is_its_held_out_error_by_dimension(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_DEVIATION", 10.0)  # errors of random actions are large
    run = quick(tmp_path / "held", hopper_file, "--critic")
    out = tmp_path / "scores.json"
    assert evaluate([str(run), "--episodes", "1", "--held-out", "--json", str(out)]) == 0
    error = json.loads(out.read_text())[0]["action_error"]
    total = sum(error["sums"]) / sum(error["lengths"])
    assert len(error["by_dimension"]) == 3 and np.mean(error["by_dimension"]) == pytest.approx(total)
    deviation = load_policy(run).model.critic.deviation
    assert deviation.tolist() == pytest.approx(np.sqrt(error["by_dimension"]), rel=1e-6)
    assert torch.equal(load_policy(run, weights="raw").model.critic.deviation, deviation)
    without = quick(tmp_path / "none", hopper_file, "--critic --held-out 0")
    losses = load_policy(without).model.critic.deviation
    assert losses.tolist() == [losses[0]] * 3 and 0.2 < losses[0] < 2
    assert read_card(without).critic_r2 is None


def scores(run: Path, options: str, file: Path) -> list[dict[str, Any]]:
    assert evaluate([str(run), *options.split(), "--episodes", "2", "--json", str(file)]) == 0
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def test_evaluate_says_whether_it_chose_and_turns_it_off(
    with_critic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, sentence = tmp_path / "scores.json", "; chose among 16 candidate actions by its critic\n"
    (best,) = scores(with_critic, "", file)
    assert sentence in capsys.readouterr().out and best["candidates"] == 16
    (off,) = scores(with_critic, "--candidates 1", file)
    target = read_card(with_critic).target_return
    (number,) = scores(with_critic, f"--target-return {target}", file)
    assert "candidate" not in capsys.readouterr().out
    assert off["candidates"] == number["candidates"] == 1
    assert off["returns"] == number["returns"] != best["returns"]
    (on,) = scores(with_critic, f"--target-return {target} --candidates 16", file)
    assert on["returns"] == best["returns"] and on["candidates"] == 16
    auto, number = scores(with_critic, f"--target-return auto {target} --csv {tmp_path / 'episodes.csv'}", file)
    assert [auto["candidates"], number["candidates"]] == [16, 1] and number["returns"] == off["returns"]
    assert "by its critic for the target auto\n" in capsys.readouterr().out
    rows = (tmp_path / "episodes.csv").read_text().splitlines()
    assert [row.split(",")[-1] for row in rows] == ["candidates", "16", "16", "1", "1"]
    assert evaluate([str(with_critic), "--candidates", "8"]) == 2
    assert "--candidates 8: its critic chooses among 16; give 1 or 16" in capsys.readouterr().err


def test_a_policy_without_a_critic_has_one_candidate(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(trained_run), "--episodes", "1", "--candidates", "1"]) == 0
    assert "candidate" not in capsys.readouterr().out
    assert evaluate([str(trained_run), "--candidates", "16"]) == 2
    assert "--candidates 16: this policy has no critic; give 1" in capsys.readouterr().err


def test_a_card_that_does_not_name_the_critic_is_read(trained_run: Path) -> None:
    card = read_card(trained_run)
    assert load_policy(trained_run).candidates == 1 and card.model.pop("critic") is False


class KilledError(BaseException):
    """Goes through everything, as a kill does."""


def test_a_killed_run_with_a_critic_ends_as_if_it_had_not_been(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = (arguments(hopper_file, tmp_path / name, "--critic") for name in ("whole", "cut"))
    assert train(whole) == 0
    step = Trainer.step

    def killed(self: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
        if self.update == 13:
            raise KilledError
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Trainer, "step", killed)
        train(cut)
    torch.manual_seed(1234)  # whatever the process has drawn before
    assert train([*cut, "--resume"]) == 0
    assert differences(folder(tmp_path / "whole"), folder(tmp_path / "cut")) == []
    assert read_card(folder(tmp_path / "cut")).critic_r2 is not None


def test_a_run_that_is_extended_says_that_its_critic_was_fitted_for_a_short_one(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, notes in (("--critic", 1), ("", 0)):
        quick(tmp_path / options, hopper_file, options)
        quick(tmp_path / options, hopper_file, f"{options} --updates 9 --resume")
        note = "note: the critic of this run was fitted for 18 steps, not 4,500; a new run of 1,500 updates fits"
        assert capsys.readouterr().err.count(note) == notes


def test_discrete_actions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cart.hdf5"
    with h5py.File(file, "w") as data:
        data["observations"] = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
        data["actions"] = np.arange(80) % 2
        data["rewards"] = np.ones(80, np.float32)
        data["terminals"] = np.arange(80) % 4 == 3
    asked = ["--env", "mine", "--env-id", "CartPole-v1", "--source", str(file), "--out", str(tmp_path), "--critic"]
    assert train(asked) == 2
    assert "--critic: needs continuous actions, and those of mine are discrete" in capsys.readouterr().err


def test_tasks_that_must_be_remembered_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["--env", "tmaze", "--out", str(tmp_path), "--critic", "--threads", "1"]) == 2
    assert "--critic: sees the current observation alone, and those of tmaze leave out" in capsys.readouterr().err


def test_a_comparison_scores_with_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = "--env hopper-medium --agents bc --seeds 1 --episodes 2 --updates 20 --jobs 1 --source local".split()
    shown = []
    for candidates in ([], ["--candidates", "1"]):
        small = "--local-steps 2000 --width 16 --layers 1 --heads 2 --warmup-updates 5 --eval-every 20 --critic".split()
        line = [*base, *candidates, "--out", str(tmp_path), "--", *small]
        if not shown:
            train_before(line)
        assert compare(line) == 0
        kept = json.loads((tmp_path / "runs/hopper-medium/bc/seed0/comparison.json").read_text())
        shown.append(kept["cell"]["last"]["candidates"])
    assert shown == [16, 1]


def test_a_comparison_has_the_score_with_and_without_the_choice(with_critic: Path, tmp_path: Path) -> None:
    (off,), (on,) = (scores(with_critic, options, tmp_path / "scores.json") for options in ("--candidates 1", ""))
    how = Evaluation(episodes=2, seed=1000, sweep_episodes=1, target_returns=(100.0,))
    cell = gather(with_critic, how)
    assert (cell.last.returns, cell.unchosen.returns) == (on["returns"], off["returns"])
    plain = gather(with_critic, dataclasses.replace(how, candidates=1))
    assert plain.last.returns == off["returns"] and plain.unchosen is None
