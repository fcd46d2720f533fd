"""Actions that cannot be learned from as they are: the wrapper that the message names makes them learnable."""

import re

import gymnasium
import numpy
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from aaren_rl.envs import UsageError
from aaren_rl.envs.tasks.actions import bounding, way_out
from aaren_rl.envs.tasks.environment import own_task

SPACES = {
    "MultiDiscrete": MultiDiscrete([3, 2, 4]),
    "Starts": MultiDiscrete([3, 2], start=[-1, 5]),
    "Table": MultiDiscrete([[3, 2], [2, 2]], start=[[0, 1], [0, 0]]),
    "ManyChoices": MultiDiscrete([100] * 20),
    "ManyStarts": MultiDiscrete([100] * 20, start=[-50] * 20),
    "MultiBinary": MultiBinary(4),
    "Binaries": MultiBinary([2, 3]),
    "ManyBinaries": MultiBinary(64),
    "Integers": Box(-3, 3, (2,), numpy.int64),
    "IntegerTable": Box(0, 255, (2, 2), numpy.uint8),
    "Matrix": Box(-2, 2, (2, 3)),
    "Number": Box(-1, 1, ()),
    "Dict": Dict(arm=Box(-1, 1, (2,)), grip=Box(0, 1, (1, 1))),
    "Tuple": Tuple([Box(-1, 1, (2,)), Box(0, 1, ())]),
}


class Acted(gymnasium.Env):
    observation_space = Box(-1, 1, (2,))

    def __init__(self, space):
        self.action_space, self.taken = space, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        return numpy.zeros(2, numpy.float32), 0.0, False, False, {}


def wrapped(env, said):
    """The environment in the wrapper of a message, evaluated as it stands there."""
    expression = re.search(r"(gymnasium\.wrappers\.TransformAction\(.*?\))(?:, and number|$)", said)[1]
    return eval(expression, {"env": env, "numpy": numpy, "gymnasium": gymnasium})


@pytest.mark.parametrize("name", SPACES)
def test_the_named_wrapper_makes_actions_learnable(name):
    space = SPACES[name]
    gymnasium.register("ActedHere-v0", lambda: Acted(space), max_episode_steps=9, disable_env_checker=True)
    gymnasium.register("Wrapped-v0", lambda: wrapped(Acted(space), way_out(space)), disable_env_checker=True)
    try:
        with pytest.raises(UsageError) as error:
            own_task("mine", "ActedHere-v0")
        assert way_out(space) in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 500
        task = own_task("mine", "Wrapped-v0")
    finally:
        del gymnasium.registry["ActedHere-v0"], gymnasium.registry["Wrapped-v0"]
    env = wrapped(Acted(space), way_out(space))
    assert isinstance(env.action_space, Discrete if task.n_actions else Box)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        env.step(env.action_space.sample())
    if task.n_actions:  # every combination, and the data's numbers are these
        for i in range(task.n_actions):
            env.step(i)
        actions, N = numpy.array(env.unwrapped.taken[20:]), task.n_actions
        number = re.search(r"number the data's: (.*)$", way_out(space))[1]
        known = {"numpy": numpy, "actions": actions, "N": N, "start": getattr(space, "start", 0)}
        assert eval(number, known).tolist() == list(range(N))


def test_unbounded_actions_are_bounded_by_the_named_wrapper():
    env = Acted(Box(-numpy.inf, numpy.inf, (3,)))
    env = wrapped(env, bounding(env.action_space))
    assert env.action_space == Box(-1, 1, (3,))
    env.step(env.action_space.sample())


@pytest.mark.parametrize("space", [Text(3), Sequence(Discrete(2)), Dict(a=Discrete(2), b=Box(0, 1, (1,))), Dict()])
def test_what_no_wrapper_of_ours_makes_a_vector_names_the_kind(space):
    assert "a function of yours" in way_out(space)
