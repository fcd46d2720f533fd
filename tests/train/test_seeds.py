"""`train --seeds`: every seed's run is as from a run alone, also after a stop, and where another seed fails."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from run_differences import differences
from small_run import folder

from aaren_rl.sweep.processes import make_job
from aaren_rl.train import records, seeds
from aaren_rl.train.command import main as train
from aaren_rl.train.group import Group
from aaren_rl.train.records import find_checkpoint

SMALL = "--env hopper-medium --width 32 --layers 1 --heads 2 --updates 20 --warmup-updates 5 --steps-per-update 320"
SCORED = "--eval-every 10 --eval-episodes 1 --final-episodes 1 --threads 1 --precision float32"
SMALL = f"{SMALL} {SCORED} --context tbptt --tbptt-length 32"


def of(data: Path, out: Path, more: str) -> list[str]:
    return [*SMALL.split(), "--source", str(data), "--out", str(out), *more.split()]


@pytest.fixture(scope="module")
def alone(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of seeds 0 to 2, one after another."""
    out = tmp_path_factory.mktemp("alone")
    for seed in range(3):
        assert train(of(hopper_file, out, f"--seed {seed}")) == 0
    return out


def same(alone: Path, out: Path, *numbers: int) -> None:
    for seed in numbers:
        found = differences(folder(alone, seed=seed), folder(out, seed=seed))
        assert [name for name in found if name.split(".")[0] != "torch"] == []  # which nothing draws by


def lines(text: str) -> str:
    """What a terminal shows, of a text with a progress bar."""
    return re.sub(r"\r+", "\n", text)


def updates(out: Path, seed: int) -> int:
    return find_checkpoint(folder(out, seed=seed) / "checkpoints").number


def test_every_seed_is_as_from_a_run_alone(
    alone: Path, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(of(hopper_file, tmp_path, "--seeds 0 1 2 --context-length 20")) == 0
    same(alone, tmp_path, 0, 1, 2)
    said = capsys.readouterr()
    assert said.err.count("note: --context-length has no effect") == 1
    assert re.search(r"^seed 1 +3600 ", said.out, re.M)
    assert re.search(r"^mean of 3 seeds: [\d.]+ \([\d.]+ to [\d.]+\)$", said.out, re.M)
    assert said.out.count("run folder: ") == said.out.count("policy: ") == 3 and said.out.count("parameters") == 1
    assert "seed 2, gradient step 20: normalized score" in said.err + said.out


def test_a_stop_saves_all_and_resuming_levels_them(
    alone: Path, hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 1 was trained further by itself in between, and seed 2 lost its folder: all three end as alone."""
    right = seeds.due

    def stopping(run: Any, save_every: int | None) -> list[Any]:
        if run.trainer.update == 6:
            signal.raise_signal(signal.SIGTERM)
        return right(run, save_every)

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "due", stopping)
        assert train(of(hopper_file, tmp_path, "--seeds 0 1 2")) == 143
    assert [updates(tmp_path, seed) for seed in range(3)] == [6, 6, 6]
    assert train(of(hopper_file, tmp_path, "--seed 1 --resume")) == 0
    shutil.rmtree(folder(tmp_path, seed=2))
    assert train(of(hopper_file, tmp_path, "--seeds 0 1 2 --resume")) == 0
    same(alone, tmp_path, 0, 1, 2)


def test_a_seed_that_diverges_stops_alone(
    alone: Path, hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = Group.step

    def ill(self: Group) -> tuple[torch.Tensor, torch.Tensor]:
        losses, norms = right(self)
        if len(self.trainers) == 3 and self.trainers[1].update > 4:
            losses[1] = torch.nan
        return losses, norms

    monkeypatch.setattr(Group, "step", ill)
    assert train(of(hopper_file, tmp_path, "--seeds 0 1 2 --save-every 4")) == 6
    said = capsys.readouterr()
    assert re.search(
        r"^error: seed 1: loss or gradient is not finite at gradient step 5; .*; the other seeds go on$",
        lines(said.err),
        re.M,
    )
    assert updates(tmp_path, 1) == 4 and "mean of 2 seeds" in said.out
    same(alone, tmp_path, 0, 2)


def test_a_full_disk_of_one_seed_costs_the_others_nothing(
    alone: Path, hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = records.add_checkpoint

    def full(place: Path, *given: Any) -> None:
        if place.parent.name == "seed0":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        right(place, *given)

    monkeypatch.setattr(records, "add_checkpoint", full)
    assert train(of(hopper_file, tmp_path, "--seeds 0 1")) == 7
    assert "error: seed 0: " in capsys.readouterr().err
    same(alone, tmp_path, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--seeds 0 1 --seed 2", "--seed, --seeds: give one of them"),
        ("--seeds 0 1 0", "a seed is given twice"),
        ("--seeds 0 1 --dropout 0.1", "--dropout 0"),
        ("--seeds 0 1 --agent decision-gru", "seeds of decision-gru do not train together"),
        ("--seeds 0 1 --agent decision-aaren-rsa", "aaren-rl compare or aaren-rl sweep"),
        ("--seeds -1 1", "--seeds"),
    ],
)
def test_what_cannot_train_together_is_refused(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    try:
        assert train(of(hopper_file, tmp_path, more)) == 2
    except SystemExit as error:
        assert error.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_sweep_chooses_its_seeds_itself(tmp_path: Path) -> None:
    cell = {"env": "hopper-medium", "agent": "decision-aaren", "seed": 0}
    with pytest.raises(Exception, match="leave them to the sweep"):
        make_job(cell, tmp_path, ["--seeds", "0", "1"])


def test_runs_are_told_apart_by_themselves() -> None:
    """Which train together is compared; their tensors are not."""
    one, other = (records.Run(None, Path(), None, recent=[torch.zeros(2)]) for _ in range(2))  # type: ignore[arg-type]
    assert [one] != [other] and [one] == [one]
