"""Rollouts recorded as Minari datasets: minari opens them, and the environment gives the very same episodes again."""

import json

import numpy as np
import pytest
from small_policy import HOPPER, TARGET, make_policy

from aaren_rl.envs import make_env, rollout
from aaren_rl.envs.data.minari import read_minari
from aaren_rl.envs.simulation import Recorder
from aaren_rl.evaluate.evaluate import main as evaluate

ID = "me/hopper/aaren-v0"


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_recorded_is_what_happened(workers):
    recorder = Recorder()
    asked = {"episodes": 20, "target_return": TARGET, "seed": 10, "workers": workers}
    played = rollout(make_policy(), HOPPER, **asked, recorder=recorder)
    episodes, finals = recorder.episodes("mine", HOPPER)
    np.testing.assert_array_equal(episodes.lengths, played.lengths)
    np.testing.assert_allclose(episodes.returns, played.returns, rtol=1e-6)
    assert episodes.terminated.all() and len(set(played.lengths.tolist())) > 1
    env = make_env(HOPPER)
    for e in (0, 19):
        observation, _ = env.reset(seed=10 + e)
        for t in range(len(episodes[e])):
            np.testing.assert_array_equal(episodes[e].observations[t], observation.astype(np.float32))
            observation, reward, *_ = env.step(episodes[e].actions[t])
            assert episodes[e].rewards[t] == np.float32(reward)
        np.testing.assert_array_equal(finals[e], observation.astype(np.float32))
    env.close()


def test_a_time_limit_is_not_a_fall():
    recorder, limit = Recorder(), {"max_episode_steps": 4}
    rollout(make_policy(), HOPPER, env_kwargs=limit, episodes=2, target_return=TARGET, seed=10, recorder=recorder)
    episodes, _ = recorder.episodes("mine", HOPPER)
    assert episodes.lengths.tolist() == [4, 4] and not episodes.terminated.any()


def test_minari_opens_the_recorded_dataset(trained_run, tmp_path, monkeypatch, capsys):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    arguments = [str(trained_run), "--episodes", "2", "--target-return", "3600", "1800", "--record-minari", ID]
    assert evaluate([*arguments, "--json", str(tmp_path / "scores.json")]) == 0
    assert f"minari:{ID}" in capsys.readouterr().out
    data = minari.load_dataset(ID)
    returns = [r for score in json.loads((tmp_path / "scores.json").read_text()) for r in score["returns"]]
    assert data.recover_environment().spec.id == HOPPER
    for episode, total in zip(data.iterate_episodes(), returns, strict=True):
        assert episode.rewards.sum() == pytest.approx(total, rel=1e-6)
        assert len(episode.observations) == len(episode.rewards) + 1 and episode.terminations[-1]
        assert not episode.truncations[-1] and (episode.observations[-1] != episode.observations[-2]).any()
    assert read_minari(ID, progress=False).spec.reference[1:] == pytest.approx((-20.272305, 3234.3))
    description = data.storage.metadata["description"]
    assert "target returns 3600, 1800" in description and "decision-aaren" in description
    # A dataset that is there stays.
    assert evaluate([str(trained_run), "--record-minari", ID]) == 2
    assert "already exists" in capsys.readouterr().err and minari.load_dataset(ID).total_episodes == 4
    assert evaluate([str(trained_run), "--record-minari", "../x"]) == 2
    assert "is not a Minari id" in capsys.readouterr().err
