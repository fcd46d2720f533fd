"""What a comparison reads out of a run's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from aaren_rl.agents import DecisionModel, ModelConfig, Policy
from aaren_rl.compare import measure as gather_module
from aaren_rl.compare.cells import Cell, read_results, write_results
from aaren_rl.compare.measure import FORMAT, Evaluation, action_cost, gather
from aaren_rl.errors import UsageError
from aaren_rl.policies.folder import read_card
from aaren_rl.train.command import main as train

SMALL = "--width 16 --layers 1 --heads 2 --updates 20 --warmup-updates 5 --steps-per-update 160 --threads 1".split()
HOW = Evaluation(episodes=3, seed=5, sweep_episodes=2, target_returns=(100.0, 3600.0))


@pytest.fixture(scope="module")
def run(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    scored = "--env hopper-medium --eval-every 5 --eval-episodes 2 --final-episodes 2".split()
    assert train([*scored, *SMALL, "--source", str(hopper_file), "--out", str(out)]) == 0
    return out / "hopper-medium" / "decision-aaren" / "seed0"


def test_a_cell_has_everything(run: Path) -> None:
    cell = gather(run, HOW)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [(line["update"], line["eval/normalized_score"]) for line in lines if "eval/normalized_score" in line]
    assert [(point.update, point.headline) for point in cell.curve] == curve and len(curve) == 4
    assert cell.mean_of == 3 and cell.mean_of_last == pytest.approx(sum(score for _, score in curve[-3:]) / 3)
    assert (cell.env, cell.agent, cell.seed, cell.updates) == ("hopper-medium", "decision-aaren", 0, 20)
    assert (cell.last.episodes, cell.last.seed, cell.last.target_return) == (3, 5, 3600.0)
    assert [(score.target_return, score.episodes) for score in cell.sweep] == [(100.0, 2), (3600.0, 2)]
    assert cell.sweep[1].returns == cell.last.returns[:2]
    assert cell.best.updates == read_card(run / "policy_best").updates
    assert cell.loss == [line["train/loss"] for line in lines if "train/loss" in line][-1] > 0
    assert cell.seconds_per_update > 0 and cell.parameters > 1000 and cell.device == "cpu"
    # Measured again, and the same that training found at its end.
    assert len(cell.last.action_error.sums) > 1
    assert cell.last.action_error.mean == pytest.approx(read_card(run).action_error, rel=1e-6)


def test_it_is_kept_until_the_question_changes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = gather(run, HOW)

    def measured(*_: object) -> Cell:
        raise AssertionError("measured again")

    monkeypatch.setattr(gather_module, "_measure", measured)
    assert gather(run, HOW) == cell
    with pytest.raises(AssertionError, match="measured again"):
        gather(run, Evaluation(4, 5, 2, (100.0, 3600.0)))
    text = (run / "comparison.json").read_text()
    for other in (json.dumps({**json.loads(text), "format": FORMAT - 1}), text[:-30]):
        (run / "comparison.json").write_text(other)
        with pytest.raises(AssertionError, match="measured again"):
            gather(run, HOW)


def test_a_run_that_kept_no_episodes_has_no_action_error(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("comparison.json"))
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace("held_out: 0.05", "held_out: 0.0"))
    assert gather(copied, HOW).last.action_error is None
    config.write_text("data: []")
    (copied / "comparison.json").unlink()
    with pytest.raises(UsageError, match="no run's configuration"):
        gather(copied, HOW)


def test_results_are_read_as_they_were_written(run: Path, tmp_path: Path) -> None:
    cell, file = gather(run, HOW), tmp_path / "results.json"
    write_results(file, [cell], {"episodes": 3}, {"points": cell.curve})
    assert read_results(file) == ([cell], {"episodes": 3})
    tree = json.loads(file.read_text())
    del tree["cells"][0]["last"]["returns"]
    file.write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="not a comparison's results"):
        read_results(file)


@pytest.mark.parametrize(("mixer", "grows"), [("aaren", False), ("attention", True)])
def test_the_state_is_constant_or_grows(run: Path, mixer: str, grows: bool) -> None:
    torch.manual_seed(0)
    model = DecisionModel(ModelConfig(11, 3, mixer, 16, 1, 2))
    policy = Policy(model, torch.zeros(11), torch.ones(11), 1000.0, "carry", 20)
    costs = action_cost(policy, read_card(run))
    assert [cost.step for cost in costs] == [10, 20, 50, 100, 200, 500, 1000]
    sizes = [cost.state_bytes for cost in costs]
    assert (sizes[-1] > 50 * sizes[0]) == grows and (len(set(sizes)) == 1) != grows
    assert all(cost.microseconds > 0 for cost in costs)
