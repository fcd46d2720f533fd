"""The task table: environment, sizes, target returns, D4RL file and scores of a name like `hopper-medium`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
