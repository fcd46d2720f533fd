"""Tasks: environment, sizes, target returns, D4RL file and scores of a name like `hopper-medium`; built-in ones, too.

Their data are made on first use; how to add one, see `BUILT_IN`.
"""

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ...base.errors import UnknownTaskError, UsageError, one_line
from .spaces import Layout

LEVELS = ("random", "medium", "medium-replay", "full-replay", "medium-expert", "expert")

# Names and addresses of D4RL's files are those of `d4rl.infos` (d4rl 1.1).
D4RL_SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl"

# D4RL's reference returns and data are those of the -v2 dynamics, which Gymnasium carries on as -v4. The -v5
# environments are other tasks (Walker2d's foot friction, the healthy reward and the contact cost changed), so a
# normalized score computed on them would not be comparable with any published one.
ENV_VERSION = 4

# D4RL's Ant files carry 84 contact-force columns behind the 27 that Ant-v4 returns by default; all of them are zero.
ANT_OBSERVATION_DIM = 27
ANT_D4RL_OBSERVATION_DIM = 111


class Reference(NamedTuple):
    """The returns that normalized scores of 0 and 100 stand for, and whose they are ("D4RL v2")."""

    name: str
    low: float
    high: float


def is_d4rl_scale(reference: str | None) -> bool:
    """Whether a reference, by its name, is D4RL's: a random policy scores 0, an expert policy 100."""
    return reference is not None and reference.startswith("D4RL")


# Family: (random policy's, expert policy's) mean return, the `-v2` entries of `d4rl.infos`.
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A simulated environment to learn from offline data and to be scored in.

    `horizon` is the number of steps after which an episode is cut; `target_returns` are undiscounted sums of rewards
    to ask a return-conditioned policy for, the default first; `action_low` and `action_high` (A,) bound the actions;
    `env_kwargs` go to `gymnasium.make`. Without a `reference` there are no normalized scores. Discrete actions are
    `n_actions` integers from `action_start` on, `action_dim` is their number, and they have no bounds. `layout` is that
    of observations that are no vectors before they are flattened. `env_id` is empty where nothing can be simulated.
    """

    name: str
    env_id: str
    observation_dim: int
    action_dim: int
    horizon: int
    target_returns: tuple[float, ...] = ()
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    n_actions: int | None = None
    action_start: int = 0
    layout: Layout | None = None

    @property
    def data_horizon(self) -> int:
        """Steps of the longest episode that its data may have."""
        return self.horizon


@dataclass(frozen=True, kw_only=True)
class D4RLTask(Task):
    """A task of D4RL's table; its target returns are those of D4RL papers (6000 and 3000 for Ant)."""

    family: str
    level: str
    d4rl_file: str


def _family_tasks(env: str, observation_dim: int, action_dim: int, targets: tuple[float, ...]) -> dict[str, D4RLTask]:
    family = env.lower()
    files = {level: f"{family}_{level.replace('-', '_')}-v2.hdf5" for level in LEVELS}
    return {
        f"{family}-{level}": D4RLTask(
            name=f"{family}-{level}",
            family=family,
            level=level,
            env_id=f"{env}-v{ENV_VERSION}",
            observation_dim=observation_dim,
            action_dim=action_dim,
            horizon=1000,
            target_returns=targets,
            action_low=(-1.0,) * action_dim,
            action_high=(1.0,) * action_dim,
            reference=Reference("D4RL v2", *REFERENCE_RETURNS[family]),
            d4rl_file=file,
        )
        for level, file in files.items()
    }


TASKS: dict[str, D4RLTask] = {
    **_family_tasks("HalfCheetah", 17, 6, (12000.0, 6000.0)),
    **_family_tasks("Hopper", 11, 3, (3600.0, 1800.0)),
    **_family_tasks("Walker2d", 17, 6, (5000.0, 2500.0)),
    **_family_tasks("Ant", ANT_OBSERVATION_DIM, 8, (6000.0, 3000.0)),
}


# Built-in tasks

# Steps of a T-maze's corridor: those of its data, and the most that it may be evaluated at.
CORRIDORS = (20, 200)
LONGEST = 1_000_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a task of one's own, safe as a part of a path
_CORRIDOR = re.compile(r"(tmaze|tmaze-discrete)-([1-9][0-9]{0,6})")


@dataclass(frozen=True, kw_only=True)
class LocalTask(Task):
    """A built-in task.

    Its data are those of the task `dataset`, its own or another's, which `make_episodes` of the module `made_by` in
    envs/local makes. `policy` says in a line what acts in them.
    `settings` are those of `train` that differ from the preset `default`, by name.
    """

    dataset: str
    made_by: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data_horizon(self) -> int:
        """The time limit of the task whose data these are."""
        return BUILT_IN[self.dataset].horizon


