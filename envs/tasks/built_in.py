"""Built-in tasks, whose data are made on first use: how to add one, see `BUILT_IN`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .table import TASKS, Reference, Task

# Steps of a T-maze's corridor: those of its data, and the most that it may be evaluated at.
CORRIDORS = (20, 200)
LONGEST = 1_000_000

_CORRIDOR = re.compile(r"(tmaze|tmaze-discrete)-([1-9][0-9]{0,6})")


@dataclass(frozen=True, kw_only=True)
class LocalTask(Task):
    """A built-in task.

    Its data are those of the task `dataset`, its own or another's. `policy` says in a line what acts in them.
    `settings` are those of `train` that differ from the preset `default`, by name.
    """

    dataset: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data_horizon(self) -> int:
        """The time limit of the task whose data these are."""
        return BUILT_IN[self.dataset].horizon


# One policy recorded them, and the claims of docs/memory.md are of runs without dropout.
ALIKE: dict[str, Any] = {"draws": "uniform", "dropout": 0.0}
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
    # Means of 200 episodes; a slow test in tests/envs/memory/test_reacher.py measures both.
    reference=Reference("random actions 0, the controller that sees the target 100", -245.0, -2.6),
    dataset="reacher-recall",
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
    policy="replay-like: a linear controller with fewer and fewer random actions, not a replay buffer",
    settings={"return_scale": 100.0, **ALIKE},
    **_DISCRETE,
)


def _positions(env: str, observation_dim: int) -> LocalTask:
    full = TASKS[f"{env.lower()}-medium"]
    name = f"{full.family}-p-{full.level}"
    return LocalTask(
        name=name,
        env_id=f"aaren_rl/{env}-P-v4",
        observation_dim=observation_dim,
        action_dim=full.action_dim,
        horizon=full.horizon,
        target_returns=full.target_returns,
        action_low=full.action_low,
        action_high=full.action_high,
        reference=full.reference,
        dataset=name,
        settings=ALIKE,
        policy=f"that of the local set {full.name}, whose velocities are left out",
    )


# To add a task: a LocalTask here, its environment in envs/tasks/memory with a line in its __init__.py, which registers
# it, and in envs/local a function that makes its data, with a line in MAKERS of sets.py. All else finds it by its name.
_MEMORY = (_TMAZE, _TMAZE_DISCRETE, _REACHER, _positions("Hopper", 5), _positions("Walker2d", 8))
BUILT_IN: dict[str, LocalTask] = {task.name: task for task in (*_MEMORY, _CARTPOLE)}


def corridor(name: str) -> LocalTask | None:
    """The T-maze of N steps that "tmaze-N" or "tmaze-discrete-N" names, N from 2 to LONGEST; None for others."""
    match = _CORRIDOR.fullmatch(name)
    if match is None or not 2 <= (steps := int(match[2])) <= LONGEST:
        return None
    return replace(BUILT_IN[match[1]], name=name, horizon=steps, env_kwargs={"length": steps})
