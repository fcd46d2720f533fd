"""The main job end to end, at a size that takes seconds: train, resume, evaluate, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_run import arguments, folder, records, wait_for_updates
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl import load_policy
from aaren_rl.envs import normalized_score
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.policies.folder import read_card
from aaren_rl.policies.names import AGENTS
from aaren_rl.runs.folder import RunFolder
from aaren_rl.train.command import main as train
from aaren_rl.train.options import make_parser, make_request, remarks
from aaren_rl.train.records import find_checkpoint
from aaren_rl.train.settings import read_config
from aaren_rl.train.trainer import Trainer


@pytest.fixture(scope="module")
def trained(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of every agent."""
    out = tmp_path_factory.mktemp("runs")
    for agent in AGENTS:
        assert train(arguments(hopper_file, out, "--agent", agent)) == 0
    return out


def test_a_run_folder_has_all_its_parts(trained: Path) -> None:
    run = folder(trained)
    assert {p.name for p in run.iterdir()} >= {"config.yaml", "metrics.jsonl", "checkpoints", "policy", "policy_best"}
    files = {"config.json", "model.safetensors", "model_raw.safetensors"}
    assert {p.name for p in (run / "policy").iterdir()} == files
    card = read_card(run)
    assert (card.env_id, card.source, card.context, card.rollout) == ("Hopper-v4", "file", "episode", "recurrent")
    assert read_config(run / "config.yaml").data.context == "auto"  # as asked, for a resumed run
    assert (card.agent, card.updates, card.target_return) == ("decision-aaren", 20, 54.43)  # its best tenth
    raw, ema = (load_file(run / "policy" / f"model{x}.safetensors")["head.weight"] for x in ("_raw", ""))
    assert not torch.equal(raw, ema)
    assert torch.equal(load_policy(run).model.head.weight, ema)
    assert torch.equal(load_policy(run, weights="raw").model.head.weight, raw)
    umask = os.umask(0)  # others may read what it lets them
    os.umask(umask)
    for part in (run, run / "policy", run / "policy_best", run / "checkpoints"):
        assert part.stat().st_mode & 0o777 == 0o777 & ~umask
        assert all(file.stat().st_mode & 0o777 == 0o666 & ~umask for file in part.iterdir() if file.is_file())


def test_both_agents_log_the_same_tags(trained: Path) -> None:
    """Those that say what a policy is worth come first, as TensorBoard lists them."""
    logs = [
        EventAccumulator(str(folder(trained, agent))).Reload() for agent in ("decision-aaren", "decision-transformer")
    ]
    tags, others = (sorted(log.Tags()["scalars"]) for log in logs)
    assert tags == others and tags[:2] == ["eval/mean_ep_length", "eval/mean_return"]
    assert {"train/loss", "train/learning_rate", "eval/normalized_score", "time/actions_per_second"} <= set(tags)
    assert [[e.step for e in log.Scalars("eval/normalized_score")] for log in logs] == [[10, 20]] * 2


@pytest.mark.parametrize("agent", ["decision-aaren-rsa", "decision-rsa"])
def test_the_learned_recurrence_is_logged(trained: Path, agent: str) -> None:
    """That of the weights at the last update, a curve a number."""
    run = folder(trained, agent)
    (last,) = (r for r in records(run) if r["update"] == 20 and "train/loss" in r)
    events = EventAccumulator(str(run)).Reload()
    for i, block in enumerate(load_policy(run, weights="raw").model.trunk.blocks):
        numbers = block.mixer.encoding.scalars()
        dilation = 2 if agent == "decision-aaren-rsa" else 3  # two steps of one token, one of three
        assert {"gate", "lambda_0", f"lambda_dilated{dilation}_0"} <= set(numbers) and numbers["gate"] != 0.5
        for name, value in numbers.items():
            tag = f"recurrence/layer{i}/{name}"
            assert last[tag] == pytest.approx(value) == pytest.approx(events.Scalars(tag)[-1].value)


@pytest.mark.defect(29)
@pytest.mark.parametrize(
    ("given", "notes"),
    [
        ("", []),
        ("--tree-budget 0.3", ["--tree-budget has no effect with decision-aaren"]),
        ("--agent bc --target-return 3", ["--target-return has no effect with bc"]),
        ("--agent bc --no-max-return-estimate --return-scale 9", ["--return-scale has", "--max-return-estimate has"]),
        ("--timestep-std 0.1", ["--timestep-std has no effect with --no-timestep-embedding"]),
        ("--agent decision-transformer --context auto --tbptt-length 10", ["--tbptt-length has no effect with auto"]),
        ("--context auto --tbptt-length 10", []),
        ("--agent decision-gru --heads 8", ["--heads has no effect with decision-gru"]),
        ("--agent decision-gru --no-forget-gate", ["--forget-gate has no effect with decision-gru"]),
        ("--context mixed --tbptt-windows 0.1", ["--tbptt-windows has no effect with mixed contexts"]),
        ("--rem-gate 1 --context-length 9", ["--context-length has no", "--rem-gate has no effect with decision"]),
        ("--agent decision-transformer-tree --tree-budget 0.3 --rollout-context 10", []),
        (
            "--agent decision-transformer-tree --tree-budget 0.3 --rollout window",
            ["--tree-budget has no effect with the"],
        ),
    ],
)
def test_a_setting_without_an_effect_is_remarked_on(given: str, notes: list[str]) -> None:
    request = make_request(make_parser().parse_args(["--env", "hopper-medium", *given.split()]))
    found = remarks(request.config, request.typed)
    assert len(found) == len(notes) and all(note in line for note, line in zip(notes, found, strict=True))


