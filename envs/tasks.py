"""What the user asks for to a task and its data: D4RL's table, Minari's datasets, an environment of your own."""

from dataclasses import dataclass, replace
from pathlib import Path

from .d4rl import read_hdf5
from .episodes import Episodes
from .errors import DataError, UsageError
from .hdf5_guard import try_file
from .minari import minari_id, read_minari
from .own import check_own_name, own_task
from .sources import check_fits, is_path, load_episodes
from .specs import TASKS, Reference, Task, get_task

_MINARI_ID = "minari:"


def is_own(source: str, env_id: str | None) -> bool:
    """Whether these arguments of `load_task` mean data outside the table."""
    return env_id is not None or source.startswith(_MINARI_ID)


def task_name(name: str, source: str, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    Raises:
        UnknownTaskError: a name that must be the table's is not.
        UsageError: a name that must be your own is the table's, or not fit for a path.
    """
    return check_own_name(name) if is_own(source, env_id) else get_task(name).name


@dataclass(frozen=True)
class _Asked:
    """The arguments of `load_task`."""

    name: str
    source: str
    env_id: str | None
    reference: Reference | None
    clip_actions: bool
    max_episode_steps: int | None
    progress: bool


def load_task(
    name: str,
    source: str = "auto",
    *,
    env_id: str | None = None,
    reference: Reference | None = None,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    progress: bool = True,
) -> tuple[Task, Episodes]:
    """A task and its data.

    `source` is one of `load_episodes`' for a name of the table; "minari": Minari's dataset for that name, which is
    another and is scored in the environment that it was recorded on; "minari:ID": any Minari dataset, under a name of
    your own; or the path of a file that was recorded in your own environment `env_id`. Of your own, `reference` gives
    the returns that score 0 and 100 (default: the Minari dataset's, where it has them), and the target return is the
    data's best.

    Raises:
        UsageError: `env_id` without a file, `reference` for a task of the table, or an environment that cannot be
            learnt.
        EnvsError: as `load_episodes`, `read_minari` and `own_task`.
    """
    name = task_name(name, source, env_id)
    if reference is not None and not is_own(source, env_id):
        raise UsageError(f"{name} has reference returns; others go with --env-id or a Minari dataset")
    asked = _Asked(name, source, env_id, reference, clip_actions, max_episode_steps, progress)
    if source == "minari" or source.startswith(_MINARI_ID):
        own, episodes = _load_minari(asked)
    elif env_id is not None:
        own, episodes = _load_file(asked, env_id)
    else:
        return get_task(name), load_episodes(
            name, source, clip_actions=clip_actions, max_episode_steps=max_episode_steps, progress=progress
        )
    check_fits(own, episodes)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(own, target_returns=targets), episodes


def _load_file(asked: _Asked, env_id: str) -> tuple[Task, Episodes]:
    if not is_path(asked.source):
        raise UsageError(f"--env-id {env_id} needs data of its own: --source PATH of an HDF5 file in D4RL's layout")
    own = own_task(asked.name, env_id, reference=asked.reference, max_episode_steps=asked.max_episode_steps)
    try_file(Path(asked.source))
    episodes = read_hdf5(
        asked.source,
        dataset=asked.name,
        observation_dim=own.observation_dim,
        action_dim=own.action_dim,
        action_low=own.action_low,
        action_high=own.action_high,
        max_episode_steps=asked.max_episode_steps,
        clip_actions=asked.clip_actions,
    )
    return own, episodes


def _load_minari(asked: _Asked) -> tuple[Task, Episodes]:
    dataset_id = minari_id(asked.name) if asked.source == "minari" else asked.source.removeprefix(_MINARI_ID)
    data = read_minari(dataset_id, progress=asked.progress, clip_actions=asked.clip_actions)
    env_id = data.episodes.env_id or asked.env_id
    if env_id is None:
        raise UsageError(f"{dataset_id} does not say which environment it was recorded on; give it with --env-id")
    if asked.env_id not in (None, env_id):
        raise UsageError(f"--env-id {asked.env_id}: {dataset_id} was recorded on {env_id}; leave --env-id out")
    reference = asked.reference
    if reference is None and data.reference_returns is not None:
        reference = Reference("Minari's reference returns", *data.reference_returns)
    own = own_task(
        asked.name,
        env_id,
        env_kwargs=data.env_kwargs,
        reference=reference,
        max_episode_steps=asked.max_episode_steps or data.max_episode_steps,
    )
    sizes = (data.episodes.observation_dim, data.episodes.action_dim)
    if sizes != (own.observation_dim, own.action_dim):
        raise DataError(
            f"{data.episodes.path}: has {sizes[0]} observation and {sizes[1]} action columns, {env_id} has "
            f"{own.observation_dim} and {own.action_dim}; choose the environment it was recorded on"
        )
    return own, data.episodes
