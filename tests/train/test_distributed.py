"""Two processes under torchrun against one: the same weights, one writer, one stop."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import small_run
import torch
from safetensors.torch import load_file
from small_run import folder, records, wait_for_updates
from windows import LENGTHS, generator, make_data, sampler, stretches

from aaren_rl.base.errors import UsageError
from aaren_rl.train import ranks
from aaren_rl.train.config import CONTEXTS
from aaren_rl.train.config import main as train
from aaren_rl.train.data import TbpttSampler, part
from aaren_rl.train.folder import newest

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

# Softmax does not change when all scores of a query change by the same number, so this bias has no effect and its
# gradient is zero but for rounding, which AdamW divides by its own size: it wanders, in one process too.
WITHOUT_EFFECT = "mixer.key.bias"
# The first step of AdamW is lr g / (|g| + 1e-8). Where a gradient g is by chance as small as that, one rounding of its
# terms moves the weight by up to lr / 1e-8 of it: at lr = 6e-4 and terms of 1e-3, which round by 8e-11, by 5e-6. In the
# runs of whole episodes one bias has g = 1.2e-8, of a median of 1.3e-3: it is 1.1e-6 apart from the first step to the
# last, and 1e-5 in one process that starts with weights rounded otherwise. All other numbers are within 6e-7.
BY_CHANCE = 5e-6


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    """A run of 20 updates in float32."""
    return small_run.arguments(data, out, "--dropout", "0", "--precision", "float32", *more)


def launch(command: list[str]) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    return subprocess.Popen([*TORCHRUN, "-m", "aaren_rl.train", *command], text=True, **pipes)


def two(command: list[str], code: int = 0) -> tuple[str, str]:
    process = launch(command)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == code, out + errors
    return out, errors


def same(one: Path, other: Path) -> None:
    """Equal weights to 1e-6, raw and EMA, all but one number by chance."""
    for name in ("model", "model_raw"):
        a, b = (load_file(run / "policy" / f"{name}.safetensors") for run in (one, other))
        assert a.keys() == b.keys()
        apart = {key: (a[key] - b[key]).abs() for key in a if not key.endswith(WITHOUT_EFFECT)}
        assert len(apart) >= len(a) - 3
        *_, second, largest = torch.cat([part.flatten() for part in apart.values()]).sort().values
        assert second < 1e-6 and largest < BY_CHANCE, max(apart, key=lambda key: float(apart[key].max()))


@pytest.mark.parametrize(
    ("agent", "context"),
    [
        ("decision-aaren", "mixed"),
        pytest.param("decision-aaren", "tbptt", marks=pytest.mark.slow),
        pytest.param("decision-transformer", "window", marks=pytest.mark.slow),
        pytest.param("decision-aaren", "episode", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_two_processes_end_with_the_weights_of_one(hopper_file, tmp_path, agent, context):
    kind = ("--agent", agent, "--context", context, "--rollout", "recurrent" if context != "window" else "window")
    assert train(arguments(hopper_file, tmp_path / "one", *kind)) == 0
    out, errors = two(arguments(hopper_file, tmp_path / "two", *kind))
    run = folder(tmp_path / "two", agent)
    same(folder(tmp_path / "one", agent), run)

    assert out.count("run folder:") == out.count("policy:") == (errors + out).count("gradient step 10:") == 1
    logs = [records(folder(tmp_path / x, agent)) for x in ("one", "two")]
    assert [[record["update"] for record in log] for log in logs] == [[10, 20, 20]] * 2
    assert logs[0][1]["train/loss"] == pytest.approx(logs[1][1]["train/loss"], abs=1e-6)
    assert len(list(run.glob("events.*"))) == 1
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"00000010.pt", "00000020.pt"}


@pytest.mark.slow
def test_a_resume_gives_the_same_run_with_dropout(hopper_file, tmp_path):
    """20 updates of two processes at once, and with a break; the masks are drawn anew for every update."""
    dropout = ("--dropout", "0.1")
    two(arguments(hopper_file, tmp_path / "whole", *dropout))
    two(arguments(hopper_file, tmp_path / "cut", *dropout))
    (folder(tmp_path / "cut") / "checkpoints" / "00000020.pt").unlink()
    two(arguments(hopper_file, tmp_path / "cut", *dropout, "--resume"))
    a, b = (newest(folder(tmp_path / out) / "checkpoints", {}) for out in ("whole", "cut"))
    assert a.number == b.number == 20
    for name in a.states["raw"]:
        assert torch.equal(a.states["raw"][name], b.states["raw"][name]), name


def test_processes_that_do_not_come_are_not_waited_for(monkeypatch):
    here = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "ARRIVAL", timedelta(seconds=1))
    said = {"2": "the 2 processes of WORLD_SIZE did not meet .*; start them all, or unset", "x": "not a number"}
    for size in said:
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(UsageError, match=said[size]):
            ranks.join_ranks().__enter__()


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_all_and_saves(hopper_file, tmp_path):
    process = launch(arguments(hopper_file, tmp_path, "--eval-every", "100000", "--updates", "100000"))
    wait_for_updates(folder(tmp_path), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.count("--resume continues from here") == 1
    assert newest(folder(tmp_path) / "checkpoints", {}).number >= 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--source", "/nowhere/x.hdf5"], "/nowhere/x.hdf5"),
        (["--learning-rate", "1e30"], "loss or gradient is not fin"),
    ],
)
def test_an_error_is_said_once(hopper_file, tmp_path, change, said):
    _, errors = two([*arguments(hopper_file, tmp_path), *change], code=1)
    assert errors.count(f"error: {said}") == 1


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_parts_hold_every_step_once(context, count):
    data, random = make_data(), generator()
    for _ in range(5):
        whole = sampler(context, data).sample(random)
        parts = [part(whole, index, count) for index in range(count)]
        # Each part is a batch of its own: the sequences are the same ones, and none is cut.
        filled = [p for p in parts if bool(p.mask.any())]
        assert [s for p in filled for s in stretches(p, data)] == stretches(whole, data)
        assert all(p.starts is None or bool(p.starts[0, 0]) for p in parts)
        if context == "mixed":  # about equal
            assert max(abs(int(p.mask.sum()) - whole.mask.numel() / count) for p in parts) <= max(LENGTHS)


def test_what_is_one_sequence_is_one_part():
    """A row that begins and ends amid an episode, and one of a single sequence; other ranks get a step that is masked.

    They need something to take part in the all-reduce with.
    """
    data, random = make_data((3000,)), generator()
    rows = TbpttSampler(data, 100, 100)
    rows.sample(random)
    for whole in (rows.sample(random), data.filled(torch.tensor([[7]]), torch.tensor([[100]]), 100)):
        parts = [part(whole, index, 3) for index in range(3)]
        assert sorted(int(p.mask.sum()) for p in parts) == [0, 0, 100]
        assert all(p.mask.numel() > 0 for p in parts)
        assert all((p.previous_action is None) == (whole.previous_action is None) for p in parts)
        assert all(p.previous_action is None or len(p.previous_action) == 1 for p in parts)
