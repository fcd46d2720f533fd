"""Faults injected into real commands: what is said, the exit code, and what is still there afterwards.

Faults of data files are in tests/envs/data.
"""

import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch
from checks import fails
from small_run import arguments, folder, records
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl.base import files
from aaren_rl.cli import StopRequest, run_command
from aaren_rl.evaluate import main as evaluate
from aaren_rl.policies.folder import read_card
from aaren_rl.train import trainer as training_module
from aaren_rl.train.config import main as train
from aaren_rl.train.folder import RunFolder, newest, read_metrics
from aaren_rl.train.trainer import Trainer


@pytest.fixture(scope="module")
def finished(hopper_file, tmp_path_factory) -> Path:
    """The output folder of a run of 20 updates with checkpoints at 10 and 20."""
    out = tmp_path_factory.mktemp("finished")
    assert train(arguments(hopper_file, out)) == 0
    return out


@pytest.fixture
def half(finished, tmp_path) -> Path:
    """A copy of it without the checkpoint at 20: what a kill before that leaves."""
    shutil.copytree(finished, tmp_path / "half")
    (folder(tmp_path / "half") / "checkpoints" / "00000020.pt").unlink()
    return tmp_path / "half"


Refused = Callable[..., str]


@pytest.fixture
def refused(hopper_file, half, capsys) -> Refused:
    """Resumes the run that is half done, which must end with this code; gives the line of the error."""

    def resume(code: int, *more: str) -> str:
        return fails(capsys, train, [*arguments(hopper_file, half, *more), "--resume"], code)

    return resume


@pytest.fixture
def evaluated(half, capsys) -> Refused:
    """Evaluates the run's policy with a changed card, which must end with this code; gives the line of the error."""

    def with_card(code: int, **changes: object) -> str:
        file = folder(half) / "policy" / "config.json"
        shutil.rmtree(folder(half) / "policy_best")
        unsigned = {"sha256": {}, "card_sha256": None}
        file.write_text(json.dumps({**json.loads(file.read_text()), **unsigned, **changes}))
        return fails(capsys, evaluate, [str(folder(half)), "--episodes", "1"], code)

    return with_card


def change_trainer(half: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the states that the checkpoint at 10 holds."""
    checkpoint = folder(half) / "checkpoints" / "00000010.pt"
    tree = torch.load(checkpoint, weights_only=True)
    change(tree["states"])
    torch.save(tree, checkpoint)


KILLED_WHILE_SAVING = """
import dataclasses, json, os, shutil, signal, sys
from pathlib import Path
import torch
from aaren_rl.base import files
from aaren_rl.policies.card import card_from_json
from aaren_rl.policies.folder import read_card, save_policy, load_policy
from aaren_rl.train.folder import add_checkpoint, newest

source, root = Path(sys.argv[1]), Path(sys.argv[2])
card, old = read_card(source), newest(source / "checkpoints", {})

def save(run, update):
    add_checkpoint(run / "checkpoints", update, old.progress, old.states)
    weights = {name: old.states[name] for name in ("raw", "ema")}
    save_policy(run / "policy", dataclasses.replace(card, updates=update), weights)

def save_and_die(run, update, calls):
    # SIGKILL before the call number `calls` of anything that changes the disk.
    left = [calls]
    def dying(call):
        def counted(*given, **named):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)
        return counted
    changing = (os, "fsync"), (os, "replace"), (Path, "write_bytes"), (Path, "unlink"), (shutil, "rmtree")
    for owner, name in changing:
        setattr(owner, name, dying(getattr(owner, name)))
    save(run, update)

killed, seen = 0, []
while True:
    run = root / str(killed)
    for update in (1, 2):
        save(run, update)
    child = os.fork()
    if child == 0:
        save_and_die(run, 3, killed)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if not (run / "policy").exists():
        files.clear_leftovers(run)  # what the next start of the run does
    seen.append([newest(run / "checkpoints", {}).number, read_card(run).updates])
    load_policy(run)
    for parent in (run, run / "checkpoints"):
        files.clear_leftovers(parent)
    assert not [p for p in run.rglob(".*")], list(run.rglob(".*"))
    if os.WIFEXITED(status):
        break
    killed += 1
