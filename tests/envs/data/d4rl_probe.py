"""What D4RL's own package says: run by test_d4rl_package.py in a process that can import it.

Prints d4rl's tables as JSON, with the normalized scores of RETURNS (a JSON list); reads and splits each FILE with d4rl,
and writes the trajectories to FILE.npz.
"""

import json
import sys
from importlib import metadata
from types import SimpleNamespace

import d4rl
import d4rl.infos
import numpy as np
from d4rl import offline_env

returns, *files = sys.argv[1:]
tasks = {
    name: {
        "url": url,
        "file": offline_env.filepath_from_url(url),
        "range": [d4rl.infos.REF_MIN_SCORE[name], d4rl.infos.REF_MAX_SCORE[name]],
        "scores": [d4rl.get_normalized_score(name, value) for value in json.loads(returns)],
    }
    for name, url in d4rl.infos.DATASET_URLS.items()
    if name in d4rl.infos.REF_MIN_SCORE
}
print(json.dumps({"path": d4rl.__file__, "version": metadata.version("d4rl"), "tasks": tasks}))
# D4RL's base class without an environment behind it: its reader and sequence_dataset look at nothing but these.
env = offline_env.OfflineEnv()
env.observation_space, env.action_space = SimpleNamespace(shape=(11,)), SimpleNamespace(shape=(3,))
env._max_episode_steps = 1000
for file in files:
    trajectories = list(d4rl.sequence_dataset(env, env.get_dataset(file)))
    flat = {key: np.concatenate([part[key] for part in trajectories]) for key in trajectories[0]}
    np.savez(f"{file}.npz", **flat, lengths=[len(part["rewards"]) for part in trajectories])
