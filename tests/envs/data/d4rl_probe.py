"""What D4RL's own package says: run by test_d4rl_package.py in a process that can import it.

d4rl_probe.py tables RETURN ...             prints d4rl's tables as JSON, with the normalised scores of the returns
d4rl_probe.py split FILE HORIZON RESULT     reads and splits a file with d4rl, and writes the trajectories to RESULT
"""

import json
import sys
from importlib import metadata
from types import SimpleNamespace

import d4rl
import d4rl.infos
import h5py
import numpy as np
from d4rl import offline_env


def tables(*returns):
    tasks = {
        name: {
            "url": url,
            "file": offline_env.filepath_from_url(url),
            "range": [d4rl.infos.REF_MIN_SCORE[name], d4rl.infos.REF_MAX_SCORE[name]],
            "scores": [d4rl.get_normalized_score(name, float(value)) for value in returns],
        }
        for name, url in d4rl.infos.DATASET_URLS.items()
        if name in d4rl.infos.REF_MIN_SCORE
    }
    package = {"path": d4rl.__file__, "version": metadata.version("d4rl"), "folder": offline_env.DATASET_PATH}
    print(json.dumps(package | {"tasks": tasks}))


def split(path, horizon, result):
    # D4RL's base class without an environment behind it: its reader and sequence_dataset look at nothing but these.
    env = offline_env.OfflineEnv()
    with h5py.File(path) as file:
        env.observation_space, env.action_space = (
            SimpleNamespace(shape=file[key].shape[1:]) for key in ("observations", "actions")
        )
    env._max_episode_steps = int(horizon)
    trajectories = list(d4rl.sequence_dataset(env, env.get_dataset(path)))
    flat = {key: np.concatenate([part[key] for part in trajectories]) for key in trajectories[0]}
    np.savez(result, **flat, lengths=[len(part["rewards"]) for part in trajectories])


if __name__ == "__main__":
    {"tables": tables, "split": split}[sys.argv[1]](*sys.argv[2:])