print(json.dumps(seen))
"""


@pytest.mark.faults
def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_one(finished, tmp_path):
    """Before every write, fsync, rename and removal, by which the next step is reached or not."""
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(folder(finished)), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) > 12 and seen[0] == [2, 2] and seen[-1] == [3, 3]
    assert {tuple(pair) for pair in seen} == {(2, 2), (3, 2), (3, 3)} and seen == sorted(seen)


STUCK = """
import sys, time
from aaren_rl.cli import StopRequest, run_command

def command():
    with StopRequest() as stop:
        print("ready", flush=True)
        while True:
            time.sleep(0.01)  # never looks

try:
    command()
except KeyboardInterrupt:  # a user's own loop around `train_policy`, which goes on
    print("caught", flush=True)
sys.exit(run_command(command))
"""


@pytest.mark.faults
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_leaves_at_once(first):
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for after in ("caught\n", ""):
            assert process.stdout.readline() == "ready\n"
            process.send_signal(first)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == after
        assert process.wait(60) == 130


@pytest.mark.faults
def test_a_full_disk_keeps_what_was_saved(hopper_file, half, refused, full_disk):
    run = folder(half)
    with full_disk(50_000):
        assert "free disk space; saved files are intact" in refused(7)
    assert [path.name for path in run.rglob(".*") if path.name != ".lock"] == []
    assert newest(run / "checkpoints", {}).number == 10 and read_card(run).updates == 20
    assert train([*arguments(hopper_file, half), "--resume"]) == 0


@pytest.mark.faults
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states: states.pop("sampler"), "lacks the state of sampler; training cannot resume from it exactly"),
        (lambda states: states.pop("torch"), "lacks the state of torch; training cannot resume from it exactly"),
        (lambda states: states["optimizer"]["state"][0].update(exp_avg=torch.zeros(7)), "does not fit this run"),
        (lambda states: states.update(recent=torch.zeros(3)), "checkpoints/00000010.pt: does not fit this run"),
    ],
)
def test_a_checkpoint_without_a_state_is_refused(half, refused, change, message):
    change_trainer(half, change)
    assert message in refused(4)


@pytest.mark.faults
def test_a_policy_without_its_checkpoints_is_not_overwritten(half, refused):
    run = folder(half)
    before = {file: file.read_bytes() for file in (run / "policy").iterdir()}
    (run / "checkpoints" / "00000010.pt").rename(run / "checkpoints" / "00000010.pt.bak")
    assert f"{run}: its checkpoints are gone, so it cannot be resumed; another --out with --from" in refused(4)
    assert before and before == {file: file.read_bytes() for file in (run / "policy").iterdir()}


@pytest.mark.faults
def test_a_run_is_not_resumed_on_other_data(half, hopper_file, tmp_path, refused):
    """The file was replaced: by one with other rewards, and by one with every episode twice."""
    known = shutil.copy(hopper_file, tmp_path / "known.hdf5")
    with h5py.File(known) as file:
        whole = {name: file[name][:] for name in file}
    try:
        for other in (
            whole | {"rewards": whole["rewards"] * 1.01},
            {name: np.concatenate([rows, rows]) for name, rows in whole.items()},
        ):
            with h5py.File(hopper_file, "w") as file:
                file.update(other)
            assert "has changed since the run was started: steps and mean return are" in refused(4)
    finally:
        shutil.copy(known, hopper_file)


def nan_at(monkeypatch: pytest.MonkeyPatch, *updates: int) -> None:
    """Makes the loss of the update calls with these numbers, from 1, NaN."""
    calls, right = count(1), training_module.action_loss

    def wrong(*given: Any, **options: Any) -> torch.Tensor:
        return right(*given, **options) * (torch.nan if next(calls) in updates else 1.0)

    monkeypatch.setattr(training_module, "action_loss", wrong)


@pytest.mark.faults
def test_a_loss_that_is_nan_stops_the_run(half, monkeypatch, refused):
    nan_at(monkeypatch, 3)
    said = "loss or gradient is not finite at gradient step 13; the last good checkpoint is kept in"
    assert said in refused(6)
    last = newest(folder(half) / "checkpoints", {})
    assert last.number == 10 and all(bool(tensor.isfinite().all()) for tensor in last.states["raw"].values())
    assert read_card(folder(half)).updates == 20  # of before: none was made of NaN


@pytest.mark.faults
@pytest.mark.parametrize("error", [None, MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")])
def test_out_of_memory_names_the_batch_size(half, hopper_file, monkeypatch, capsys, error):
    """A batch that no machine holds, and what NumPy and a GPU would raise."""
    more = [] if error else ["--steps-per-update", str(10**15)]
    if error:
        monkeypatch.setattr(Trainer, "step", Mock(side_effect=error))
    line = fails(capsys, train, arguments(hopper_file, half / "other", *more), 7)
    assert "out of memory (" in line and "--steps-per-update" in line


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    """Flips bits in the middle, of more bytes than lie between two tensors."""
    content = bytearray(file.read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 256):
        content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.faults
@pytest.mark.parametrize("damage", [cut, flip])
def test_a_corrupt_checkpoint_is_passed_over_with_a_line(finished, half, refused, capsys, damage):
    checkpoints = folder(half) / "checkpoints"
    last = shutil.copy(folder(finished) / "checkpoints" / "00000020.pt", checkpoints)
    damage(Path(last))
    assert newest(checkpoints, {}).number == 10
    note = capsys.readouterr().err
    assert note.startswith(f"note: {checkpoints / '00000020'}") and "from the last intact checkpoint, 00000010" in note
    damage(checkpoints / "00000010.pt")
    error = refused(4)
    assert str(checkpoints / "00000020") in error and "no older checkpoint is intact" in error


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "damage"), [("config.json", cut), ("model.safetensors", cut), ("model.safetensors", flip)]
)
def test_of_a_corrupt_policy_the_best_one_still_plays(half, capsys, name, damage):
    run = folder(half)
    damage(run / "policy" / name)
    assert str(run / "policy" / name) in fails(capsys, evaluate, [str(run), "--episodes", "1"], 4)
    assert evaluate([str(run / "policy_best"), "--episodes", "1"]) == 0


@pytest.mark.faults
def test_two_processes_start_the_same_run(hopper_file, tmp_path):
    command = [sys.executable, "-m", "aaren_rl.train", *arguments(hopper_file, tmp_path)]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    (loser,) = (errors for errors, code in ends if code == 2)
    assert sorted(code for _, code in ends) == [0, 2]
    # Whichever came later: while the other ran, or when it was done.
    assert "in use by another process" in loser or "already holds a run" in loser
    assert [record["update"] for record in records(folder(tmp_path))] == [10, 20, 20]


class Evil:
    """Pickled, it touches a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.faults
