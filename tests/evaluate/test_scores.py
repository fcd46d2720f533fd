"""Scores and the held-out error: tables, files and intervals; options of `evaluate` that do not fit."""

import dataclasses
import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from minari_sets import small
from policies import HIGH, LOW, MEAN, SCALE, STD, make_policy, save_run
from small_run import scores
from synthetic import make_score

from aaren_rl.base.errors import CheckpointError
from aaren_rl.envs import normalized_score
from aaren_rl.envs.data.episodes import Episodes
from aaren_rl.evaluate import main as evaluate
from aaren_rl.evaluate import play
from aaren_rl.evaluate.play import action_error
from aaren_rl.evaluate.scores import ActionError, format_table
from aaren_rl.policies.folder import load_policy
from aaren_rl.policies.held_out import HeldOut, hold_out

DATA = {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1336.0}
LINE = "data: mean 1383 (43.1), best tenth 2871 (88.8); deterministic behavior policy 1336 (41.7)"


@pytest.mark.parametrize(
    ("changes", "line"),
    [({"data_returns": DATA}, LINE), ({"data_returns": {"mean": -0.25}, "reference": None}, "data: mean -0.250")],
)
def test_the_table_says_what_the_data_return(changes, line):
    lines = format_table([make_score(**changes)]).splitlines()
    assert lines[-2] == line and lines[-3] == "" and make_score().data() is None


def test_evaluate_needs_no_data_for_them(tmp_path, capsys):
    run = save_run(tmp_path, data_returns=DATA)
    assert scores(run, "--episodes 1", tmp_path / "scores.json")[0]["data_returns"] == DATA
    assert LINE in capsys.readouterr().out
    # Of another environment the data say nothing.
    assert evaluate([str(run), "--episodes", "1", "--env-id", "Hopper-v5"]) == 0
    out = capsys.readouterr().out
    assert "deterministic behavior policy" not in out and "no score: " in out and "(train takes --ref-min-" in out


def test_several_policies(tmp_path, capsys):
    both = [str(save_run(tmp_path / "one")), str(save_run(tmp_path / "other", seed=3, target_return=50.0))]
    files = ["--json", str(tmp_path / "scores.json")]
    assert evaluate([*both, "--episodes", "5", "--eval-seed", "7", *files]) == 0
    found = json.loads((tmp_path / "scores.json").read_text())
    keys = ("policy", "training_seed", "target_return")
    assert [[score[key] for key in keys] for score in found] == [[both[0], 0, 300.0], [both[1], 3, 50.0]]
    for score in found:
        assert score["seed"] == 7 and len(score["returns"]) == len(score["lengths"]) == 5
        assert np.mean(score["lengths"]) == pytest.approx(score["length_mean"])
        normalized = normalized_score("hopper", score["returns"])
        assert np.mean(normalized) == pytest.approx(score["normalized_score_mean"])
        assert np.std(normalized) == pytest.approx(score["normalized_score_std"])
        assert np.std(score["returns"]) == pytest.approx(score["return_std"]) and score["return_std"] > 0
    *_, table, legend = capsys.readouterr().out.rstrip().split("\n\n")
    assert "95% interval" in table and "do not cover other training seeds" in legend
    for run, score in zip(both, found, strict=True):
        (line,) = (line for line in table.splitlines() if line.startswith(run))
        low, high = map(float, line.split("[")[1].split("]")[0].split(", "))
        assert min(score["returns"]) - 0.1 <= low <= round(score["return_mean"], 1) <= high
    assert evaluate([*both, "--video", "x.gif"]) == 2
    assert "--video: takes one policy, not 2" in capsys.readouterr().err
    assert evaluate([both[0], "--json", "x.gif", "--video", "x.gif"]) == 2
    assert evaluate([both[0], "--json", str(tmp_path)]) == 2
    assert evaluate([both[0], "--json", f"{both[0]}/policy/config.json"]) == 2
    assert evaluate([both[0], str(tmp_path / "gone"), "--episodes", "5", "--eval-seed", "7", *files]) == 4
    (only,) = json.loads((tmp_path / "scores.json").read_text())  # of the one that is there
    assert only["returns"] == found[0]["returns"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference_returns": [1.0, 1.0]}, "reference_returns must be two increasing numbers"),
        ({"observation_std": [1.0, 0.0]}, "observation_std.1. must be above 0"),
        ({"action_low": [2.0], "action_high": [1.0]}, "not below action_high"),
        ({"action_low": [1.0]}, "action_low has 1 values, action_high 3"),
        ({"return_scale": 0.0}, "return_scale must be above 0"),
        ({"target_return": 1e300}, r"target_return must be at most 1e\+15"),
        ({"draws": "twice"}, "draws must be one of return, best, uniform, not 'twice'"),
        ({"draw_share": 0.0}, r"draws must be .* their share in \(0, 1\]"),
        ({"data_returns": {"mean": "high"}}, "data_returns"),
        ({"observation_mean": [0.0]}, "observation statistics"),
        ({"model": [1]}, "model"),
        ({"model": {"mixer": "aaren-rsa", "width": 2**40, "heads": 2**40}}, f"the model's width is {2**40}"),
        ({"model": {"mixer": "aaren-rsa", "rem_dilation": 2**40}}, "rem_dilation: must be at most 1,000"),
        ({"model": {"layers": 999}}, "the model has 999 layers, its weights are"),
        ({"rollout": "os.system"}, "rollout 'os.system' is not one of"),
        ({"format": 99}, "not a policy of format"),
        ({"versions": {"torch": "<script>"}}, "versions has '<script>', which is not plain text"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "unknown key auto_map"),
        ({"target_return": "best"}, r"config.json: .*target_return.* 'best'"),
        ({"target_return": None}, r"config.json: .*target_return.* None"),
    ],
)
def test_a_card_that_cannot_be_is_refused_by_one_line(tmp_path, change, message):
    """That of a huge model before it takes memory."""
    file = save_run(tmp_path / "run") / "policy" / "config.json"
    card = json.loads(file.read_text())
    if isinstance(change.get("model"), dict):
        change = {"model": card["model"] | change["model"]}
    file.write_text(json.dumps(card | {"card_sha256": None} | change))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_policy(tmp_path / "run")
    assert "\n" not in str(caught.value) and str(file.parent) in str(caught.value)


