"""The benchmark "learning": recipes side by side, by the error of what they act as."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import learning
from benchmarks.command import main
from benchmarks.learning import checkpoints, reached

from aaren_rl.envs import load_episodes

pytestmark = pytest.mark.slow


def test_checkpoints_end_with_the_last_update() -> None:
    assert checkpoints(1600) == [100, 159, 252, 400, 635, 1008, 1600] and checkpoints(2) == [1, 2]


def test_where_a_curve_comes_down_to_an_error() -> None:
    points = [(10.0, 0.4), (40.0, 0.1), (80.0, 0.05)]
    assert reached(points, 0.5) == 10.0
    assert reached(points, 0.2) == pytest.approx(20.0)  # halfway in both logarithms
    assert reached(points, 0.05) == pytest.approx(80.0)
    assert reached(points, 0.01) is None


def test_recipes_learn_side_by_side(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "POINTS", 3)
    figures = tmp_path / "learning.json"
    recipes = ["default:decision-aaren", "default:decision-transformer", "paper:bc,width=16"]
    asked = ["--env", "hopper-random", "--source", str(hopper_file), "--updates", "6", "--recipes", *recipes]
    assert main(["learning", *asked, "--json", str(figures), "--plot", str(tmp_path / "learning.png")]) == 0
    table = capsys.readouterr().out
    result = json.loads(figures.read_text())
    assert [curve["recipe"] for curve in result["curves"]] == recipes and all(name in table for name in recipes)
    assert result["floor"] is None and result["held_out_episodes"] >= 8
    for curve in result["curves"]:
        assert [point["updates"] for point in curve["points"]] == [1, 2, 6]
        seconds = [point["seconds"] for point in curve["points"]]
        assert seconds == sorted(seconds) and seconds[0] > 0
        # Uniform actions: nothing to learn but their mean, whose error is theirs.
        assert all(0.9 * result["trivial"] < point["error"] < 2 * result["trivial"] for point in curve["points"])
    assert result["error"] == result["curves"][-1]["points"][-1]["error"]
    assert (tmp_path / "learning.png").stat().st_size > 10_000


def test_a_wrong_error_is_not_printed(
    hopper_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = learning.action_error

    def wrong(policy, held_out):  # of the second recipe
        error = right(policy, held_out)
        return type(error)([(1 + 0.01 * (policy.rollout == "window")) * one for one in error.sums], error.lengths)

    monkeypatch.setattr(learning, "action_error", wrong)
    recipes = ["--recipes", "default:decision-aaren", "default:decision-transformer"]
    assert main(["learning", "--env", "hopper-random", "--source", str(hopper_file), "--updates", "1", *recipes]) == 6
    assert "decision-transformer: the error step by step differs from that in parallel" in capsys.readouterr().err


def test_a_recipe_of_the_best_episodes_is_trained_on_them(hopper_file: Path) -> None:
    episodes = load_episodes("hopper-random", str(hopper_file))
    learner = learning.Learner("default:bc-top10", episodes, 1000, updates=1, seed=0)
    assert len(learner.trainer.data) == episodes.best(0.1).n_steps < 0.5 * episodes.n_steps


def test_a_recipe_is_a_preset_with_changes() -> None:
    config = learning.read_recipe("paper:decision-aaren,dropout=0.25,optimizer=muon,timestep-embedding=false", 7, 3)
    assert (config.network.dropout, config.optimizer.optimizer) == (0.25, "muon")
    assert not config.network.timestep_embedding
    assert learning.read_recipe("default:bc,learning-rate=1e-3", 7, 3).optimizer.learning_rate == 1e-3
    assert (config.optimizer.updates, config.seed, config.data.context) == (7, 3, "mixed")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("default:decision-aaren,droput=0", "droput: unknown setting"),
        ("default:decision-aaren,dropout=high", "dropout"),
        ("default:gpt", "'gpt' is not one of"),
        ("default:decision-transformer-tree", "the actions of decision-transformer-tree are approximate"),
        ("defaults:bc", "preset 'defaults'"),
        ("default:bc,dropout=[", "'[' is not a value"),
        *(
            (f"default:bc,{own}", f"{own.partition('=')[0]} is not part of a recipe")
            for own in ("updates=9", "held-out=0")
        ),
    ],
)
def test_what_is_no_recipe(recipe: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learning", "--recipes", recipe, "--source", "local"]) == 2
    assert message in capsys.readouterr().err