def test_a_pickle_is_not_executed(half, refused, evaluated):
    file, mark = folder(half) / "policy" / "model.safetensors", half / "executed"
    change_trainer(half, lambda states: states.update(torch=Evil(mark)))
    assert "holds more than tensors, nothing was executed" in refused(4)
    torch.save(Evil(mark), file)
    assert "model.safetensors: not readable" in evaluated(4) and not mark.exists()
    torch.load(io.BytesIO(file.read_bytes()), weights_only=False)
    assert mark.exists()  # it would have been


@pytest.fixture
def evil(tmp_path, monkeypatch) -> Path:
    """A file that is there once the module `evil_module` has been imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return mark


@pytest.mark.faults
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("env_id", "evil_module:Env-v0", 5),
        ("env_kwargs", {"entry_point": "evil_module:Env"}, 4),
        ("model", {"mixer": "evil_module", "observation_dim": 11, "action_dim": 3}, 4),
        ("agent", "\x1b[2J", 4),
        ("observation_mean", ["evil_module"], 4),
    ],
)
def test_a_policy_names_no_code(evil, evaluated, key, value, code):
    evaluated(code, **{key: value})
    assert not evil.exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("agent: decision-aaren", "agent: os.system"),
        ("env_id: null", "env_id: evil_module:Env-v0"),
        ("agent: decision-aaren", "agent: !!python/object/apply:importlib.import_module [evil_module]"),
    ],
)
def test_a_configuration_names_no_code(half, evil, refused, before, after):
    file = folder(half) / "config.yaml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    refused(2)
    assert not evil.exists()


def test_a_configuration_that_changed_since_the_checkpoint_is_refused(half, refused):
    file = folder(half) / "config.yaml"
    file.write_text(file.read_text().replace("learning_rate: 0.003", "learning_rate: 0.001", 1))
    assert "config.yaml: has changed since the checkpoint: optimizer.learning_rate (run: 0.003" in refused(4)


@pytest.mark.faults
@pytest.mark.parametrize("kept", [["00000010.pt"], []])
def test_tensorboard_shows_no_step_twice(hopper_file, finished, tmp_path, kept):
    """Both evaluations were logged; the run goes on from the first, or from nothing."""
    shutil.copytree(finished, tmp_path / "run")
    run = folder(tmp_path / "run")
    for checkpoint in (run / "checkpoints").iterdir():
        if checkpoint.name not in kept:
            checkpoint.unlink()
    if not kept:  # killed before anything was saved
        shutil.rmtree(run / "policy")
        shutil.rmtree(run / "policy_best")
    assert train([*arguments(hopper_file, tmp_path / "run"), "--resume"]) == 0
    events = EventAccumulator(str(run)).Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
    assert [event.step for event in events.Scalars("eval/normalized_score")] == [10, 20]
    assert [record["update"] for record in records(run)] == [10, 20, 20]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EINVAL])
def test_a_file_system_without_locks_or_syncs_goes_on(number, tmp_path, monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    files.note_once.cache_clear()
    with RunFolder(tmp_path / "run"):
        files.write_text(tmp_path / "run" / ("n" * 245 + ".json"), "[]")  # a long name, too
        files.write_folder(tmp_path / "run" / "policy", lambda fresh: (fresh / "a").touch())
    notes = capsys.readouterr().err
    assert "does not lock files" in notes and "does not sync" in notes and notes.count("note: ") == 2


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(tmp_path, monkeypatch):
    files.write_folder(tmp_path / "policy", lambda fresh: (fresh / "old").touch())
    rename = os.replace

    def refuse(source: Path, target: Path) -> None:
        if source.suffix == ".tmp":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError):
        files.write_folder(tmp_path / "policy", lambda fresh: (fresh / "new").touch())
    assert [path.name for path in tmp_path.rglob("*")] == ["policy", "old"]


def test_an_error_in_a_thread_is_the_commands(capsys):
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def command() -> int:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        return 0

    hook = threading.excepthook
    assert "No space left" in fails(capsys, lambda _: run_command(command), [], 7)
    assert threading.excepthook is hook


def test_a_callers_handler_of_a_signal_stays():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        own = signal.getsignal(signal.SIGUSR1)
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal is None and signal.getsignal(signal.SIGUSR1) is own
            os.kill(os.getpid(), signal.SIGUSR2)
            assert stop.signal == signal.SIGUSR2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_number_of_cores_follows_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_own_groups", lambda: [tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    for quota, cores in (("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("damaged", 8)):
        (tmp_path / "cpu.max").write_text(quota)
        assert files.core_count() == cores


def test_an_interrupt_while_a_module_loads_is_one(capsys):
    def load() -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    assert run_command(load) == 130 and capsys.readouterr().err == "interrupted\n"


def test_a_line_of_metrics_that_is_not_finite_is_passed_over(tmp_path):
    lines = ['{"update": 1, "a": 1.0}', '{"update": 2, "a": NaN}', '{"update": 3, "a": 1e999}', '{"upd']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_metrics(tmp_path) == [{"update": 1, "a": 1.0}]
