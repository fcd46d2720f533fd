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
from aaren_rl.envs.data.files import read_file
from aaren_rl.envs.load import d4rl_dataset_dir, d4rl_url

PACKAGE = os.environ.get("AAREN_RL_D4RL_PACKAGE")
# Where the variable is set, everything that is wrong with the folder is a failure.
if not PACKAGE:
    reason = "no d4rl package; scripts/install_d4rl DIR installs it, AAREN_RL_D4RL_PACKAGE=DIR names it"
    pytest.skip(reason, allow_module_level=True)
RETURNS = [-500.0, 0.0, 1234.5, 3234.3, 1e4]


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """d4rl makes its dataset folder when it is imported."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "datasets"))


def probe(*files):
    command = [sys.executable, "-P", Path(__file__).with_name("d4rl_probe.py"), json.dumps(RETURNS), *files]
    variables = {"PYTHONPATH": PACKAGE, "D4RL_SUPPRESS_IMPORT_ERROR": "1"}
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_addresses_files_and_scores():
    tables = json.loads(probe())
    assert Path(tables["path"]).is_relative_to(Path(PACKAGE).absolute()) and tables["version"] == "1.1"
    ours = re.compile(r"(halfcheetah|hopper|walker2d|ant)-.*-v2")
    assert {name for name in tables["tasks"] if ours.fullmatch(name)} == {f"{name}-v2" for name in TASKS}
    assert len(TASKS) == 24
    for name, task in TASKS.items():
        theirs = tables["tasks"][f"{name}-v2"]
        assert d4rl_url(task) == theirs["url"]
        assert str(d4rl_dataset_dir() / task.d4rl_file) == theirs["file"]
        assert REFERENCE_RETURNS[task.family] == tuple(theirs["range"])
        # d4rl's are fractions; the tolerance is float64's rounding.
        scores = normalized_score(name, RETURNS)
        np.testing.assert_allclose(scores, 100 * np.array(theirs["scores"]), rtol=1e-14, atol=0)


def test_episodes_of_files_with_random_ends(tmp_path):
    """Ends of both kinds, also at one step, after one step, and before steps that no end follows.

    Where most ends follow an end, which no file of D4RL has, a flag that stays marked is one end here.
    """
    files = [tmp_path / f"{seed}.hdf5" for seed in range(3)]
    for seed, path in enumerate(files):
        rng = np.random.default_rng(seed)
        with h5py.File(path, "w") as file:
            # D4RL's files have more than is read here.
            for key, columns in (("observations", 11), ("next_observations", 11), ("infos/qpos", 6)):
                file[key] = rng.standard_normal((3000, columns)).astype(np.float32)
            file["actions"] = rng.uniform(-1, 1, (3000, 3)).astype(np.float32)
            file["rewards"] = rng.standard_normal(3000).astype(np.float32)
            file["terminals"], file["timeouts"] = rng.random((2, 3000)) < 0.3 ** (seed + 1) / 2
    probe(*files)
    for path in files:
        episodes, theirs = read_file(path), np.load(f"{path}.npz")
        assert episodes.lengths.tolist() == theirs["lengths"].tolist()
        for key in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(episodes, key), theirs[key], strict=True)
        last = episodes.offsets[1:] - 1
        assert episodes.terminated.tolist() == theirs["terminals"][last].tolist()
        ends = theirs["terminals"] | theirs["timeouts"]
        assert ends[last].all() and ends.sum() == len(episodes)