# One policy recorded them, and the claims of docs/memory.md are of runs without dropout.
ALIKE: dict[str, Any] = {"draws": "uniform", "dropout": 0.0, "action_dropout": 0.0}
WHOLE = {**ALIKE, "tbptt_windows": 0.0}  # what begins in mid-episode has not seen what must be remembered


_TMAZE = LocalTask(
    name="tmaze",
    env_id="aaren_rl/TMaze-v0",
    observation_dim=3,
    action_dim=1,
    horizon=CORRIDORS[1],
    target_returns=(1.0,),
    action_low=(-1.0,),
    action_high=(1.0,),
    reference=Reference("success in percent, chance is 50", 0.0, 1.0),
    dataset="tmaze",
    made_by="tmaze",
    policy="uniform random actions up to 0.3 in the corridor, right or wrong by chance at the junction",
    settings={"return_scale": 1.0, **WHOLE},
)
_DISCRETE: dict[str, Any] = {"action_dim": 2, "n_actions": 2, "action_low": (), "action_high": ()}
_TMAZE_DISCRETE = replace(
    _TMAZE,
    name="tmaze-discrete",
    env_id="aaren_rl/TMazeDiscrete-v0",
    dataset="tmaze-discrete",
    policy="random actions in the corridor, right or wrong by chance at the junction",
    **_DISCRETE,
)
_REACHER = LocalTask(
    name="reacher-recall",
    env_id="aaren_rl/Reacher-Recall-v0",
    observation_dim=9,
    action_dim=2,
    horizon=1000,
    target_returns=(-2.6,),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    # Means of 200 episodes; a slow test in tests/envs/local/test_reacher.py measures both.
    reference=Reference("random actions 0, the controller that sees the target 100", -245.0, -2.6),
    dataset="reacher-recall",
    made_by="reacher",
    policy="a controller that sees the target, with noise on its torques",
    settings={"return_scale": 100.0, **WHOLE},
)
_CARTPOLE = LocalTask(
    name="cartpole-medium-replay",
    env_id="CartPole-v1",
    observation_dim=4,
    horizon=500,
    target_returns=(500.0,),
    reference=Reference("random actions score 0, the longest episode 100", 22.0, 500.0),
    dataset="cartpole-medium-replay",
    made_by="cartpole",
    policy="replay-like: a linear controller with fewer and fewer random actions, not a replay buffer",
    settings={"return_scale": 100.0, **ALIKE},
    **_DISCRETE,
)


def _positions(env: str, observation_dim: int) -> LocalTask:
    full = TASKS[f"{env.lower()}-medium"]
    name = f"{full.family}-p-{full.level}"
    shared = {item.name: getattr(full, item.name) for item in fields(Task)}
    own = {"name": name, "env_id": f"aaren_rl/{env}-P-v4", "observation_dim": observation_dim, "dataset": name}
    policy = f"that of the local set {full.name}, whose velocities are left out"
    return LocalTask(**(shared | own), made_by="positions", policy=policy, settings=ALIKE)


# To add a task: a LocalTask here, and a file in envs/local with its environment, which a line in environment.py
# registers, and the function that makes its data. All else finds it by its name.
_MEMORY = (_TMAZE, _TMAZE_DISCRETE, _REACHER, _positions("Hopper", 5), _positions("Walker2d", 8))
BUILT_IN: dict[str, LocalTask] = {task.name: task for task in (*_MEMORY, _CARTPOLE)}


def corridor(name: str) -> LocalTask | None:
    """The T-maze of N steps that "tmaze-N" or "tmaze-discrete-N" names, N from 2 to LONGEST; None for others."""
    match = _CORRIDOR.fullmatch(name)
    if match is None or not 2 <= (steps := int(match[2])) <= LONGEST:
        return None
    return replace(BUILT_IN[match[1]], name=name, horizon=steps, env_kwargs={"length": steps})


# From names to tasks and scores


def find_task(name: str) -> D4RLTask | LocalTask | None:
    """The task of an exact name, D4RL's or built-in; None where there is none."""
    return TASKS.get(name) or BUILT_IN.get(name) or corridor(name)


