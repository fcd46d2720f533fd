"""What a comparison reads out of a run's folder, and that runs made or scored differently are refused."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_run import quick
from synthetic import make_cell
from table1_cells import check_comparable, read_results

from aaren_rl.agents import DecisionModel, ModelConfig, Policy
from aaren_rl.base.errors import UsageError
from aaren_rl.compare import measure as gather_module
from aaren_rl.compare.measure import FORMAT, Evaluation, action_cost, gather, write_results
from aaren_rl.policies.folder import amend_card, read_card

HOW = Evaluation(episodes=3, seed=5, sweep_episodes=2, target_returns=[100.0, 54.43])


@pytest.fixture(scope="module")
def run(hopper_file, tmp_path_factory) -> Path:
    more = "--updates 20 --warmup-updates 5 --eval-every 5 --eval-episodes 2 --final-episodes 2"
    return quick(tmp_path_factory.mktemp("runs"), hopper_file, more)


def test_a_cell_has_everything(run):
    cell = gather(run, HOW)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [(line["update"], line["eval/normalized_score"]) for line in lines if "eval/normalized_score" in line]
    assert [(point.update, point.headline) for point in cell.curve] == curve and len(curve) == 4
    assert cell.mean_of == 3 and cell.mean_of_last == pytest.approx(sum(score for _, score in curve[-3:]) / 3)
    assert (cell.env, cell.agent, cell.seed, cell.updates) == ("hopper-medium", "decision-aaren", 0, 20)
    assert (cell.last.episodes, cell.last.seed, cell.last.target_return) == (3, 5, 54.43)  # its best tenth
    assert [(score.target_return, score.episodes) for score in cell.sweep] == [(100.0, 2), (54.43, 2)]
    assert cell.sweep[1].returns == cell.last.returns[:2]
    assert cell.best.updates == read_card(run / "policy_best").updates
    assert (cell.best.seed, cell.best.episodes) == (1_000_005, 3)  # episodes that did not choose it, if it is the last
    assert cell.loss == [line["train/loss"] for line in lines if "train/loss" in line][-1] > 0
    assert cell.seconds_per_update > 0 and cell.parameters > 1000 and cell.device == "cpu"
    assert [cost.step for cost in cell.action_cost] == [10, 20, 50, 100, 200, 500, 1000]
    assert len({cost.state_bytes for cost in cell.action_cost}) == 1  # Aaren's
    # Measured again, and the same that training found at its end.
    assert len(cell.last.action_error.sums) > 1
    assert cell.last.action_error.mean == pytest.approx(read_card(run).action_error, rel=1e-6)


def test_it_is_kept_until_the_question_changes(run, monkeypatch):
    cell = gather(run, HOW)
    monkeypatch.delattr(gather_module, "_measure")  # measured again, there is a NameError
    assert gather(run, HOW) == cell
    with pytest.raises(NameError):
        gather(run, Evaluation(4, 5, 2, [100.0, 54.43]))
    for name in ("policy", "policy_best"):
        card = (run / name / "config.json").read_bytes()
        amend_card(run / name, seed=9)  # as a run that was trained again
        with pytest.raises(NameError):
            gather(run, HOW)
        (run / name / "config.json").write_bytes(card)
    with monkeypatch.context() as elsewhere, pytest.raises(NameError):
        elsewhere.setattr(gather_module, "measured_on", lambda: {"processor": "another"})
        gather(run, HOW)
    text = (run / "comparison.json").read_text()
    for other in (json.dumps({**json.loads(text), "format": FORMAT - 1}), text[:-30]):
        (run / "comparison.json").write_text(other)
        with pytest.raises(NameError):
            gather(run, HOW)


def test_a_run_that_kept_no_episodes_has_no_action_error(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("comparison.json"))
    amend_card(copied / "policy", held_out=0.0)
    assert gather(copied, HOW).last.action_error is None
    amend_card(copied / "policy", held_out=0.05)
    (copied / "config.yaml").write_text("data: []")
    (copied / "comparison.json").unlink()
    with pytest.raises(UsageError, match="not the configuration of a run"):
        gather(copied, HOW)


def test_negative_returns_and_a_speed_that_is_not_known(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("comparison.json"))
    amend_card(copied / "policy", data_returns={**read_card(run).data_returns, "best": -800.0})
    metrics = copied / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("time/updates_per_second", "time/of_nothing"))
    cell = gather(copied, dataclasses.replace(HOW, target_returns=None))
    assert [score.target_return for score in cell.sweep] == [-1400, -1200, -1000, -800, -600]
    assert cell.seconds_per_update is None
    amend_card(copied / "policy", data_returns={})  # as of an imported policy
    assert gather(copied, dataclasses.replace(HOW, target_returns=None)).sweep == []


def test_results_are_read_as_they_were_written(run, tmp_path):
    cell, file = gather(run, HOW), tmp_path / "results.json"
    write_results(file, [cell], {"episodes": 3}, {"points": cell.curve})
    assert read_results(file) == ([cell], {"episodes": 3})
    tree = json.loads(file.read_text())
    del tree["cells"][0]["last"]["returns"]
    file.write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="not a comparison's results"):
        read_results(file)


def test_attentions_state_grows(run):
    model = DecisionModel(ModelConfig(11, 3, "attention", 16, 1, 2))
    policy = Policy(model, torch.zeros(11), torch.ones(11), 1000.0, "recurrent", 20)
    costs = action_cost(policy, read_card(run))
    assert costs[-1].state_bytes > 50 * costs[0].state_bytes and all(cost.microseconds > 0 for cost in costs)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("dataset", "other"), ("source", "d4rl"), ("source_path", "/x"), ("reference", "mine"), ("updates", 9)),
        *(("env_id", "Hopper-v5"), ("episodes", 3), ("seed", 7), ("target_return", 1800.0), ("weights", "raw")),
    ],
)
def test_agents_scored_in_different_ways_are_refused(field, value):
    first, second = make_cell(), make_cell(agent="decision-transformer")
    changed = dataclasses.replace(second, last=dataclasses.replace(second.last, **{field: value}))
    check_comparable([first, second])
    name = "evaluation seed" if field == "seed" else field
    of_both = f"{first.run} (decision-aaren, seed 0) and {second.run} (decision-transformer, seed 0)"
    message = f"{of_both} cannot be compared on hopper-medium: {name} {getattr(first.last, field)!r} and {value!r}"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        check_comparable([first, changed])
    # Another task may differ in all of this.
    check_comparable([first, make_cell(env="walker2d-medium", **{field: value})])


@pytest.mark.parametrize(("field", "value"), [("context", "episode"), ("rollout_context", 80)])
def test_seeds_of_one_agent_made_in_different_ways_are_refused(field, value):
    other = make_cell(agent="decision-transformer", seed=2)
    with pytest.raises(UsageError, match=rf"seed 0\) and .*seed 1\) cannot .*: {field} .* and {value!r}"):
        check_comparable([make_cell(), other, make_cell(seed=1, **{field: value})])
