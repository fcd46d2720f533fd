"""Data of tasks that need memory: POPGym's and MiniGrid's environments, and a task of associative recall.

Imported by its name, it registers them (`--register memory_data`). An expert, which sees the state of the environment,
plays; in every episode it is replaced by random actions with a share of its own, so that a return tells something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401  registers its environments
import numpy as np
import numpy.typing as npt
import popgym  # noqa: F401  registers its environments
from minigrid.wrappers import OneHotPartialObsWrapper

from aaren_rl.envs.data.episodes import Episode, Episodes, join
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.envs.simulation import begin, take
from aaren_rl.envs.tasks.environment import close_env, make_env

STEPS, FEW, SEED = 100_000, 3_000, 0  # of a dataset; played for what needs no training
KEYS, VALUES = 16, 4  # of associative recall
RIGHT, FORWARD, LEFT = 1, 2, 0  # MiniGrid's actions; its directions are right, down, left and up
# Pushes against where the pole falls to and, less, where the cart goes to.
GAINS = np.array([0.05, 0.15, 1.0, 0.4])  # of position, velocity, angle and angular velocity

Expert = Callable[[Any, npt.NDArray[Any]], int]  # arguments: the environment unwrapped, its flat observation


class Recall(gym.Env[npt.NDArray[np.int64], int]):
    """Pairs of a key and a value are shown, one a step; then every key is asked for once, in another order.

    Observation: a key, and its value, or VALUES where it is asked for. The reward for a right value is 1 / `pairs`;
    without `pairs`, 1 to KEYS of them are drawn in every episode.
    """

    observation_space = gym.spaces.MultiDiscrete([KEYS, VALUES + 1])
    action_space = gym.spaces.Discrete(VALUES)

    def __init__(self, pairs: int | None = None) -> None:
        self._fixed = pairs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        super().reset(seed=seed)
        pairs = self._fixed or int(self.np_random.integers(1, KEYS + 1))
        keys = self.np_random.permutation(KEYS)[:pairs]
        self.values = self.np_random.integers(VALUES, size=KEYS)
        self.keys, self.at = np.concatenate([keys, self.np_random.permutation(keys)]), 0
        return self._shown(), {}

    def _shown(self) -> npt.NDArray[np.int64]:
        key = self.keys[self.at]
        return np.array([key, VALUES if self.asks else self.values[key]])

    @property
    def asks(self) -> bool:
        """Whether a key is asked for now."""
        return 2 * self.at >= len(self.keys)

    @property
    def answer(self) -> int:
        """The value of the key that is shown."""
        return int(self.values[self.keys[self.at]])

    def step(self, action: int) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        reward = 2 * float(self.asks and action == self.answer) / len(self.keys)
        self.at += 1
        ended = self.at == len(self.keys)
        return np.zeros(2, np.int64) if ended else self._shown(), reward, ended, False, {}


def one_hot_memory(**kwargs: Any) -> gym.Env[Any, Any]:  # noqa: ANN401
    """MiniGrid's Memory with an image (7, 7, 20) of bits, one for each object, color and state of a cell."""
    return OneHotPartialObsWrapper(gym.make("MiniGrid-MemoryS7-v0", **kwargs))


gym.register("Recall-v0", entry_point=Recall)
gym.register("OneHotMemory-v0", entry_point=one_hot_memory)


def _previous(env: Any, _: npt.NDArray[Any]) -> int:  # noqa: ANN401
    hand = env.deck["player"]
    return int(env.deck.suits_idx[hand[-env.k]]) if len(hand) >= env.k else 0


def _reversed(env: Any, _: npt.NDArray[Any]) -> int:  # noqa: ANN401
    return int(env.deck.suits_idx[env.deck["system"][-1]]) if env.mode == env.mode.PLAY else 0


