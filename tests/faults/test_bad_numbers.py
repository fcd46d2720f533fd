"""Odd scales, columns, options, moved data: each ends with one line, and an exit code from 2 to 7."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, LENGTH = 1000, 20
TRAIN = "train --env-id Pendulum-v1 --env own --max-episode-steps 20 --out runs --source DATA"
FRESH = TRAIN.replace("runs", "fresh")
SMALL = "--updates 2 --final-episodes 1 --width 8 --layers 1 --heads 1 --steps-per-update 40 --threads 1"
RESUME = f"{TRAIN.removesuffix(' --source DATA')} --resume"


def write(path: Path, **changes) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "observations": rng.normal(size=(STEPS, 3)),
        "actions": rng.uniform(-2, 2, (STEPS, 1)),
        "rewards": rng.normal(size=STEPS),
        "terminals": np.zeros(STEPS, bool),
        "timeouts": np.arange(1, STEPS + 1) % LENGTH == 0,
    }
    with h5py.File(path, "w") as file:
        for name, column in (columns | changes).items():
            file[name] = column


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Data, odd data, and a run."""
    made = tmp_path_factory.mktemp("numbers")
    noise = np.random.default_rng(1).normal(size=(STEPS, 3))
    write(made / "data.hdf5")
    write(made / "others.hdf5", observations=noise)  # as many steps, and the same returns
    write(made / "returns.hdf5", rewards=np.ones(STEPS))
    write(made / "huge.hdf5", rewards=np.full(STEPS, 3e38))
    write(made / "nan.hdf5", rewards=np.full(STEPS, np.nan))
    for name, value in {"beyond": 1e300, "infinite": np.inf, "hole": np.nan}.items():
        far = noise + 1.7e9
        far[700, 1] = value
        write(made / f"{name}.hdf5", observations=far)
    write(made / "complex.hdf5", observations=noise + 1j)
    write(made / "narrow.hdf5", observations=noise[:, :0])
    write(made / "short.hdf5", observations=noise[:-3])
    (made / "empty.hdf5").write_bytes(b"")
    (made / "noise.hdf5").write_bytes(np.random.default_rng(2).bytes(5000))
    (made / "cache").write_text("a file")
    register = "import gymnasium as gym\ngym.register('Blind-v0', 'faults_blind:Blind', max_episode_steps=20)\n"
    (made / "blind.py").write_text(register)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert call(f"{TRAIN} {SMALL}") == 0
    return made


def call(line: str) -> int:
    command, *words = [word.replace("DATA", "data.hdf5").replace("RUN", "runs/own/decision-aaren/seed0")
                       for word in line.split()]  # fmt: skip
    try:
        return int(import_module(f"aaren_rl.{command}.command").main(words))
    except SystemExit as error:
        return int(error.code or 0)


BAD = {
    # Scales of returns.
    **{f"{TRAIN} --return-scale {x}": "--return-scale" for x in ("0", "-1", "nan", "inf", "1e-30", "1e300", "x")},
    f"{TRAIN} --target-return nan": "--target-return",
    f"{FRESH.replace('DATA', 'huge.hdf5')}": "give a scale near the returns",
    f"{FRESH.replace('DATA', 'nan.hdf5')}": "NaN",
    f"{FRESH} --return-scale 1e-20": "too large for the model",
    # Columns.
    f"{FRESH.replace('DATA', 'beyond.hdf5')}": "step 700, column 1",
    f"{FRESH.replace('DATA', 'infinite.hdf5')}": "step 700, column 1",
    f"{FRESH.replace('DATA', 'hole.hdf5')}": "step 700, column 1",
    f"{FRESH.replace('DATA', 'complex.hdf5')}": "not real numbers",
    f"{FRESH.replace('DATA', 'narrow.hdf5')}": "shape (1000, 0)",
    f"{FRESH.replace('DATA', 'short.hdf5')}": "shape (997, 3)",
    "datasets info beyond.hdf5": "step 700, column 1",
    "datasets info complex.hdf5": "not real numbers",
    # Options given twice: the last one counts.
    f"{TRAIN} --updates 3 --updates 0": "--updates",
    f"{TRAIN} --agent bc --agent nobody": "nobody",
    f"{TRAIN} --preset default --preset nothing": "nothing",
    f"{TRAIN} --config a.yaml --config b.yaml": "b.yaml",
    "evaluate RUN --episodes 1 --episodes 0": "--episodes",
    "export RUN --out a.onnx --out missing/b.onnx": "missing",
    # Modules.
    f"{TRAIN} --register json --register missing_module": "missing_module",
    f"{TRAIN} --register json,missing_module": "missing_module",
    f"{TRAIN} --register json --register a.py": "a.py",
    f"{TRAIN} --register json,,os": "--register",
    # Data that moved.
    f"{RESUME} --source missing.hdf5": "does not exist",
    f"{RESUME} --source others.hdf5": "but other numbers",
    f"{RESUME} --source returns.hdf5": "has changed",
    f"{RESUME} --source empty.hdf5": "empty",
    f"{RESUME} --source noise.hdf5": "noise.hdf5",
    f"{RESUME} --source .": "is not a file",
    f"{RESUME.replace('runs', 'nowhere')} --source DATA": "no run to resume",
    f"{RESUME} --source DATA --return-scale 7": "data.return_scale",
    # Pictures, files and maps.
    "datasets info DATA --plot x.pdf": "only PNG",
    "datasets info DATA --plot missing/x.png": "missing",
    "datasets info DATA --plot x.png --json x.png": "both name",
    "datasets info DATA --plot .": "is a folder",
    "datasets info DATA --json data.hdf5": "is the data set itself",
    "datasets info missing.hdf5": "does not exist",
    "datasets info noise.hdf5": "noise.hdf5",
    "train --source minari:my/set-v0 --memory-map": "--memory-map is for files",
    "evaluate RUN --env-id Blind-v0 --register blind --episodes 1 --video x.gif": "its render() raised",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_what_is_odd_ends_with_one_line(line: str, folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "runs/own/decision-aaren/seed0/config.yaml").read_text()
    capsys.readouterr()
    assert call(line) in range(2, 8)
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("error: ") and BAD[line] in last
    assert (folder / "runs/own/decision-aaren/seed0/config.yaml").read_text() == before


def test_a_map_that_cannot_be_written_is_one_line(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AAREN_RL_CACHE", str(folder / "cache"))
    assert call(f"{TRAIN} --memory-map --seed 3") == 7
    assert "no memory map" in capsys.readouterr().err.splitlines()[-1]


def test_the_same_data_elsewhere_go_on_with_the_run(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree("runs", "moved")
    with h5py.File("data.hdf5") as old, h5py.File("sorted.hdf5", "w") as new:
        for name in reversed(list(old)):  # another file, the same numbers
            new.create_dataset(name, data=old[name][()], compression="gzip")
    line = f"{RESUME.replace('--out runs', '--out moved')} --updates 3"
    assert call(f"{line} --source sorted.hdf5") == 0
    assert "data are sorted.hdf5 from now on" in capsys.readouterr().err
    assert "source: sorted.hdf5" in (folder / "moved/own/decision-aaren/seed0/config.yaml").read_text()
    assert call(line) == 0
