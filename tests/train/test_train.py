"""The main job end to end, at a size that takes seconds: train, resume, evaluate, and what is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import fails
from safetensors.torch import load_file
from small_run import arguments, folder, quick, records, scores, wait_for_updates
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl import load_policy
from aaren_rl.policies.folder import read_card
from aaren_rl.train.config import main as train
from aaren_rl.train.config import read_config
from aaren_rl.train.folder import RunFolder, newest
from aaren_rl.train.trainer import Trainer

TRAINED = ("decision-aaren", "decision-transformer", "decision-aaren-rsa")


@pytest.fixture(scope="module")
def trained(hopper_file, tmp_path_factory) -> Path:
    """The output folder of an agent of every kind."""
    out = tmp_path_factory.mktemp("runs")
    for agent in TRAINED:
        assert train(arguments(hopper_file, out, "--agent", agent)) == 0
    return out


def test_a_run_folder_has_all_its_parts(trained):
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


def test_the_best_policy_is_that_of_the_highest_evaluation(hopper_file, tmp_path):
    run = quick(tmp_path, hopper_file, "--eval-every 1 --updates 8")
    scores = {line["update"]: line["eval/mean_return"] for line in records(run) if "eval/mean_return" in line}
    assert len(scores) == 8 and read_card(run / "policy_best").updates == max(scores, key=lambda k: scores[k])
    assert read_card(run).updates == 8


def test_both_agents_log_the_same_tags(trained):
    """Those that say what a policy is worth come first, as TensorBoard lists them."""
    logs = [EventAccumulator(str(folder(trained, agent))).Reload() for agent in TRAINED[:2]]
    tags, others = (sorted(log.Tags()["scalars"]) for log in logs)
    assert tags == others and tags[:2] == ["eval/mean_ep_length", "eval/mean_return"]
    assert {"train/loss", "train/learning_rate", "eval/normalized_score", "time/actions_per_second"} <= set(tags)
    assert [[e.step for e in log.Scalars("eval/normalized_score")] for log in logs] == [[10, 20]] * 2


def test_the_learned_recurrence_is_logged(trained):
    """That of the weights at the last update, a curve a number."""
    run = folder(trained, "decision-aaren-rsa")
    (last,) = (r for r in records(run) if r["update"] == 20 and "train/loss" in r)
    events = EventAccumulator(str(run)).Reload()
    for i, block in enumerate(load_policy(run, weights="raw").model.trunk.blocks):
        numbers = block.mixer.encoding.scalars()
        assert {"gate", "lambda_0", "lambda_dilated2_0"} <= set(numbers) and numbers["gate"] != 0.5
        for name, value in numbers.items():
            tag = f"recurrence/layer{i}/{name}"
            assert last[tag] == pytest.approx(value) == pytest.approx(events.Scalars(tag)[-1].value)


@pytest.mark.faults
def test_resume_names_what_differs(trained, hopper_file, capsys):
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
    assert train([*arguments(hopper_file, trained), "--resume", "--preset", "paper"]) == 4
    assert "optimizer.weight_decay (run: 0.0001, requested: 0.0005)" in (err := capsys.readouterr().err)
    assert "network.width" not in err  # is given
    assert train([*arguments(hopper_file, trained), "--resume"]) == 0
    assert "score" in capsys.readouterr().out and records(folder(trained)) == logged


@pytest.mark.faults
@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_folder_in_which_nothing_was_saved_does_not_block(hopper_file, tmp_path, monkeypatch, more):
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


def test_bad_input_is_one_line_and_a_code(hopper_file, tmp_path, capfd):
    contexts = "context: 'windows' is not one of auto, window, episode, mixed, tbptt"
    for change, message in ((["--context", "windows"], contexts), (["--resume"], "no run to resume")):
        assert message in fails(capfd, train, [*arguments(hopper_file, tmp_path), *change], 2)


def test_a_mistyped_source_leaves_no_run_behind(hopper_file, tmp_path):
    wrong = [*arguments(hopper_file, tmp_path / "deep" / "runs"), "--source", "/nowhere/x.hdf5"]
    assert train(wrong) == 3 and train([*wrong, "--resume"]) == 2
    assert list(tmp_path.iterdir()) == []  # nor a folder with a lock
    run = folder(tmp_path / "deep" / "runs")
    run.mkdir(parents=True)
    assert train(wrong) == 3 and run.is_dir()  # that one was there
    assert train([*arguments(hopper_file, tmp_path / "deep" / "runs"), "--updates", "1"]) == 0


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 138), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_leaves(hopper_file, tmp_path, number, code):
    endless = arguments(hopper_file, tmp_path, "--eval-every", "100000", "--updates", "100000")
    command = [sys.executable, "-m", "aaren_rl.train", *endless]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    wait_for_updates(folder(tmp_path), process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code and "--resume continues from here" in errors
    assert newest(folder(tmp_path) / "checkpoints", {}).number >= 50


@pytest.mark.parametrize("agent", TRAINED[:2])
def test_every_rollout_of_every_agent(trained, tmp_path, agent, capsys):
    """One that training did not prepare for is noted."""
    returns = []
    for mode in ("window", "staggered", "recurrent"):
        asked = f"--episodes 2 --rollout {mode} --rollout-context 4"
        (score,) = scores(folder(trained, agent), asked, tmp_path / "scores.json")
        assert (score["rollout"], score["rollout_context"]) == (mode, 4)
        returns.append(score["returns"])
    assert returns[0] != returns[-1]  # episodes last longer than 4 steps
    trained_on = "windows of" if "transformer" in agent else ""
    assert f"note: trained on {trained_on}" in capsys.readouterr().err