def run_with(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = evaluate([*map(str, arguments), "--episodes", "1"])
    return code, *capsys.readouterr()


def test_options_that_do_not_go_together(tmp_path, capsys):
    run, cloned = save_run(tmp_path / "run"), save_run(tmp_path / "bc", agent="bc")
    conditioned = "no estimate of the maximum achievable return; bc is not conditioned on returns; leave it out"
    for arguments, message in (
        ([cloned, "--target-return", "auto"], conditioned),
        ([run, "--target-return", "auto"], "give a number, or train it with --max-return-estimate"),
        ([run, "--env-id", ""], "--env-id: is empty; give the name of an environment"),
        ([save_run(tmp_path / "none", env_id="")], "none was trained without an environment"),
    ):
        code, _, error = run_with(capsys, *arguments)
        assert code == 2 and message in error and "note: " not in error


def test_the_environment_is_made_before_the_held_out_error(trained_run, capsys, monkeypatch):
    """An environment that does not fit is refused before minutes of held-out episodes, not after."""
    monkeypatch.setattr("aaren_rl.evaluate.action_error", Mock(side_effect=AssertionError("too early")))
    code, out, error = run_with(capsys, trained_run, "--held-out", "--env-id", "Pendulum-v1")
    assert code == 4 and "choose another environment" in error and out == ""


def test_a_score_says_which_weights_it_is_of(trained_run, tmp_path):
    for options, weights in (("", "ema"), ("--weights raw", "raw")):
        (score,) = scores(trained_run, f"--episodes 1 {options}", tmp_path / "scores.json")
        assert score["weights"] == weights


LENGTHS = (7, 1, 12, 12, 5)


@pytest.fixture
def episodes() -> Episodes:
    made = small(lengths=LENGTHS)
    middle, half = (HIGH + LOW).numpy() / 2, (HIGH - LOW).numpy() / 2
    return dataclasses.replace(made, actions=middle + half * made.actions)


def expected(policy, episodes: Episodes, context: int | None) -> list[float]:
    """Every episode through the model in parallel; with a context, every step from the last `context` steps alone."""
    middle, half = (HIGH + LOW) / 2, (HIGH - LOW) / 2
    sums = []
    for episode in episodes:
        observations = (torch.from_numpy(episode.observations) - MEAN) / STD
        actions = (torch.from_numpy(episode.actions) - middle) / half
        to_go = torch.from_numpy(episode.rewards.astype(np.float64)).flip(0).cumsum(0).flip(0).float() / SCALE
        times = torch.arange(len(episode))
        total = 0.0
        for t in range(len(episode)):
            part = slice(0 if context is None else max(0, t + 1 - context), t + 1)
            with torch.no_grad():
                found, _ = policy.model(*(x[part].unsqueeze(0) for x in (observations, actions, to_go, times)))
            total += float((found[0, -1] - actions[t]).square().mean())
        sums.append(total)
    return sums


@pytest.mark.parametrize("mixer", ["aaren", "attention"])
@pytest.mark.parametrize(("rollout", "context"), [("recurrent", None), ("window", 4)])
def test_it_is_the_models_error_on_whole_episodes(mixer, rollout, context, episodes):
    policy = dataclasses.replace(make_policy(mixer, rollout, context or 8), return_range=None)
    found = action_error(policy, HeldOut(episodes), LOW, HIGH)
    np.testing.assert_allclose(found.sums, expected(policy, episodes, context), rtol=1e-4)
    assert found.lengths == list(LENGTHS)
    assert found.mean == pytest.approx(sum(found.sums) / sum(LENGTHS))


def test_it_does_not_matter_how_many_are_played_at_once(episodes, monkeypatch):
    policy = make_policy()
    together = action_error(policy, HeldOut(episodes, 0.5), LOW, HIGH)
    monkeypatch.setattr(play, "HELD_OUT_AT_ONCE", 2)
    apart = action_error(policy, HeldOut(episodes), LOW, HIGH)
    np.testing.assert_allclose(apart.sums, together.sums, rtol=1e-6)
    assert together.floor == 0.5


def test_rules_that_see_no_observation_stand_beside_an_error():
    """By hand: two episodes, of which the second counts three times; and one of a single step, the first."""
    offsets, weights = np.array([0, 2, 4]), np.array([1.0, 3.0])
    actions = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 1.0], [0.0, -1.0]], np.float32)
    rewards = np.zeros(4, np.float32)
    episodes = Episodes(actions, actions, rewards, offsets, np.ones(2, bool))
    found = play.without_looking(HeldOut(episodes, weights=weights), np.array([1.0, 2.0]))
    # half of the range of the second action is 2, so its last step is 1 off; first steps do not count
    assert found["the last action"] == pytest.approx((0.5**2 / 2 + 3 * 1.0 / 2) / 4)
    away = [[0.0625, 0], [0.4375, 0], [0.0625, 1], [0.0625, -1]]
    squares = np.square(np.array(away) / [1, 2]).mean(1)
    assert found["one action"] == pytest.approx(np.average(squares, weights=[1, 1, 3, 3]))
    choices = Episodes(actions, np.array([7, 5, 5, 5]), rewards, offsets, np.ones(2, bool))
    assert play.without_looking(HeldOut(choices), np.ones(())) == {"one action": 0.75, "the last action": 0.5}
    first = Episodes(actions, np.array([7, 7, 5, 5]), rewards, offsets, np.ones(2, bool))
    found = play.without_looking(HeldOut(first, weights=weights), np.ones(()))
    assert found == {"one action": 0.75, "the last action": 1.0}  # 5, which counts three times
    single = Episodes(actions[:1], actions[:1], rewards[:1], np.array([0, 1]), np.ones(1, bool))
    assert play.without_looking(HeldOut(single), np.ones(())) == {"one action": 0.0}
    error = ActionError([1.0], [4], correct=[1], without_looking=found)
    assert str(error).endswith("; accuracy of rules without observations: one action 0.7500, the last action 1.0000")