@pytest.mark.faults
def test_resume_names_what_differs(trained: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it refuses, or has nothing to do for, it leaves as it was."""
    before = {p: p.stat().st_mtime_ns for p in folder(trained).rglob("*") if p.is_file() and p.name != ".lock"}
    logged = records(folder(trained))
    assert train([*arguments(hopper_file, trained), "--resume", "--width", "32"]) == 4
    assert "network.width (run: 16, requested: 32)" in capsys.readouterr().err
    assert train(arguments(hopper_file, trained)) == 2
    assert "already holds a run; --resume continues it" in capsys.readouterr().err
    with RunFolder(folder(trained)):
        assert train(arguments(hopper_file, trained)) == 2
    assert "in use by another process" in capsys.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert train([*arguments(hopper_file, trained), "--resume", "--preset", "paper"]) == 0
    assert "keeps its settings, not those of --preset paper: " in (err := capsys.readouterr().err)
    assert "optimizer.weight_decay (run: 0.0001, requested: 0.0005)" in err and "network.width" not in err  # is given
    assert train([*arguments(hopper_file, trained), "--resume"]) == 0
    assert "score" in capsys.readouterr().out and records(folder(trained)) == logged


@pytest.mark.faults
@pytest.mark.defect(4)
@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_folder_in_which_nothing_was_saved_does_not_block(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Of a run that ended before its first checkpoint: with other settings than it was begun with."""

    def fail(_: Trainer) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", fail)
        assert train(arguments(hopper_file, tmp_path, "--width", "32")) == 7
    assert read_config(folder(tmp_path) / "config.yaml").network.width == 32
    again = arguments(hopper_file, tmp_path, "--updates", "2", *more)
    assert train(again) == 0 and read_card(folder(tmp_path)).model["width"] == 16
    assert read_config(folder(tmp_path) / "config.yaml").network.width == 16
    assert [r["update"] for r in records(folder(tmp_path)) if "train/loss" in r] == [2]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--env", "walker2d-medium"], 3, "observations"),
        (["--context", "windows"], 2, "context: 'windows' is not one of auto, window, episode, mixed, tbptt"),
        (["--heads", "3"], 2, "width 16 is not a multiple of heads 3"),
        (["--resume"], 2, "no run to resume"),
    ],
)
def test_bad_input_is_one_line_and_a_code(
    hopper_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: list[str], code: int, message: str
) -> None:
    assert train([*arguments(hopper_file, tmp_path), *change]) == code
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]


@pytest.mark.defect(33)
def test_a_mistyped_source_leaves_no_run_behind(hopper_file: Path, tmp_path: Path) -> None:
    wrong = [*arguments(hopper_file, tmp_path / "deep" / "runs"), "--source", "/nowhere/x.hdf5"]
    assert train(wrong) == 3 and train([*wrong, "--resume"]) == 2
    assert list(tmp_path.iterdir()) == []  # nor a folder with a lock
    run = folder(tmp_path / "deep" / "runs")
    run.mkdir(parents=True)
    assert train(wrong) == 3 and run.is_dir()  # that one was there
    assert train([*arguments(hopper_file, tmp_path / "deep" / "runs"), "--updates", "1"]) == 0


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_leaves(hopper_file: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    endless = arguments(hopper_file, tmp_path, "--eval-every", "100000", "--updates", "100000")
    command = [sys.executable, "-m", "aaren_rl.train", *endless]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    wait_for_updates(folder(tmp_path), process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code and "--resume continues from here" in errors
    assert find_checkpoint(folder(tmp_path) / "checkpoints").number >= 50


def test_evaluate_prints_a_table_and_writes_the_same(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.json"
    run = str(folder(trained))
    asked = ["--episodes", "3", "--target-return", "1800", "3600", "--eval-seed", "7", "--json", str(file)]
    assert evaluate([run, *asked]) == 0
    table, scores = capsys.readouterr().out, json.loads(file.read_text())
    assert [score["target_return"] for score in scores] == [1800, 3600]
    for score in scores:
        assert len(score["returns"]) == score["episodes"] == 3 and score["seed"] == 7
        assert f"{score['return_mean']:.1f}" in table
        expected = normalized_score("hopper", np.array(score["returns"]))
        assert score["normalized_score_mean"] == pytest.approx(expected.mean())
    assert "a file of yours" in table and "rollout recurrent" in table and "episode contexts" in table
    assert evaluate([run, "--episodes", "2", "--json", str(file), "--env-id", "Hopper-v5"]) == 0
    (score,) = json.loads(file.read_text())
    assert score["env_id"] == "Hopper-v5" and score["normalized_score_mean"] is None


@pytest.mark.parametrize("agent", AGENTS)
def test_every_rollout_of_every_agent(
    trained: Path, tmp_path: Path, agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that training did not prepare for is noted."""
    returns, file = [], tmp_path / "scores.json"
    for mode in ("window", "staggered", "recurrent"):
        asked = ["--episodes", "2", "--rollout", mode, "--rollout-context", "4", "--json", str(file)]
        assert evaluate([str(folder(trained, agent)), *asked]) == 0
        (score,) = json.loads(file.read_text())
        assert (score["rollout"], score["rollout_context"]) == (mode, 4)
        returns.append(score["returns"])
    assert returns[0] != returns[-1]  # episodes last longer than 4 steps
    trained_on = "windows of" if "transformer" in agent else ""
    assert f"note: trained on {trained_on}" in capsys.readouterr().err


@pytest.mark.faults
def test_27_an_environment_of_other_sizes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(folder(trained)), "--env-id", "Walker2d-v4"]) == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "hopper-medium with 11 observations and 3 actions, Walker2d-v4 has (17,)" in error
