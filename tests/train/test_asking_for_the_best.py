"""The estimates of the best return in reach and of the typical one, fitted beside a policy and used by the commands."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from aaren_rl import load_policy
from aaren_rl.agents import ReturnEstimate
from aaren_rl.agents.model.return_estimate import BEST, TYPICAL
from aaren_rl.envs import Episodes
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.policies.folder import read_card
from aaren_rl.train.command import main as train
from aaren_rl.train.contexts.batches import StepData
from aaren_rl.train.loop import fit_return

SMALL = "--env hopper-medium --width 16 --layers 1 --heads 2 --updates 6 --warmup-updates 1 --steps-per-update 160"
SCORED = "--threads 1 --eval-every 3 --eval-episodes 1 --final-episodes 1"


def run(out: Path, hopper_file: Path, options: str = "", agent: str = "decision-aaren") -> Path:
    asked = f"{SMALL} {SCORED} --agent {agent} --source {hopper_file} --out {out} {options}"
    assert train(asked.split()) == 0
    return out / "hopper-medium" / agent / "seed0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, hopper_file: Path) -> Path:
    return run(tmp_path_factory.mktemp("runs"), hopper_file, "--target-return auto")


# By hand, from tau E[(G - v)+] = (1 - tau) E[(v - G)+]: v = 10 + 10 * 0.995; 100 + 200 * 0.0995 / (0.0995 + 0.0045).
@pytest.mark.parametrize(("expectile", "values"), [(BEST, [19.95, 291.3]), (TYPICAL, [15.0, 120.0])])
def test_it_is_of_what_followed(expectile: float, values: list[float]) -> None:
    """Two places; from the one 10 or 20 follow, as often, from the other 100 or, one time in ten, 300."""
    rng = np.random.default_rng(0)
    place = rng.integers(2, size=2000)
    reward = np.where(place == 0, rng.choice([10.0, 20.0], 2000), rng.choice([100.0, 300.0], 2000, p=[0.9, 0.1]))
    episodes = Episodes(
        dataset="two-places",
        source="file",
        path="none",
        observations=place[:, None].astype(np.float32),
        actions=np.zeros((2000, 1), np.float32),
        rewards=reward.astype(np.float32),
        offsets=np.arange(2001),
        terminated=np.ones(2000, bool),
    )
    data = StepData(episodes, return_scale=100.0)
    torch.manual_seed(0)
    model, again = ReturnEstimate(1), ReturnEstimate(1)
    again.load_state_dict(model.state_dict())
    fit_return(model, data, expectile, seed=0)
    places = (torch.tensor([[0.0], [1.0]]) - data.observation_mean) / data.observation_std
    np.testing.assert_allclose(model(places) * 100, values, rtol=0.05)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    once = copy.deepcopy(again)
    for other in (again, once):
        fit_return(other, data, expectile, seed=0, updates=50)
    assert torch.equal(once(places), again(places)) and not torch.equal(once(places), model(places))


def test_a_run_that_asks_for_the_best(trained: Path, tmp_path: Path, capsys) -> None:
    card = read_card(trained)
    assert card.target_return is None and card.model["best_return"] is True
    assert np.isposinf(load_policy(trained).initial_state(2, np.inf).return_to_go).all()
    file = tmp_path / "scores.json"
    assert evaluate([str(trained), "--episodes", "2", "--json", str(file)]) == 0
    assert "\n    auto " in capsys.readouterr().out
    (score,) = json.loads(file.read_text())
    assert score["target_return"] is None
    options = ["--target-return", "auto", "500", "--episodes", "2", "--json", str(file)]
    assert evaluate([str(trained), *options]) == 0
    best, number = json.loads(file.read_text())
    assert best["returns"] == score["returns"] and number["target_return"] == 500.0


def test_the_policy_is_trained_as_without(trained: Path, hopper_file: Path, tmp_path: Path) -> None:
    without = run(tmp_path, hopper_file, "--no-best-return --no-typical-return")
    own, other = (load_policy(path).model.state_dict() for path in (trained, without))
    assert all(torch.equal(own[name], tensor) for name, tensor in other.items())
    assert {name.split(".")[0] for name in own.keys() - other.keys()} == {"best_return", "typical_return"}


@pytest.mark.parametrize("options", ["--no-best-return", "--target-return most"])
def test_what_cannot_be_asked_for_in_training(options: str, hopper_file: Path, tmp_path: Path, capsys) -> None:
    asked = f"{SMALL} --target-return auto --source {hopper_file} --out {tmp_path} {options}"
    assert train(asked.split()) == 2
    assert "target_return: " in capsys.readouterr().err


def test_what_cannot_be_asked_for_of_a_policy(hopper_file: Path, tmp_path: Path, capsys) -> None:
    cloned = run(tmp_path, hopper_file, agent="bc")
    assert evaluate([str(cloned), "--target-return", "auto"]) == 2
    assert "holds no estimate of the best return in reach; ask for a number" in capsys.readouterr().err


def test_guidance_of_a_run_and_what_cannot_be_guided(trained: Path, hopper_file: Path, tmp_path: Path, capsys) -> None:
    files = [tmp_path / f"{guidance}.json" for guidance in (1, 3)]
    for guidance, file in zip(("1", "3"), files, strict=True):
        options = ["--episodes", "2", "--guidance", guidance, "--held-out", "--json", str(file)]
        assert evaluate([str(trained), *options]) == 0
    plain, guided = (json.loads(file.read_text())[0] for file in files)
    assert (plain["guidance"], guided["guidance"]) == (1.0, 3.0)
    assert plain["returns"] != guided["returns"] and plain["action_error"] != guided["action_error"]
    capsys.readouterr()
    cloned = run(tmp_path, hopper_file, "--no-typical-return")
    assert evaluate([str(cloned), "--guidance", "1.5"]) == 2
    assert "--guidance: this policy holds no estimate of the return to expect" in capsys.readouterr().err
    for asked, message in (("0.5", "at least 1"), ("nan", "must be finite")):
        with pytest.raises(SystemExit, match="2"):
            evaluate([str(cloned), "--guidance", asked])
        assert message in capsys.readouterr().err
