"""The environments that a Minari dataset describes: believed where Gymnasium's registry has them, never imported."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import WrapperSpec

from ...tasks.environment import entry_point_name, is_plain_argument

# Wrappers that change neither what an environment returns nor when it ends, so leaving them out changes no score.
_WATCHING = {
    "Monitor",
    "RecordEpisodeStatistics",
    "RecordVideo",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "DataCollector",
}
_WATCHING |= {"HumanRendering", "RenderCollection", "ObstructView", "AddWhiteNoise", "DtypeObservation", "ClipAction"}
_FLATTENING = {"FlattenObservation", "TimeLimit"}  # those that are made again where they change something


@dataclass(frozen=True)
class Described:
    """An environment of a dataset's metadata; `problem` says why it cannot be played as described, and what to do.

    `clips`: actions were clipped to its bounds. `notes` list what differs here.
    """

    env_id: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    clips: bool = False
    notes: tuple[str, ...] = ()
    problem: str | None = None


def describe(where: str, spec: dict[str, Any]) -> Described:
    """The environment of a description in JSON, `where` in messages; ValueError: it cannot be one."""
    env_id, entry = spec.get("id"), spec.get("entry_point")
    given = f"{where} gives {_shown(env_id)} the entry point {_shown(entry)} (not imported)"
    if not isinstance(env_id, str) or ":" in env_id:
        raise ValueError(f"{given}, which is no environment's id")
    if env_id not in gym.registry:
        way_out = "--register MODULE imports what registers it, --env-id ID names another"
        return Described(env_id, problem=f"{given}, Gymnasium knows no such environment; {way_out}")
    wrappers, kwargs = spec.get("additional_wrappers") or [], spec.get("kwargs") or {}
    if not isinstance(wrappers, list) or not isinstance(kwargs, dict):
        raise ValueError(f"{where}.kwargs or additional_wrappers have no names")
    notes = []
    if _of_ours(entry) != _of_ours(known := entry_point_name(env_id)):
        notes.append(f"{given}; Gymnasium has {known} here, which is used")
    added = _added(env_id, wrappers)
    names, limit = [str(wrapper.get("name")) for wrapper in added], _limit(spec, added)
    own = json.loads(json.dumps(gym.registry[env_id].kwargs, default=str))
    # What the registry passes on itself is not the file's doing, and may name the environment's own files.
    kwargs = {key: value for key, value in kwargs.items() if key not in own or value != own[key]}
    if kwargs.pop("render_mode", None) is not None:
        notes.append("left out the environment's render_mode")
    if watching := [name for name in names if name in _WATCHING]:
        notes.append(f"left out wrappers that only watch: {', '.join(watching)}")
    foreign = [name for wrapper, name in zip(added, names, strict=True) if name not in _WATCHING | _FLATTENING]
    if foreign:
        notes.append(
            f"recorded through wrappers of other packages, which are left out ({_shown(foreign)}; not imported): if "
            f"they change observations, rewards or ends, register the wrapped environment and name it with --env-id"
        )
    problem = next(_problems(where, env_id, added, kwargs), None)
    return Described(env_id, kwargs, limit, "ClipAction" in names, tuple(notes), problem)


def _problems(where: str, env_id: str, added: list[dict[str, Any]], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    ours = "gymnasium.", "aaren_rl."
    changing = [str(wrapper.get("name")) for wrapper in added if str(wrapper.get("entry_point")).startswith(ours)]
    if changing := [name for name in changing if name not in _WATCHING | _FLATTENING]:
        yield (
            f"{where} was recorded through wrappers ({_shown(changing)}; not imported), without which {env_id} is "
            f"another task; register the wrapped environment and name it with --env-id"
        )
    for key, value in kwargs.items():
        if not is_plain_argument(key, value):
            yield (
                f"{where}.kwargs has {_shown(key)} = {_shown(value)}; only finite numbers, words and lists of them are "
                "passed on to an environment, and nothing that names files or modules; register the environment with "
                "it and name that with --env-id"
            )


def _limit(spec: dict[str, Any], added: list[dict[str, Any]]) -> int | None:
    """The least time limit of a description and its wrappers; ValueError: one is none."""
    timed = [wrapper.get("kwargs") or {} for wrapper in added if wrapper.get("name") == "TimeLimit"]
    limits = [spec.get("max_episode_steps"), *(kwargs.get("max_episode_steps") for kwargs in timed)]
    known = [limit for limit in limits if limit is not None]
    if any(type(limit) is not int or not 0 < limit < 2**53 for limit in known):
        raise ValueError(f"max_episode_steps is {_shown(known)}, not a number of at least 1")
    return min(known, default=None)


def _added(env_id: str, wrappers: list[Any]) -> list[dict[str, Any]]:
    """A description's wrappers, without those that the environment is registered with."""
    shown = [wrapper if isinstance(wrapper, dict) else {"name": wrapper} for wrapper in wrappers]
    own = gym.registry[env_id].additional_wrappers
    return shown[len(own) :] if len(own) <= len(shown) and all(map(_is_wrapper, shown, own)) else shown


def _is_wrapper(described: dict[str, Any], own: WrapperSpec) -> bool:
    # Arguments are None where the wrapper does not record them.
    same = (described.get("name"), _of_ours(described.get("entry_point"))) == (own.name, _of_ours(own.entry_point))
    return same and described.get("kwargs") in (None, json.loads(json.dumps(own.kwargs, default=str)))


def _of_ours(entry_point: object) -> object:
    """An entry point without the module of this project that it is in, which other versions have elsewhere."""
    return re.sub(r"^aaren_rl\.[\w.]+:", "aaren_rl:", entry_point) if isinstance(entry_point, str) else entry_point


def _shown(value: object) -> str:
    return ascii(value)[:80]
