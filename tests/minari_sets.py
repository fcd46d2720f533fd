"""A Minari dataset as minari's own collector records it, ways to spoil one, and what reading one is held to."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import checks
import h5py
import numpy as np

from aaren_rl.envs import Episodes, load_task

ID = "test/hopper/random-v0"

# minari takes jax for one function on nested containers; on the arrays here that is a plain call.
_RECORD = """
import sys, types
def tree_map(function, tree, *rest):
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in rest)) for key in tree}
    return function(tree, *rest)
sys.modules["jax"] = sys.modules["jax.tree_util"] = jax = types.ModuleType("jax")
jax.tree_util, jax.tree_map = jax, tree_map
import gymnasium as gym, minari
env = minari.DataCollector(gym.make("Hopper-v5"))
env.action_space.seed(0)
for episode in range(4):
    env.reset(seed=100 + episode)
    for step in range(200 if episode < 3 else 5):
        if any(env.step(env.action_space.sample())[2:4]):
            break
env.create_dataset(sys.argv[1], algorithm_name="random", ref_min_score=-20.0, ref_max_score=3000.0)
"""


def record(root: Path) -> Path:
    """Three episodes of uniform actions in Hopper-v5 up to the fall, and one that is cut after five steps."""
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(root)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", _RECORD, ID], env=environment, check=True)
    return root / ID / "data"


@contextmanager
def metadata(data: Path):
    """The metadata as a dict, written back afterwards."""
    path = data / "metadata.json"
    values = json.loads(path.read_text())
    yield values
    path.write_text(json.dumps(values))


@contextmanager
def spec(data: Path, key="env_spec"):
    """The environment's description in the metadata, written back afterwards."""
    with metadata(data) as values:
        inner = json.loads(values.get(key) or values["env_spec"])
        yield inner
        values[key] = json.dumps(inner)


@contextmanager
def episode(data: Path, number: int = 1):
    """An episode's group, open for writing."""
    with h5py.File(data / "main_data.hdf5", "a") as file:
        yield file[f"episode_{number}"]


def refused(*parts, **options):
    """Loading ID ends in one line with these parts."""
    checks.refused(lambda: load_task("mine", f"minari:{ID}", progress=False, **options), *parts)


def small(seed=0, observation_dim=11, action_dim=3, lengths=(4, 1, 7)):
    """Episodes of random numbers."""
    steps = checks.columns(sum(lengths), observation_dim, action_dim, seed)
    return Episodes(**steps, offsets=np.cumsum([0, *lengths]), terminated=np.arange(len(lengths)) % 2 == 0)