def test_floor_and_interval():
    error = ActionError([1.0, 2.0, 6.0], [10, 10, 20], floor=0.1)
    assert error.mean == pytest.approx(9 / 40)
    assert error.above_floor == pytest.approx(9 / 40 - 0.1)
    low, high = error.interval()
    assert 0.1 <= low < error.mean < high <= 0.3
    assert "0.2250" in str(error) and "excess MSE 0.1250" in str(error)
    assert ActionError([1.0], [10]).above_floor is None
    many = np.random.default_rng(1).exponential(size=400)
    low, high = ActionError(many.tolist(), [1] * 400).interval()
    half = 1.96 * many.std() / 20  # of the normal distribution
    assert (many.mean() - low, high - many.mean()) == pytest.approx((half, half), rel=0.15)


def test_errors_weigh_what_would_be_drawn():
    """The best half of 200 episodes of 1,000 steps alone; and of what is held out the best, if none is drawn."""
    rewards = np.repeat(np.arange(200.0), 1000)
    zeros = np.zeros((200_000, 1))
    many = Episodes.from_arrays(zeros, zeros, rewards, ends=np.arange(1, 200_001) % 1000 == 0)
    half, few = hold_out(many, 0.1, 0, "best", 0.5), hold_out(many, 0.1, 0, "best", 0.005)
    assert half is not None and few is not None
    assert half.weights.tolist() == (half.episodes.returns >= 100_000).tolist()
    assert few.weights.sum() == 1 and few.weights[few.episodes.returns.argmax()] == 1
    drawn = hold_out(many, 0.1, 0, "return", 0.2).weights
    assert drawn.argmax() == few.weights.argmax() and 0 < np.count_nonzero(drawn) < 12
    error = ActionError([1.0, 2.0, 6.0], [10, 10, 20], weights=[0.0, 1.0, 0.5])
    assert error.mean == pytest.approx(5 / 20) and "2 episodes effective" in str(error)