def _matching(env: Any, _: npt.NDArray[Any]) -> int:  # noqa: ANN401
    """Looks at the object in the room, if it was not seen yet, then goes to the end of the hallway and to its like."""
    (x, y), (end, goal) = env.agent_pos, env.success_pos
    env.was_seen = env.step_count > 0 and getattr(env, "was_seen", False)
    env.was_seen |= env.agent_sees(1, env.height // 2 - 1)
    if not env.was_seen:
        wanted = 2
    else:
        wanted = 0 if x < end else 3 if goal < y else 1
    turn = (wanted - env.agent_dir) % 4
    return FORWARD if turn == 0 else LEFT if turn == 3 else RIGHT


@dataclass(frozen=True)
class Task:
    """A task: its environment, who plays it, and in which units its scores are.

    A score is 100 * (return - worst) / (1 - worst) percent: right answers, or steps survived; of `success`, episodes
    with a positive return. `variants` of its environment, by name, are trained on by turns (`mixed`) and played.
    `settings` of training are those of all agents.
    """

    name: str
    env_id: str
    expert: Expert
    worst: float = -1.0
    errs: float = 0.8  # the largest share of random actions of an episode
    choices: int | None = None  # of random actions, the first so many
    success: bool = False
    steps: int = STEPS
    keys: tuple[str, ...] = ()
    mixed: tuple[Mapping[str, Any], ...] = ({},)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def score(self, returns: npt.ArrayLike) -> float:
        """Percent, of the returns of episodes."""
        found = np.asarray(returns, np.float64)
        return 100 * float((found > 0).mean()) if self.success else self.mean_score(float(found.mean()))

    def mean_score(self, mean: float) -> float:
        """Percent, of a mean return, which is a little less than its episodes' where they are a success or none."""
        return 100 * (mean - self.worst) / (1 - self.worst)


def _rooms(size: int, steps: int) -> dict[str, int]:
    """A room, and a time limit of so many steps for each of its cells' width; the expert needs 2."""
    return {"size": size, "max_steps": steps * size}


def _card(name: str, expert: Expert) -> Task:
    return Task(name, f"popgym-{name}-v0", expert)


def _pole(name: str) -> Task:
    return Task(name, f"popgym-{name}-v0", lambda env, _: int(np.array(env.state) @ GAINS > 0), worst=0.0, errs=1.0)


TASKS = {
    task.name: task
    for task in (
        _card("RepeatPreviousEasy", _previous),
        _card("RepeatFirstEasy", lambda env, _: int(env.card)),
        _card("CountRecallEasy", lambda env, _: int(env.counts[env.query])),
        Task("CountRecallEasyTimed", "popgym-CountRecallEasy-v0", lambda env, _: int(env.counts[env.query]),
             settings={"timestep_embedding": True}),
        _card("AutoencodeEasy", _reversed),
        _pole("PositionOnlyCartPoleEasy"),
        Task("Recall", "Recall-v0", lambda env, _: env.answer if env.asks else 0, worst=0.0,
             variants={str(pairs): {"pairs": pairs} for pairs in (1, 2, 4, 8, 16)}),
        Task("MiniGridMemory", "OneHotMemory-v0", _matching, worst=0.0, errs=0.5, choices=3, success=True,
             steps=60_000, keys=("image", "direction"), mixed=tuple(_rooms(size, 10) for size in (7, 9, 11, 13)),
             variants={str(size): _rooms(size, 4) for size in (13, 25, 49, 97)}),
        _card("RepeatPreviousMedium", _previous),
        _pole("NoisyPositionOnlyCartPoleEasy"),
        _card("RepeatFirstMedium", lambda env, _: int(env.card)),
        _card("CountRecallMedium", lambda env, _: int(env.counts[env.query])),
    )
}  # fmt: skip


def played(task: Task, steps: int, errs: float | None = None, action: int | None = None) -> Episodes:
    """Episodes of a task; `errs`: the largest share of random actions; `action`: one that is always taken instead."""
    rng, made = np.random.Generator(np.random.PCG64(SEED)), list[Episode]()
    more = {"observation_keys": list(task.keys)} if task.keys else {}
    envs = [make_env(task.env_id, **kwargs, **more) for kwargs in task.mixed]
    while sum(map(len, made)) < steps:
        env, share = envs[len(made) % len(envs)], rng.uniform(0, task.errs if errs is None else errs)
        most: Any = env.action_space
        rows, ended, terminated = [], False, False
        seen, _ = begin(env, seed=int(rng.integers(2**31)))
        while not ended:
            wanted = task.expert(env.unwrapped, seen) if action is None else action
            chosen = int(rng.integers(task.choices or most.n)) if rng.random() < share else wanted
            after, reward, terminated, truncated, _ = take(env, chosen)
            rows.append((seen, chosen, reward))
            seen, ended = after, terminated or truncated
        observed, actions, rewards = (np.array(column) for column in zip(*rows, strict=True))
        made.append(Episode(observed.astype(np.float32), actions, rewards.astype(np.float32), terminated))
    for env in envs:
        close_env(env)
    return join(made, dataset=task.name, env_id=task.env_id)


def make(task: Task, folder: Path) -> dict[str, Any]:
    """Write the data of a task, and return what is known of them: their hash, and scores of who needs no training."""
    episodes = played(task, task.steps)
    write_hdf5(folder / f"{task.name}.hdf5", episodes, {"origin": f"scripts/memory_tasks data, seed {SEED}"})
    fixed = [played(task, FEW, 0.0, action).returns for action in range(int(episodes.actions.max()) + 1)]
    return {
        "steps": episodes.n_steps,
        "episodes": len(episodes),
        "longest": int(episodes.lengths.max()),
        "sha256": episodes.sha256(),
        "data": task.score(episodes.returns),
        "expert": task.score(played(task, FEW, 0.0).returns),
        "one_action": max(map(task.score, fixed)),
    }
