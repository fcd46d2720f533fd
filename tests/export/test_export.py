"""The command `export`: what it checks, writes and refuses; and `evaluate` of what it wrote."""

import copy
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from policies import (
    ACTION,
    HIGH,
    LOW,
    act,
    make_card,
    make_discrete,
    make_discrete_card,
    make_policy,
    onnx_policy_of,
    save_run,
)

from aaren_rl import load_policy
from aaren_rl.agents import ROLLOUTS, Policy
from aaren_rl.base.errors import NumericsError
from aaren_rl.evaluate import main as evaluate
from aaren_rl.export import export as command
from aaren_rl.export.export import TOLERANCE, check
from aaren_rl.export.export import main as export
from aaren_rl.policies import card as card_module
from aaren_rl.policies.folder import read_card

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "STEPS", 50)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "seed0")


@pytest.fixture(scope="module")
def file(run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    assert export([str(run), "--out", str(path)]) == 0
    return path


@pytest.fixture
def graph_of_file(file, monkeypatch) -> None:
    """The command gets the graph of that file, whatever the policy."""
    monkeypatch.setattr(command, "policy_graph", lambda policy: onnx.load(file))


def test_one_file_with_weights_and_card(run, file):
    assert list(file.parent.iterdir()) == [file]
    model = onnx.load(file, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert not any(tensor.HasField("data_location") for tensor in model.graph.initializer)
    assert {node.domain for node in model.graph.node} == {""}  # anything that reads ONNX can run it
    assert {value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input} == {"batch"}
    onnx_policy = load_policy(file)
    assert onnx_policy.card == read_card(run).__dict__ | {"source_path": "hopper-medium.hdf5"}
    assert onnx_policy.export["checked_steps"] == 50 and 0 < onnx_policy.export["largest_difference"] < 1e-5
    assert not any(name in file.read_bytes() for name in (b"/data/", b"site-packages", b".py"))
    np.testing.assert_allclose(act(onnx_policy), act(load_policy(run)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rollout", ["window", pytest.param("staggered", marks=pytest.mark.slow)])
def test_other_weights_and_rollouts(rollout, tmp_path):
    run, file = save_run(tmp_path / "run", settings={"layers": 1}), tmp_path / "policy.onnx"
    file.touch()
    given = f"--weights raw --rollout {rollout} --rollout-context 6 --force".split()
    assert export([str(run), "--out", str(file), *given]) == 0
    onnx_policy = load_policy(file)
    assert (onnx_policy.rollout, onnx_policy.context_length, onnx_policy.card["weights"]) == (rollout, 6, "raw")
    policy = load_policy(run, weights="raw", rollout=rollout, rollout_context=6)
    np.testing.assert_allclose(act(onnx_policy), act(policy), rtol=0, atol=1e-5)
    assert not np.allclose(act(onnx_policy), act(load_policy(run)), rtol=0, atol=1e-3)


def test_evaluate_scores_the_file_as_the_run(run, file, tmp_path, capsys):
    scores = []
    for path in (run, file):
        assert evaluate([str(path), "--episodes", "1", "--json", str(tmp_path / "scores.json")]) == 0
        scores += json.loads((tmp_path / "scores.json").read_text())
    np.testing.assert_allclose(scores[1].pop("returns"), scores[0].pop("returns"), rtol=1e-3)
    assert [score.pop("policy") for score in scores] == [str(run), str(file)]
    measured = {key for key, value in scores[0].items() if isinstance(value, float)} - {"target_return"}
    scores[0]["source_path"] = Path(scores[0]["source_path"]).name  # a file does not tell where its data lie
    of_run, of_file = ({key: score[key] for key in score if key not in measured} for score in scores)
    assert of_run == of_file
    assert evaluate([str(file), "--rollout", "window", "--weights", "raw"]) == 2
    assert "--rollout, --weights: fixed in" in capsys.readouterr().err


def test_int8_is_smaller_and_says_what_it_costs(run, file, graph_of_file, tmp_path, capsys):
    small = tmp_path / "small.onnx"
    windows = ["--rollout", "window", "--rollout-context", "8"]
    assert export([str(run), "--out", str(small), "--quantize", "int8", *windows]) == 2 and not small.exists()
    assert export([str(run), "--out", str(small), "--quantize", "int8"]) == 0
    out = capsys.readouterr().out
    assert "checked against PyTorch over 50 steps: within" in out and "rollout recurrent" in out
    how = load_policy(small).export
    assert how["precision"] == "int8" and 1e-4 < how["largest_difference"] < 0.05
    assert small.stat().st_size < 0.75 * file.stat().st_size  # a model of this size has much that is no weight
    assert 1e-5 < np.abs(act(load_policy(small)) - act(load_policy(file))).max() < 0.05
    assert evaluate([str(small), "--episodes", "1"]) == 0
    assert "EMA int8 weights" in capsys.readouterr().out


def test_a_mismatch_writes_nothing(run, graph_of_file, tmp_path, capsys):
    """The graph has other weights."""
    code, err = refused(capsys, str(run), "--weights", "raw", "--out", str(tmp_path / "policy.onnx"))
    assert code == 6 and "differs from PyTorch at step 0 by" in err and "nothing was written" in err
    assert list(tmp_path.iterdir()) == []


def test_the_check_asks_for_the_maximum_return_too():
    policy = dataclasses.replace(make_policy(max_return_estimate=True, layers=1), return_range=None)
    exported, card = onnx_policy_of(policy), make_card(policy.model)
    assert 0 < check(policy, exported, card, 50, TOLERANCE) < 1e-5
    policy.model.max_return_estimate.last.bias.data += 1.0
    with pytest.raises(NumericsError, match="differs from PyTorch"):
        check(dataclasses.replace(policy), exported, card, 50, TOLERANCE)


class Off:
    """An exported policy whose actions are off by a share of half their range."""

    def __init__(self, policy: Policy, share: float) -> None:
        self.policy, self.off, self.initial_state = policy, share * (HIGH - LOW).numpy() / 2, policy.initial_state

    def act(self, *given):
        action, state = self.policy.act(*given)
        return action + self.off, state


def test_the_check_allows_a_ten_thousandth_of_half_the_range():
    policy = make_policy(layers=1)
    card = make_card(policy.model)
    assert check(policy, Off(policy, 0.9e-4), card, 3, TOLERANCE) == pytest.approx(0.9e-4, rel=0.05)
    with pytest.raises(NumericsError, match=r"more than 0\.0001; nothing was written"):
        check(policy, Off(policy, 1.1e-4), card, 3, TOLERANCE)


def test_the_check_of_discrete_actions():
    """Large logits pass, of which softmax makes large differences of small ones."""
    policy = make_discrete(layers=1, start=5)
    policy.model.head.weight.data *= 100
    card = make_discrete_card(policy.model, action_start=5)
    exported = onnx_policy_of(policy, card)
    assert check(policy, exported, card, 1000, TOLERANCE) < 1e-5
    written, seen, state = copy.copy(exported), np.ones((3, 4), np.float32), policy.initial_state(3, 100.0)
    written._outputs = ("action", "next_memory")  # which other languages read
    read, _ = written._act(seen, np.full(3, 100.0), exported.initial_state(3, 100.0))
    acted, _ = policy.act(seen, np.zeros(3), state)
    assert read.dtype == np.int64 and np.array_equal(read, acted)
    policy.model.head.bias.data += torch.tensor([1.0, -1.0])
    with pytest.raises(NumericsError, match="of the largest logit, more than"):
        check(policy, exported, card, 50, TOLERANCE)


def test_attention_exports_its_window_alone(tmp_path, capsys):
    run = save_run(tmp_path / "seed0", "attention")
    assert export([str(run), "--out", str(tmp_path / "policy.onnx"), "--rollout", "recurrent"]) == 2
    assert "use --rollout window" in capsys.readouterr().err


def refused(capsys, *arguments: str) -> tuple[int, str]:
    """The exit code and the one line of an export that fails."""
    code, err = export([*arguments]), capsys.readouterr().err
    assert err.count("error: ") == err.count("\n") == 1  # a progress bar may stand before it
    return code, err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("p.onnx --rollout recurrent --rollout-context 7", "7: has no effect with the rollout recurrent; leave it out"),
        ("there.onnx", "exists; --force replaces it"),
        ("absent/p.onnx", "its folder does not exist"),
        (".", "is a folder"),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(given, message, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.onnx").write_text("precious")
    code, err = refused(capsys, str(run), "--out", *given.split())
    assert code == 2 and message in err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_folder_or_file_without_a_policy(tmp_path, capsys):
    code, err = refused(capsys, str(tmp_path), "--out", str(tmp_path / "p.onnx"))
    assert code == 4 and "no policy here" in err
    assert evaluate([str(tmp_path / "none.onnx")]) == 4
    assert "none.onnx: not readable" in capsys.readouterr().err


def test_without_onnxscript_the_extra_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, err = refused(capsys, str(run), "--out", str(tmp_path / "p.onnx"))
    assert code == 7 and "pip install 'aaren-rl[export]'" in err


def test_the_choices_of_rollout_modes_are_the_packages():
    """They are written out, because what they come from imports torch."""
    assert card_module.ROLLOUTS == ROLLOUTS


def test_saturated_actions_are_inside_the_bounds():
    """As those of PyTorch, to the last bit; (0.9 - -0.1) / 2 in float32 beside 0.4 is below -0.1."""
    bounds = {"action_low": torch.full((ACTION,), -0.1), "action_high": torch.full((ACTION,), 0.9)}
    saturated = make_policy(layers=1)
    for parameter in saturated.model.head.parameters():
        parameter.data.mul_(1e6)
    policy = dataclasses.replace(saturated, **bounds)
    acted = act(onnx_policy_of(policy))
    np.testing.assert_array_equal(acted, act(policy))
    assert 0 > acted.min() >= np.float32(-0.1) and acted.max() <= np.float32(0.9)
