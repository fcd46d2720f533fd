"""What a run says of its data's returns, and of the behaviour that made them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl import load_policy
from aaren_rl.envs import get_task, load_episodes
from aaren_rl.envs.behaviour.noise import mode_returns
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.evaluate.scores import Score
from aaren_rl.policies.folder import read_card
from aaren_rl.train import training_run
from aaren_rl.train.card import behaviour_mode, return_bounds
from aaren_rl.train.command import main as train

SMALL = "--env hopper-medium --width 16 --layers 1 --heads 2 --updates 6 --warmup-updates 1 --steps-per-update 160"
SCORED = "--eval-every 3 --eval-episodes 1 --final-episodes 1 --threads 1"
STEPS = 3000


def command(out: Path, *more: str) -> list[str]:
    return [*SMALL.split(), *SCORED.split(), "--out", str(out), *more]


def best_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later evaluations score lower, so that policy_best is the first one's."""
    score_policy = training_run.score_policy

    def worse(policy: Any, card: Any, plan: Any) -> list[Score]:
        scores = score_policy(policy, card, plan)
        return [dataclasses.replace(score, normalized_score_mean=-float(card.updates)) for score in scores]

    monkeypatch.setattr(training_run, "score_policy", worse)


def test_a_local_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    best_first(monkeypatch)
    seen: list[int] = []

    def counted(*given: Any) -> dict[str, float]:
        seen.append(1)
        return behaviour_mode(*given)

    monkeypatch.setattr(training_run, "behaviour_mode", counted)
    assert train(command(tmp_path, "--source", "local", "--local-steps", str(STEPS), "--best-fraction", "0.5")) == 0
    printed = capsys.readouterr().out
    returns = np.sort(load_episodes("hopper-medium", "local", local_steps=STEPS).returns)
    mode = mode_returns(get_task("hopper-medium"))
    assert mode is not None
    card = read_card(run := tmp_path / "hopper-medium" / "decision-aaren" / "seed0")
    assert card.data_returns == {
        "mean": pytest.approx(returns.mean()),
        "best": pytest.approx(returns[-1]),
        "best_tenth": pytest.approx(returns[-max(1, round(0.1 * len(returns))) :].mean()),
        "mode": pytest.approx(mode.mean()),
    }
    best = read_card(run / "policy_best")
    assert (best.updates, best.data_returns, len(seen)) == (3, card.data_returns, 1)
    load_policy(run / "policy_best")
    (line,) = [line for line in printed.splitlines() if "behaviour without noise" in line]
    assert line.startswith(f"data: mean {returns.mean():.0f} (")
    assert evaluate([str(run), "--episodes", "1"]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_a_files(hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(command(tmp_path, "--source", str(hopper_file))) == 0
    returns = read_hdf5(hopper_file).returns
    found = read_card(tmp_path / "hopper-medium" / "decision-aaren" / "seed0").data_returns
    assert set(found) == {"mean", "best", "best_tenth"}  # whose episodes these are is not known
    assert found["mean"] == pytest.approx(returns.mean()) and found["best_tenth"] > found["mean"]
    assert (line := f"data: mean {found['mean']:.1f} (") in capsys.readouterr().out
    board = EventAccumulator(str(tmp_path / "hopper-medium" / "decision-aaren" / "seed0")).Reload()
    (text,) = board.Tensors("data/text_summary")
    assert text.step == 0 and text.tensor_proto.string_val[0].decode().startswith(line)


def test_uniform_actions_have_no_mode(hopper_file: Path) -> None:
    episodes = dataclasses.replace(read_hdf5(hopper_file), source="local", dataset="hopper-random")
    assert behaviour_mode(episodes, 1000) == {}


def test_range_that_a_model_is_fed(hopper_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """From the minimum to the 99 % quantile of every interval; a target above the best return gives a remark."""
    episodes = read_hdf5(hopper_file)
    found, to_go, times = return_bounds(episodes), episodes.returns_to_go(), episodes.timesteps()
    for k, (low, high) in enumerate(zip(found.low, found.high, strict=True)):
        there = np.sort(to_go[times // found.every == k].astype(np.float64))
        rank = 0.99 * (len(there) - 1)
        assert low == there[0] and there[math.floor(rank)] <= high <= there[math.ceil(rank)]
    best = episodes.returns.max()
    for target, said in ((best - 1, False), (best + 1, True)):
        train(command(tmp_path / str(said), "--source", str(hopper_file), "--target-return", str(target)))
        assert ("is above the best in the training data" in capsys.readouterr().err) == said
