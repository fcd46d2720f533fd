"""A collected set as HDF5 and as Minari's: the same numbers to its own readers, to minari and to training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aaren_rl.collect.command import main as collect
from aaren_rl.envs import load_task
from aaren_rl.train.command import main as train

ID = "collected/hopper-v4/medium-v0"
AGAIN = "--env Hopper-v4 --levels medium --dataset-steps 300 --minari"

# In a process of its own: minari warns, and pytest makes errors of warnings.
_LOAD = """
import minari, numpy, sys
episodes = list(minari.load_dataset(sys.argv[1]).iterate_episodes())
numpy.savez(
    sys.argv[2],
    observations=numpy.concatenate([episode.observations[:-1] for episode in episodes]),
    actions=numpy.concatenate([episode.actions for episode in episodes]),
    rewards=numpy.concatenate([episode.rewards for episode in episodes]),
    lengths=numpy.array([len(episode.rewards) for episode in episodes]),
    terminated=numpy.array([episode.terminations[-1] for episode in episodes]),
)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collected medium set of Hopper, and Minari's root beside it."""
    out = tmp_path_factory.mktemp("collected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(out / "minari"))
        small = "--env Hopper-v4 --steps 400 --checkpoint-every 200 --random-steps 100 --updates-per-step 0.05"
        data = "--levels medium --dataset-steps 300 --minari"
        assert collect([*small.split(), *data.split(), "--out", str(out)]) == 0
    return out


def hdf5(made: Path) -> Path:
    return made / "Hopper-v4" / "seed0" / "datasets" / "hopper-medium.hdf5"


def test_three_readers_see_the_same_numbers(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "minari"))
    _, from_file = load_task("mine", str(hdf5(made)), env_id="Hopper-v4")
    task, from_minari = load_task("mine", f"minari:{ID}")
    assert task.env_id == "Hopper-v4" and task.horizon == 1000
    subprocess.run([sys.executable, "-W", "ignore", "-c", _LOAD, ID, str(tmp_path / "set.npz")], check=True)
    loaded = np.load(tmp_path / "set.npz")
    for key in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(from_minari, key), getattr(from_file, key))
        np.testing.assert_array_equal(loaded[key].astype(np.float32), getattr(from_file, key))
    for key in ("lengths", "terminated"):
        np.testing.assert_array_equal(getattr(from_minari, key), getattr(from_file, key))
        np.testing.assert_array_equal(loaded[key], getattr(from_file, key))


def test_training_on_either_is_the_same(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "minari"))
    small = "--width 16 --layers 1 --heads 2 --updates 4 --steps-per-update 100 --eval-episodes 1 --final-episodes 1"
    losses = []
    for name, source in (
        ("file", ["--env-id", "Hopper-v4", "--source", str(hdf5(made))]),
        ("minari", ["--source", f"minari:{ID}"]),
    ):
        asked = ["--env", name, *source, *small.split(), "--target-return", "100", "--threads", "1"]
        assert train([*asked, "--out", str(tmp_path)]) == 0
        lines = (tmp_path / name / "decision-aaren" / "seed0" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses.append([(r.get("train/loss"), r.get("eval/return_mean")) for r in records])
    assert losses[0] == losses[1] and any(loss for loss, _ in losses[0])


def test_a_minari_set_that_is_there_is_left_alone(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "minari"))
    file = made / "minari" / ID / "data" / "main_data.hdf5"
    before = file.stat().st_mtime_ns
    assert collect([*AGAIN.split(), "--out", str(made)]) == 0
    assert "stays as it is" in capsys.readouterr().err and file.stat().st_mtime_ns == before
