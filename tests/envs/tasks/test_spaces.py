"""Observation spaces, flattened in batches, against Gymnasium's own flattening of one observation after another."""

import json
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from checks import Drawn
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.vector.utils import create_empty_array
from minari.serialization import serialize_space

from aaren_rl.envs import UsageError
from aaren_rl.envs.tasks.environment import own_task
from aaren_rl.envs.tasks.spaces import checked_layout, flat_size, flatten_batch, layout_of

PAIR = Box(-1, 1, (2,))
SPACES = {
    "goal": Dict(observation=Box(-1, 1, (3,)), desired_goal=Box(-1, 1, (2,), np.float64), achieved_goal=PAIR),
    "order": Dict(OrderedDict([("b", PAIR), ("a", Discrete(3))])),
    "nested": Dict(z=Tuple([Discrete(4, start=-2), MultiBinary(3)]), a=Box(0, 9, (2, 2), np.int16)),
    "tuple": Tuple([Box(0, 1, ()), *(Discrete(2) for _ in range(11)), MultiDiscrete([2, 3])]),
    "discrete": Discrete(5, start=3),
    "multi": MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, -1]]),
    "single": MultiDiscrete([1, 1]),
    "binary": MultiBinary([2, 3]),
    "axes": Box(-1, 1, (2, 3, 4)),
    "vector": Box(-1, 1, (4,)),
    "grid": Box(0, 255, (32, 32, 1), np.uint8),
}


def batch(space, n=6):
    """Samples one by one, as a vector environment joins them, and flattened by Gymnasium."""
    space.seed(0)
    each = [space.sample() for _ in range(n)]
    joined = gym.vector.utils.concatenate(space, each, create_empty_array(space, n))
    return each, joined, np.stack([spaces.flatten(space, one) for one in each]).astype(np.float32)


@pytest.mark.parametrize("name", SPACES)
def test_flattens_as_gymnasium_does(name):
    space = SPACES[name]
    each, joined, expected = batch(space)
    layout = layout_of(space)
    assert flat_size(layout) == spaces.flatdim(space) == expected.shape[1]
    for tree in (joined, each, expected, expected.astype(np.float64)):
        flat = flatten_batch(layout, tree)
        assert flat.dtype == np.float32
        np.testing.assert_array_equal(flat, expected)
    # A card has the layout as JSON, Minari the space.
    for text in (json.dumps(layout), serialize_space(space)):
        assert checked_layout(json.loads(text)) == layout


def test_without_a_space_columns_are_in_the_order_of_sorted_keys():
    a, b = np.arange(6.0).reshape(3, 2), np.arange(3)
    tree = {"z": (b, a.reshape(3, 2, 1)), "a": a, "m": tuple(b + i for i in range(11))}
    expected = np.column_stack([a, *(b + i for i in range(11)), b, a])
    np.testing.assert_array_equal(flatten_batch(None, tree), expected)
    each = [{"x": 1.0, "w": [2, 3]}, {"x": 4, "w": [5, 6]}]
    np.testing.assert_array_equal(flatten_batch(None, each), [[2, 3, 1], [5, 6, 4]])
    far = np.array([[1.7e9 + 1]])
    assert flatten_batch(None, {"time": far}, dtype=np.float64)[0, 0] == far[0, 0]


TWO, THREE = np.zeros((2, 2)), np.zeros((3, 2))
GOAL = {"observation": np.zeros((2, 3)), "desired_goal": TWO}


@pytest.mark.parametrize(
    ("space", "tree", "message"),
    [
        ("goal", GOAL, "'achieved_goal' is missing (found: "),
        ("goal", np.zeros((2, 6)), "has shape (2, 6); give the parts of the Dict, or (2, 7)"),
        ("goal", {**GOAL, "desired_goal": THREE, "achieved_goal": TWO}, "desired_goal has 3;"),
        ("discrete", np.array([3, 8]), "has 8 in row 1; its space is 3 to 7"),
        ("discrete", np.array([3, 3.5]), "has 3.5 in row 1"),
        ("discrete", {"a": np.zeros(2)}, "is a dict, its space is a Discrete"),
        ("multi", np.array([[[1, 0], [0, 0]], [[1, 0], [0, 1]]]), "has 1 in row 1; its space is -1 to 0"),
        ("axes", np.zeros((2, 3, 2, 4)), "has shape (2, 3, 2, 4); its space is of (2, 2, 3, 4), flat of (2, 24)"),
        ("vector", np.array([["a"] * 4]), "is <U1 of shape (1, 4); give an array of numbers"),
        ("vector", [[1, 2, 3, 4], [1, 2]], "rows have different shapes"),
        ("vector", 3.0, "a row for each"),
        ("tuple", [(np.zeros(()), 1), (np.zeros(()),)], "have different parts"),
        (None, {}, "hold no numbers"),
        (None, {"a": np.zeros(2), "b": np.zeros(3)}, "observations/a has 2 rows, observations/b has 3"),
    ],
)
def test_what_is_wrong_with_data_is_told(space, tree, message):
    with pytest.raises(ValueError) as error:
        flatten_batch(space and layout_of(SPACES[space]), tree)
    assert message in str(error.value) and str(error.value).startswith("observations")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Box(0, 255, (84, 84, 3), np.uint8), "are images (uint8 of shape (84, 84, 3))"),
        (Dict(camera=Box(0, 255, (32, 33, 1), np.uint8)), "no encoder"),
        (Text(5), "are Text, which has no fixed size"),
        (Sequence(Discrete(2)), "are Sequence"),
        (Discrete(10**9), "1,000,000,000 numbers when flattened"),
    ],
)
def test_what_cannot_be_flattened_is_refused(space, message):
    with pytest.raises(ValueError, match=r"; ") as error:
        layout_of(space)
    assert message in str(error.value)


def test_descriptions_that_are_none_are_refused():
    for tree in (
        None, {"type": "Box"}, {"type": "Box", "shape": [-1]}, {"type": "Box", "shape": [True]},
        {"type": "Discrete", "n": 0}, {"type": "Discrete", "n": 2.5, "start": 0},
        {"type": "MultiDiscrete", "nvec": [2, [3]]}, {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0]},
        {"type": "MultiBinary", "n": "3"}, {"type": "Tuple", "subspaces": {}}, {"type": "Dict", "subspaces": {"a": []}},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="; "):
            checked_layout(tree)


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
def test_actions_that_are_refused(space, message, monkeypatch):
    acted = EnvSpec("Acted-v0", lambda: Drawn(PAIR, space), max_episode_steps=9, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, "Acted-v0", acted)
    with pytest.raises(UsageError, match=message) as error:
        own_task("acted", "Acted-v0")
    assert "\n" not in str(error.value)
