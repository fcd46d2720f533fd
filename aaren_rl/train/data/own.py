"""Episodes of a Python program as the settings of a run: a file beside it, and the environment by its id."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym

from ...base.errors import UsageError
from ...base.files import writing
from ...envs import Episodes
from ...envs.data.hdf5 import write_hdf5
from ...envs.load import default_name


def as_settings(episodes: object, env: object, out: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """The settings of a training on `episodes`, and the file that they name as `source`; `save` writes it.

    Its name has a hash of the data: a run on the same data finds it, and another does not replace it. Raises UsageError
    where an argument is of another kind.
    """
    if not isinstance(episodes, Episodes):
        raise UsageError("episodes: make them with Episodes.from_arrays or .from_trajectories")
    if "source" in settings:
        raise UsageError("source: the data are those of episodes; leave it out")
    made = dict(settings)
    if not isinstance(env, str | None):
        made |= _of_environment(env, settings)
        env = None
    name = env or default_name(episodes.dataset or "own-data")
    path = out / name / f"data-{episodes.sha256()[:12]}.hdf5"
    return {**made, "env": name, "source": str(path)}, path


def _of_environment(env: Any, settings: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401  a Gymnasium environment
    """The settings that make a Gymnasium environment again."""

    if not isinstance(env, gym.Env):
        raise UsageError(f"env: must be a name or a Gymnasium environment, not {type(env).__name__}")
    spec: gym.envs.registration.EnvSpec | None = env.spec
    if spec is None or spec.id not in gym.registry:
        raise UsageError("env: is not registered; gymnasium.register it and give it by its id, env_id=ID")
    if "env_id" in settings:
        raise UsageError("env_id: env is the environment; leave one out")
    known = gym.registry[spec.id]
    if spec.additional_wrappers != known.additional_wrappers:
        raise UsageError(f"env: {spec.id} is wrapped; gymnasium.register what makes it under an id of its own")
    made: dict[str, Any] = {"env_id": spec.id}
    if kwargs := {key: value for key, value in spec.kwargs.items() if known.kwargs.get(key) != value}:
        made["env_kwargs"] = json.dumps(kwargs)
    if spec.max_episode_steps != known.max_episode_steps:
        made["max_episode_steps"] = spec.max_episode_steps
    return made


def save(episodes: Episodes, path: Path) -> None:
    """Write the data unless they are there; raises the errors of `writing`."""
    if not path.exists():
        with writing(path, "choose another folder (out)"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_hdf5(path, episodes, {"origin": "episodes given to train_policy"})
