"""Actions that cannot be learned from as they are."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text

from aaren_rl.envs import UsageError
from aaren_rl.envs.tasks.environment import own_task


class Acted(gym.Env):
    observation_space = Box(-1, 1, (2,))

    def __init__(self, space: gym.Space) -> None:
        self.action_space = space


@pytest.fixture
def register() -> Iterator[None]:
    yield
    gym.registry.pop("Acted-v0", None)


@pytest.mark.usefixtures("register")
@pytest.mark.parametrize(
    ("space", "message"),
    [
        *((space, "TransformAction") for space in (MultiDiscrete([3, 2]), MultiBinary(4), Box(-1, 1, (2, 3)))),
        *((space, "TransformAction") for space in (Box(-3, 3, (2,), np.int64), Dict(a=Box(0, 1)), Text(5))),
        (Sequence(Discrete(2)), "TransformAction"),
        (Box(0, 1, (0,)), "without a number"),
        (Box(np.zeros(2, np.float32), np.array([1, 0], np.float32)), "action 1 has equal bounds"),
        (Discrete(3, start=2**20), "number them from 0 on"),
    ],
    ids=str,
)
def test_actions_that_are_refused(space, message):
    gym.register("Acted-v0", lambda: Acted(space), max_episode_steps=9, disable_env_checker=True)
    with pytest.raises(UsageError, match=message) as error:
        own_task("acted", "Acted-v0")
    assert "\n" not in str(error.value)
