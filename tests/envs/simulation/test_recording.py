"""Rollouts recorded as Minari datasets: minari opens them, and the environment gives the very same episodes again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_policy import HOPPER, TARGET, make_policy

from aaren_rl.envs import make_env, rollout
from aaren_rl.envs.data.minari.read import read_minari
from aaren_rl.envs.simulation.recording import Recorder
from aaren_rl.evaluate.command import main as evaluate

ID = "me/hopper/aaren-v0"
OPEN = """
import json, sys, minari
data = minari.load_dataset(sys.argv[1])
env = data.recover_environment()
episodes = [(len(e.rewards), e.observations.shape[0], float(e.rewards.sum()), bool(e.terminations[-1]),
             bool(e.truncations[-1]), e.observations.tolist()) for e in data.iterate_episodes()]
print(json.dumps([env.spec.id, data.total_steps, episodes]))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_recorded_is_what_happened(workers: int) -> None:
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


def test_a_time_limit_is_not_a_fall() -> None:
    recorder, limit = Recorder(), {"max_episode_steps": 4}
    rollout(make_policy(), HOPPER, env_kwargs=limit, episodes=2, target_return=TARGET, seed=10, recorder=recorder)
    episodes, _ = recorder.episodes("mine", HOPPER)
    assert episodes.lengths.tolist() == [4, 4] and not episodes.terminated.any()


def test_minari_opens_the_recorded_dataset(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    arguments = [str(trained_run), "--episodes", "2", "--target-return", "3600", "1800", "--record-minari", ID]
    assert evaluate([*arguments, "--json", str(tmp_path / "scores.json")]) == 0
    assert f"minari:{ID}" in capsys.readouterr().out
    opened = subprocess.check_output([sys.executable, "-W", "ignore", "-c", OPEN, ID], text=True)
    env_id, steps, episodes = json.loads(opened.splitlines()[-1])
    returns = [r for score in json.loads((tmp_path / "scores.json").read_text()) for r in score["returns"]]
    assert env_id == HOPPER and steps == sum(length for length, *_ in episodes)
    assert [total for _, _, total, *_ in episodes] == pytest.approx(returns, rel=1e-6)
    for length, observations, _, terminated, truncated, rows in episodes:
        assert observations == length + 1 and terminated and not truncated
        assert rows[-1] != rows[-2]
    read = read_minari(ID, progress=False)
    assert read.spec.reference_returns == pytest.approx((-20.272305, 3234.3))
    metadata = json.loads((tmp_path / ID / "data" / "metadata.json").read_text())
    assert "asked returns 3600, 1800" in metadata["description"] and "decision-aaren" in metadata["description"]


def test_a_dataset_that_is_there_stays(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / ID).mkdir(parents=True)
    assert evaluate([str(trained_run), "--record-minari", ID]) == 2
    assert "is there already" in capsys.readouterr().err and list((tmp_path / ID).iterdir()) == []
    assert evaluate([str(trained_run), "--record-minari", "../x"]) == 2
    assert "is not a Minari id" in capsys.readouterr().err
