"""A run that is killed between two checkpoints and resumed against one that is not: bit for bit the same.

Dropout is on, one thread, and the kill is in the middle of what the samplers draw.
"""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import arguments, folder, records
from tqdm import tqdm

from aaren_rl.base.files import clear_leftovers
from aaren_rl.envs import SimulationError
from aaren_rl.policies.folder import read_card
from aaren_rl.sweep import is_done, request_run
from aaren_rl.train import run as run_module
from aaren_rl.train.config import main as train
from aaren_rl.train.config import read_config, settings_of
from aaren_rl.train.folder import KEPT, add_checkpoint, checkpoint_files, newest
from aaren_rl.train.trainer import Trainer


class KilledError(BaseException):
    """Goes through everything, as a kill does."""


def differences(whole: Path, killed: Path) -> list[str]:
    """The names of what is not the same in two runs."""
    ones, others = everything(whole), everything(killed)
    found = [name for name in {**ones, **others} if name not in ones or ones[name] != others.get(name)]
    left = [str(p.relative_to(killed)) for p in killed.rglob(".*") if p.name != ".lock"]
    return [*found, *(f"left behind: {name}" for name in left)]


def everything(run: Path) -> dict[str, Any]:
    """All values of a run's last checkpoint, metrics and policies by their names, without what the clock decides."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    files = {str(file.relative_to(run)): file.read_bytes() for file in run.glob("policy*/*.safetensors")}
    saved = newest(run / "checkpoints", {})
    trees = saved.states | {"number": saved.number, "progress": saved.progress, "metrics": metrics}
    return files | {key: value for name, tree in trees.items() for key, value in leaves(name, tree).items()}


def leaves(name: str, tree: Any) -> dict[str, Any]:
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        parts = [leaves(f"{name}.{key}", value) for key, value in items if "per_second" not in str(key)]
        return {name: len(parts), **{key: value for part in parts for key, value in part.items()}}
    return {name: (tree.dtype, tree.tolist()) if isinstance(tree, torch.Tensor) else tree}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("agent", "context"),
    [
        ("decision-aaren", "mixed"),
        ("decision-aaren", "tbptt"),
        ("decision-transformer", "window"),
        pytest.param("decision-aaren", "window", marks=pytest.mark.slow),
        pytest.param("decision-aaren", "episode", marks=pytest.mark.slow),
        pytest.param("decision-aaren-rsa", "tbptt", marks=pytest.mark.slow),
        pytest.param("decision-gru", "tbptt", marks=pytest.mark.slow),
        pytest.param("decision-mingru", "mixed", marks=pytest.mark.slow),
        pytest.param("decision-transformer", "mixed", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_as_if_it_had_not_been(hopper_file, tmp_path, monkeypatch, agent, context):
    more = ["--agent", agent, "--context", context, "--rollout", "recurrent" if context != "window" else "window"]
    whole, cut = (arguments(hopper_file, tmp_path / name, *more) for name in ("whole", "cut"))
    assert train(whole) == 0
    step = Trainer.step

    def killed(self: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
        if self.update == 13:
            raise KilledError
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Trainer, "step", killed)
        train(cut)
    run = folder(tmp_path / "cut", agent)
    assert newest(run / "checkpoints", {}).number == 10
    assert {"raw.head.weight", "metrics"} <= set(differences(folder(tmp_path / "whole", agent), run))
    torch.manual_seed(1234)  # whatever the process has drawn before
    assert train([*cut, "--resume"]) == 0
    assert differences(folder(tmp_path / "whole", agent), run) == []


@pytest.mark.faults
def test_an_evaluation_that_fails_costs_no_updates(hopper_file, tmp_path, monkeypatch, capsys):
    """The environment raises in the second evaluation; the resumed run does that again, and logs nothing twice."""
    whole, cut = (arguments(hopper_file, tmp_path / name) for name in ("whole", "cut"))
    assert train(whole) == 0
    score, run = run_module.score_policy, folder(tmp_path / "cut")

    def failing(policy: Any, card: Any, plan: Any) -> Any:
        if card.updates == 20:
            raise SimulationError("the environment raised")
        return score(policy, card, plan)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "score_policy", failing)
        assert train(cut) == 5
    assert "the environment raised" in capsys.readouterr().err
    saved = newest(run / "checkpoints", {})
    assert saved.number == 20 and saved.progress["last"]["updates"] == 10

    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("an update was done again"))
    assert train([*cut, "--resume"]) == 0
    assert differences(folder(tmp_path / "whole"), run) == []


def test_a_run_without_its_settings_is_kept(hopper_file, trained_run, tmp_path, capfd):
    command, run = arguments(hopper_file, tmp_path), folder(tmp_path)
    shutil.copytree(trained_run, run)
    (run / "config.yaml").unlink()
    before = (run / "policy" / "model.safetensors").read_bytes()
    assert train(command) == 2 and train([*command, "--resume"]) == 4
    assert "already holds a run" in (error := capfd.readouterr().err) and "its config.yaml is missing" in error
    assert (run / "policy" / "model.safetensors").read_bytes() == before


def test_a_deleted_policy_is_made_again(hopper_file, tmp_path):
    command, run = arguments(hopper_file, tmp_path), folder(tmp_path)
    assert train(command) == 0
    before, logged = read_card(run).updates, without_times(run)
    job = request_run(settings_of(read_config(run / "config.yaml")), tmp_path)
    for name in ("policy", "policy_best"):
        assert is_done(job)
        shutil.rmtree(run / name)
        assert not is_done(job)  # a sweep resumes it
        assert train([*command, "--resume"]) == 0 and read_card(run / name).updates == before
        assert without_times(run) == logged  # the last loss among it


def without_times(run: Path) -> list[dict[str, float]]:
    return [{tag: value for tag, value in line.items() if "per_second" not in tag} for line in records(run)]


@pytest.mark.faults
def test_a_last_evaluation_whose_policies_are_not_saved_is_made_again(hopper_file, tmp_path, monkeypatch):
    """The disk is full when the best policy is saved; policy/ is already that of the last update."""
    command, run = arguments(hopper_file, tmp_path), folder(tmp_path)
    save = run_module.save_policy

    def failing(path: Path, card: Any, states: Any) -> None:
        if (path.name, card.updates) == ("policy_best", 20):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, card, states)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_policy", failing)
        patch.setattr(run_module, "is_there", lambda _: False)  # any score is the best
        assert train(command) == 7
    job = request_run(settings_of(read_config(run / "config.yaml")), tmp_path)
    assert read_card(run).updates == 20 and not is_done(job)
    assert train([*command, "--resume"]) == 0
    assert is_done(job) and records(run)[-1]["update"] == 20 and "eval/mean_return" in records(run)[-1]
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))  # as a power cut may leave it
    assert not is_done(job) and train([*command, "--resume"]) == 0 and is_done(job)


def test_a_run_that_nobody_reads_any_more_saves(hopper_file, tmp_path, monkeypatch):
    def update(bar: Any, done: int = 1) -> None:
        bar.n += done
        if bar.n == 7:
            raise BrokenPipeError

    monkeypatch.setattr(tqdm, "update", update)
    assert train(arguments(hopper_file, tmp_path)) == 141
    assert newest(folder(tmp_path) / "checkpoints", {}).number == 7


def test_resuming_before_the_first_save_keeps_what_is_not_given(hopper_file, tmp_path, capsys):
    command, run = arguments(hopper_file, tmp_path, "--learning-rate", "1e30", "--optimizer", "adamw"), folder(tmp_path)
    assert train(command) == 6 and newest(run / "checkpoints", {}) is None
    before = read_config(run / "config.yaml")
    given = ["--env", "hopper-medium", "--learning-rate", "1e-3", "--threads", "1", "--out", str(tmp_path), "--resume"]
    assert train(given) == 0
    assert "no checkpoint was saved yet; starting with optimizer.learning_rate" in capsys.readouterr().err
    assert settings_of(read_config(run / "config.yaml")) == {**settings_of(before), "learning_rate": 1e-3}


def test_new_checkpoints_beside_later_damaged_ones_are_kept(tmp_path):
    for number in (500, 1000, 1500):
        add_checkpoint(tmp_path, number, {}, {})
    for number in (1000, 1500):
        (tmp_path / f"{number:08d}.pt").write_bytes(b"damaged")
    for number in (600, 650, 700):
        add_checkpoint(tmp_path, number, {}, {})
    kept = [600, 650, 700][-KEPT:]
    assert [int(file.stem) for file in checkpoint_files(tmp_path)] == [*kept, 1000, 1500]


def test_what_a_killed_write_leaves_is_cleared_and_what_it_was_to_replace_is_put_back(tmp_path: Path) -> None:
    """A folder is renamed away, then the new one takes its name: a kill between both leaves the old one aside."""
    for name in ("policy", ".policy.0123abcd.old", ".policy_best.0123abcd.old", ".policy.4567cdef.tmp", ".cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "written").write_text(name)
    for name in (".config.yaml.123.tmp", ".lock", ".notes.tmp"):
        (tmp_path / name).touch()
    clear_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".cache", ".lock", ".notes.tmp", "policy", "policy_best"]
    assert (tmp_path / "policy" / "written").read_text() == "policy"
    assert (tmp_path / "policy_best" / "written").read_text() == ".policy_best.0123abcd.old"
