"""Names, numbers and episodes held against D4RL's own package, which runs in a process of its own.

The package cannot be installed beside gymnasium. scripts/install_d4rl puts what is needed of it into a folder, which
AAREN_RL_D4RL_PACKAGE names; .ci/run does both.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from aaren_rl.envs import REFERENCE_RETURNS, TASKS, normalized_score
from aaren_rl.envs.data.hdf5.d4rl import d4rl_dataset_dir, read_hdf5

PACKAGE = os.environ.get("AAREN_RL_D4RL_PACKAGE")
# Where the variable is set, everything that is wrong with the folder is a failure.
if not PACKAGE:
    reason = "no d4rl package; scripts/install_d4rl DIR installs it, AAREN_RL_D4RL_PACKAGE=DIR names it"
    pytest.skip(reason, allow_module_level=True)
RETURNS = (-500.0, 0.0, 1234.5, 3234.3, 1e4)


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Runs d4rl_probe.py and returns what it prints; d4rl makes its dataset folder when it is imported."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "datasets"))
    variables = {"PYTHONPATH": PACKAGE, "D4RL_SUPPRESS_IMPORT_ERROR": "1"}

    def probe(*arguments):
        command = [sys.executable, "-P", Path(__file__).with_name("d4rl_probe.py"), *map(str, arguments)]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return probe


@pytest.fixture
def split(tmp_path, probe):
    """Writes a file, reads it here and by d4rl."""

    def split(data, horizon=1000, **options):
        path, result = tmp_path / "set.hdf5", tmp_path / "split.npz"
        with h5py.File(path, "w") as file:
            for key, array in data.items():
                file.create_dataset(key, data=array, compression="gzip")
        probe("split", path, horizon, result)
        with np.load(result) as arrays:
            return read_hdf5(path, **options), dict(arrays)

    return split


def test_tasks_addresses_files_and_scores(probe):
    tables = json.loads(probe("tables", *RETURNS))
    assert Path(tables["path"]).is_relative_to(Path(PACKAGE).absolute()) and tables["version"] == "1.1"
    ours = re.compile(r"(halfcheetah|hopper|walker2d|ant)-.*-v2")
    assert {name for name in tables["tasks"] if ours.fullmatch(name)} == {f"{name}-v2" for name in TASKS}
    assert len(TASKS) == 24
    for name, task in TASKS.items():
        theirs = tables["tasks"][f"{name}-v2"]
        assert task.d4rl_url == theirs["url"]
        assert str(d4rl_dataset_dir() / task.d4rl_file) == theirs["file"]
        assert REFERENCE_RETURNS[task.family] == tuple(theirs["range"])
        # d4rl's are fractions; the tolerance is float64's rounding.
        scores = normalized_score(name, RETURNS)
        np.testing.assert_allclose(scores, 100 * np.array(theirs["scores"]), rtol=1e-14, atol=0)


def steps(n):
    rng = np.random.default_rng(0)
    return {
        "observations": rng.standard_normal((n, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
        "rewards": rng.standard_normal(n).astype(np.float32),
        "terminals": np.zeros(n, bool),
        "timeouts": np.zeros(n, bool),
        # D4RL's files have more than is read here.
        "next_observations": rng.standard_normal((n, 11)).astype(np.float32),
        "infos/qpos": rng.standard_normal((n, 6)),
    }


def bits(array):
    return array.dtype, array.shape, array.tobytes()


def agree(episodes, theirs):
    """The same episodes with the same numbers, bit for bit, and terminated where d4rl's have a terminal."""
    assert episodes.lengths.tolist() == theirs["lengths"].tolist()
    for key in ("observations", "actions", "rewards"):
        assert bits(getattr(episodes, key)) == bits(theirs[key]), key
    last = episodes.offsets[1:] - 1
    assert episodes.terminated.tolist() == theirs["terminals"][last].tolist()
    ends = theirs["terminals"] | theirs["timeouts"]
    assert ends[last].all() and ends.sum() == len(episodes)


def test_episodes_of_a_made_up_file(split):
    data = steps(400)
    data["terminals"][[0, 9, 10, 30, 399 - 20]] = True  # one-step episodes: the first step, and step 10
    data["timeouts"][[20, 21, 30, 130]] = True  # another one; step 30 is both; steps 131 to 379 are one long episode
    episodes, theirs = split(data)
    agree(episodes, theirs)
    assert episodes.lengths.tolist() == [1, 9, 1, 10, 1, 9, 100, 249]
    assert episodes.terminated.tolist() == [True, True, True, False, False, True, False, True]
    # Both leave out an unfinished last episode; we say so.
    assert episodes.notes == ("dropped 20 steps of an unfinished last episode",)


@pytest.mark.parametrize("seed", range(3))
def test_episodes_of_a_file_with_random_ends(split, seed):
    data = steps(3000)
    data["terminals"], data["timeouts"] = np.random.default_rng(seed).random((2, 3000)) < 0.3**seed / 2
    agree(*split(data))


def test_difference_a_horizon_counts_from_every_episodes_first_step(split):
    """Without timeouts d4rl counts from 0 in the first episode and from 1 in all others, which it cuts one step short.

    D4RL's v2 files have timeouts, so that this shows in other files only.
    """
    data = steps(60)
    del data["timeouts"]
    data["terminals"][44] = True
    episodes, theirs = split(data, horizon=20, max_episode_steps=20)
    assert theirs["lengths"].tolist() == [20, 19, 6] and episodes.lengths.tolist() == [20, 20, 5]
    assert bits(episodes[0].rewards) == bits(theirs["rewards"][:20])
