"""Episodes to a Minari dataset, complete or not at all; minari's own writer makes the folder before it fills it."""

import copy
import io
import json
import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt

from ....base.errors import DataError, UsageError, one_line
from ....base.files import write_whole, writing
from ....base.system import sync
from ...tasks.environment import close_env, entry_point_name, make_env
from ..columns import hold_to_bounds, hold_to_choices
from ..episodes import Episodes
from .spec import WAY_OUT, minari_data_dir, read_spec

_REPEATED = "the observation behind each episode's last step was not recorded: it repeats the one before"


def write_minari(
    dataset_id: str,
    episodes: Episodes,
    *,
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None = None,
    description: str | None = None,
    reference_returns: tuple[float, float] | None = None,
    final_observations: npt.ArrayLike | None = None,
) -> Path:
    """Write episodes as the Minari dataset `dataset_id` in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`.

    They were recorded on the registered environment `env_id` (None: unknown) made with `env_kwargs`. Minari stores
    T + 1 observations of an episode of T steps: `final_observations` (E, O) are the last ones; without them the one
    before is repeated, and the description says so. `reference_returns` score 0 and 100. Returns the folder.

    Raises:
        UsageError: not a Minari id, the dataset already exists, or an argument does not fit.
        SimulationError: the environment cannot be made.
        DataError: the episodes do not fit the environment, the dataset could not be read again, or the folder cannot
            be written; nothing is left behind.
    """
    from minari.serialization import serialize_space  # on demand, as it takes a quarter of a second

    target = new_minari_folder(dataset_id)
    # The last step of each episode, again where nothing else is known.
    finals = episodes.observations[episodes.offsets[1:] - 1]
    if final_observations is None:
        description = "; ".join(filter(None, (_REPEATED, description)))
    elif np.shape(final_observations) == finals.shape:
        finals = np.asarray(final_observations, finals.dtype)
    else:
        shape = np.shape(final_observations)
        raise UsageError(f"final_observations have shape {shape}, not {finals.shape}; give one for each episode")
    env_spec, action_space = _environment(episodes, env_id, env_kwargs or {})
    image = _image(episodes, finals)
    observed = gym.spaces.Box(-np.inf, np.inf, (episodes.observation_dim,), finals.dtype.type)
    low, high = (None, None) if reference_returns is None else map(float, reference_returns)
    metadata = {
        "dataset_id": dataset_id,
        "minari_version": version("minari"),
        "data_format": "hdf5",
        "total_episodes": len(episodes),
        "total_steps": episodes.n_steps,
        "dataset_size": round(len(image) / 1e6, 1),
        "jpeg_encoding": True,
        "observation_space": serialize_space(observed),
        "action_space": serialize_space(action_space),
        "env_spec": env_spec,
        "description": description,
        "ref_min_score": low,
        "ref_max_score": high,
    }
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with writing(target, WAY_OUT):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, and hidden: Minari does not list hidden folders.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
            data = Path(beside, "set", "data")
            data.mkdir(parents=True)
            write_whole(data / "main_data.hdf5", image)
            write_whole(data / "metadata.json", json.dumps(metadata).encode())
            _check_readable(dataset_id, data / "metadata.json")
            os.rename(data.parent, new_minari_folder(dataset_id))
        sync(target.parent)
    return target


def _check_readable(dataset_id: str, file: Path) -> None:
    try:
        recorded = read_spec(file).recorded
        if recorded is not None and recorded.problem is not None:
            raise DataError(recorded.problem)
    except DataError as error:
        told = str(error).replace(f"{file}:", "")
        raise DataError(f"minari:{dataset_id}: not written, because it could not be read again: {told}") from error


def new_minari_folder(dataset_id: str) -> Path:
    """The folder of a dataset to write; UsageError: not a Minari id, or the dataset already exists."""
    target = minari_data_dir(dataset_id).parent
    if target.exists():
        raise UsageError(f"{target}: already exists; choose another id, or delete that folder")
    return target


def _environment(
    episodes: Episodes, env_id: str | None, env_kwargs: Mapping[str, Any]
) -> tuple[str | None, gym.Space[Any]]:
    """The environment's description and action space.

    Of an unknown one the space is [-1, 1], or further where the actions go; discrete actions begin at 0 there.
    """
    if env_id is None and episodes.discrete:
        first, last = min(0, int(episodes.actions.min())), int(episodes.actions.max())
        return None, gym.spaces.Discrete(last - first + 1, start=first)
    if env_id is None:
        low, high = np.minimum(-1.0, episodes.actions.min(axis=0)), np.maximum(1.0, episodes.actions.max(axis=0))
        return None, gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
    env = make_env(env_id, **env_kwargs)
    close_env(env)
    path = episodes.path or episodes.dataset
    for key, space in (("observations", env.observation_space), ("actions", env.action_space)):
        shape = getattr(episodes, key).shape[1:]
        if not isinstance(space, gym.spaces.Box if shape else gym.spaces.Discrete) or space.shape != shape:
            told = f"have {shape[0]} columns" if shape else "are integers"
            raise DataError(
                f"{path}: {key} {told}, those of {env_id} are {one_line(space)}; name the environment that the data "
                "were recorded on"
            )
    described = copy.copy(env.spec)
    assert described is not None
    if isinstance(space, gym.spaces.Discrete):
        hold_to_choices(Path(path), episodes.actions, int(space.n), int(space.start))
    elif isinstance(space, gym.spaces.Box):
        bounds = space.low.astype(np.float32), space.high.astype(np.float32)  # as they are read again
        hold_to_bounds(Path(path), episodes.actions, bounds, False, [])
    # A class that was registered itself has no place in JSON.
    described.entry_point = entry_point_name(env_id)
    try:
        return described.to_json(), space
    except (TypeError, ValueError) as error:
        raise UsageError(f"{env_id}: its arguments cannot be written as JSON ({error}); use plain values") from error


def _image(episodes: Episodes, finals: npt.NDArray[np.float32]) -> memoryview:
    """The content of `main_data.hdf5`: a group for each episode, whose arrays minari can lengthen."""
    image = io.BytesIO()  # as in `write_hdf5`
    with h5py.File(image, "w", track_order=True) as file:
        for e, episode in enumerate(episodes):
            ended = np.arange(1, len(episode) + 1) == len(episode)
            group = file.create_group(f"episode_{e}")
            group.attrs.update({"id": e, "total_steps": len(episode)})
            arrays = {
                "observations": np.concatenate([episode.observations, finals[e : e + 1]]),
                "actions": episode.actions,
                "rewards": episode.rewards,
                "terminations": ended & episode.terminated,
                "truncations": ended & (not episode.terminated),
            }
            for key, array in arrays.items():
                group.create_dataset(key, data=array, chunks=True, maxshape=(None, *array.shape[1:]))
    return image.getbuffer()