def get_task(name: str) -> D4RLTask | LocalTask:
    """Look a task up by its exact name; every name that becomes part of a path goes through here first.

    UnknownTaskError: there is no such task; the message has the nearest name, or all of them.
    """
    if (task := find_task(name)) is not None:
        return task
    shown = repr(name if len(name) <= 60 else name[:57] + "...")
    spelled, known = name[:60].lower().replace("_", "-"), [*TASKS, *BUILT_IN]
    near = difflib.get_close_matches(spelled, known, n=1, cutoff=0.75)
    family = [other for other in known if other.startswith(f"{spelled.split('-')[0]}-")]
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(family or known)}"
    if spelled.startswith("tmaze-"):
        hint = f"a corridor of N steps is tmaze-N or tmaze-discrete-N, with N from 2 to {LONGEST:,}"
    if "/" in name:
        hint = f"a Minari dataset is minari:{shown[1:-1]}"
    raise UnknownTaskError(f"unknown task {shown}; {hint}")


def is_safe_name(name: str) -> bool:
    """Whether a name may become part of a path."""
    return _NAME.fullmatch(name) is not None


def check_own_name(name: str) -> str:
    """A name that may become part of a path and is not one of the table's; UsageError: it is no such name."""
    if not is_safe_name(name):
        raise UsageError(f"name {name[:60]!r}: use letters, digits, . _ and -, up to 100, a letter or digit first")
    if (task := find_task(name)) is not None:
        way_out = "give data of another environment a name of their own (--env)"
        raise UsageError(f"{name} is simulated on {task.env_id}; {way_out}")
    return name


def check_reference(reference: Reference | None) -> None:
    """Raises UsageError where reference returns do not rise."""
    if reference is not None and not reference.high > reference.low:
        raise UsageError(f"the reference returns {reference.low:g} and {reference.high:g} must rise")


@overload
def normalized_score(name: str | Reference, returns: float) -> float: ...
@overload
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> npt.NDArray[np.float64]: ...
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> float | npt.NDArray[np.float64]:
    """Normalize undiscounted episode returns: 100 * (return - random) / (expert - random), as D4RL does.

    `name` is a family ("hopper") of D4RL's, a task ("hopper-medium"), or a `Reference` of your own. A number gives a
    float, an array of any shape a float64 array of that shape. UnknownTaskError: the name is neither.
    """
    if isinstance(name, Reference):
        low, high = name.low, name.high
    elif name in REFERENCE_RETURNS:
        low, high = REFERENCE_RETURNS[name]
    else:
        reference = get_task(name).reference
        assert reference is not None  # of all tasks that are found by name
        low, high = reference.low, reference.high
    scores = 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)
    return float(scores) if np.ndim(returns) == 0 else scores


def unversioned(env_id: str) -> str:
    """The name of an environment without its version, of which data of one task name several."""
    return env_id.rsplit("-v", 1)[0]


def same_dynamics(env_id: str) -> list[str]:
    """The ids that data for this one may name: D4RL numbers the dynamics of Gymnasium's -v4 -v2, or -v3.

    In -v3 contact forces are reported otherwise.
    """
    same = [f"{unversioned(env_id)}-v{number}" for number in (2, 3, 4)]
    return same if env_id in same else [env_id]


# Arguments of environments: plain values, which name no file and no module

# Arguments that name files to read or modules to import.
_FORBIDDEN_KEY = re.compile(r"(^|_)(xml|file|path|dir|folder|module|entry_point|id)s?(_|$)", re.IGNORECASE)
_FORBIDDEN_TEXT = re.compile(r"[/\\:~]|\.\.|\.xml$", re.IGNORECASE)


def is_plain_argument(key: str, value: object) -> bool:
    """Whether an environment's argument that a file gives is harmless: plain values that name no file or module."""
    return key.isidentifier() and not _FORBIDDEN_KEY.search(key) and _is_plain(value)


def _is_plain(value: object, depth: int = 4) -> bool:
    if isinstance(value, str):
        return not _FORBIDDEN_TEXT.search(value)
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    # A policy's card is JSON, which has no infinity.
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def env_kwargs(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of an environment that JSON text or a mapping gives; None: none.

    UsageError: it is no object of JSON, or an argument could not be kept on a policy's card.
    """
    if given is None:
        return {}
    like = "give a JSON object such as '{\"frame_skip\": 5}'"
    try:
        found = json.loads(given if isinstance(given, str) else json.dumps(dict(given)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"--env-kwargs is not JSON ({one_line(error, 100)}); {like}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--env-kwargs is a {type(found).__name__}; {like}")
    for key, value in found.items():
        if not is_plain_argument(key, value):
            kept = "only finite numbers, words and lists of them are kept with a policy"
            told = f"--env-kwargs has {ascii(key)[:40]} = {ascii(value)[:60]}; {kept}"
            raise UsageError(f"{told}, and nothing that names files or modules; register the environment with it")
    return found
