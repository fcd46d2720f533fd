"""Episodes to a Minari dataset that `minari.load_dataset` opens, complete or not at all."""

import copy
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec

from .checks import hold_to_bounds
from .episodes import Episodes
from .errors import DataError, UsageError
from .files import sync
from .minari_spec import entry_point_name, minari_data_dir, writing
from .specs import make_env

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

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

    `env_id` is the registered environment that they were recorded on (None: unknown), made with `env_kwargs` for its
    description and its action space. Minari stores T + 1 observations of an episode of T steps: `final_observations`
    (E, O) are the last ones; without them the one before is repeated, and the description says so.
    `reference_returns` are those that score 0 and 100. Returns the dataset's folder.

    Raises:
        UsageError: not a Minari id, such a dataset is there already, or an argument does not fit.
        SimulationError: the environment cannot be made.
        DataError: the episodes do not fit the environment, or the folder cannot be written; nothing is left behind.
    """
    target = minari_data_dir(dataset_id).parent
    if target.exists():
        raise UsageError(f"{target}: is there already; choose another id, or delete that folder")
    finals = None if final_observations is None else np.asarray(final_observations, np.float32)
    wanted = (len(episodes), episodes.observation_dim)
    if finals is not None and finals.shape != wanted:
        raise UsageError(f"final_observations have shape {finals.shape}, not {wanted}; give one for each episode")
    env_spec, action_space = _environment(episodes, env_id, dict(env_kwargs or {}))
    metadata: dict[str, Any] = {"dataset_id": dataset_id}
    metadata["description"] = "; ".join(filter(None, (None if finals is not None else _REPEATED, description)))
    if reference_returns is not None:
        metadata["ref_min_score"], metadata["ref_max_score"] = map(float, reference_returns)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, and hidden: Minari does not list hidden folders.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
            whole = Path(beside, "set")
            _fill(whole / "data", metadata, episodes, finals, action_space, env_spec)
            _move(whole, target)
        sync(target.parent)
    return target


def _environment(
    episodes: Episodes, env_id: str | None, env_kwargs: dict[str, Any]
) -> tuple[EnvSpec | None, gym.spaces.Box]:
    """The environment's description and action space; of an unknown one [-1, 1], or further where the actions go."""
    if env_id is None:
        low, high = np.minimum(-1.0, episodes.actions.min(axis=0)), np.maximum(1.0, episodes.actions.max(axis=0))
        return None, gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
    try:
        json.dumps(env_kwargs)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the environment's arguments cannot be written as JSON ({error}); use plain values"
        ) from error
    env = make_env(env_id, **env_kwargs)
    try:
        spaces = {"observations": env.observation_space, "actions": env.action_space}
        spec = copy.copy(env.spec)
    finally:
        env.close()
    for key, space in spaces.items():
        columns = getattr(episodes, key).shape[1]
        if not isinstance(space, gym.spaces.Box) or space.shape != (columns,):
            raise DataError(
                f"{episodes.path or episodes.dataset}: {key} have {columns} columns, those of {env_id} are {space}; "
                "name the environment that the data were recorded on"
            )
    assert spec is not None and isinstance(env.action_space, gym.spaces.Box)
    path = Path(episodes.path or episodes.dataset)
    hold_to_bounds(path, episodes.actions, (env.action_space.low, env.action_space.high), False, [])
    # A class that was registered itself has no place in JSON.
    spec.entry_point = entry_point_name(env_id)
    return spec, env.action_space


def _fill(
    data: Path,
    metadata: Mapping[str, Any],
    episodes: Episodes,
    finals: npt.NDArray[np.float32] | None,
    action_space: gym.spaces.Box,
    env_spec: EnvSpec | None,
) -> None:
    """Write the dataset's `data` folder, as minari's own DataCollector does."""
    import minari
    from minari.dataset.minari_storage import MinariStorage

    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (episodes.observation_dim,), np.float32),
        action_space=action_space,
        env_spec=env_spec,
    )
    storage.update_metadata({**metadata, "minari_version": minari.__version__})
    storage.update_episodes(_buffers(episodes, finals))
    for file in data.iterdir():
        sync(file)
    sync(data)


def _buffers(episodes: Episodes, finals: npt.NDArray[np.float32] | None) -> Iterator["EpisodeBuffer"]:
    from minari.data_collector import EpisodeBuffer

    for e, episode in enumerate(episodes):
        last = episode.observations[-1] if finals is None else finals[e]
        ended = np.arange(1, len(episode) + 1) == len(episode)
        yield EpisodeBuffer(
            observations=np.concatenate([episode.observations, last[None]]),
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=ended & episode.terminated,
            truncations=ended & (not episode.terminated),
        )


def _move(whole: Path, target: Path) -> None:
    try:
        os.rename(whole, target)
    except OSError as error:
        if target.exists():
            raise UsageError(f"{target}: another process made it meanwhile; choose another id") from error
        raise
