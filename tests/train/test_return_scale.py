"""The data of a run: the return scale that is chosen from them, returns in words, and what is trained on."""

import numpy as np
import pytest
import torch

from aaren_rl.envs import Episodes, load_episodes
from aaren_rl.envs.data.episodes import held_out
from aaren_rl.policies.card import return_words
from aaren_rl.train.config import make_config
from aaren_rl.train.data import choose_return_scale, load_data

RNG = np.random.default_rng(0)
DOSES = RNG.uniform(size=300)


def dataset(rewards) -> Episodes:
    """Episodes of as many steps as `rewards` (E, T) has."""
    count, steps = np.shape(rewards)
    observations, actions = (np.zeros((count * steps, 1), np.float32) for _ in range(2))
    flat = np.asarray(rewards, np.float32).reshape(-1)
    return Episodes(observations, actions, flat, np.arange(count + 1) * steps, np.zeros(count, bool))


def spread(**rare) -> np.ndarray:
    """Rewards of 300 episodes with returns from 0 to 1, a few of them others: step -> reward."""
    rewards = DOSES[:, None] * np.ones(20) / 20
    rewards[:6, 3] = rare.get("huge", rewards[:6, 3])
    return rewards


@pytest.mark.parametrize(
    ("rewards", "low", "high"),
    [
        *((size * spread(), 0.5 * abs(size), abs(size)) for size in (1e-12, 1e-4, 1.0, -1.0, 1e6, 1e12)),
        (np.eye(300, 20) * (np.arange(300) < 6)[:, None], 0.1, 1),  # rare successes
        (spread(huge=1e6), 0.5, 2),  # a few huge rewards
        (1 + 2 * spread(), 1.5, 3),  # returns of 20 to 22: what all share counts less than what tells them apart
        (np.ones((40, 20)), 1.9, 1.9),  # a tenth of the returns-to-go
        (np.zeros((40, 20)), 1, 1),
    ],
)
def test_the_scale_is_the_size_of_what_tells_episodes_apart(rewards, low, high):
    assert low <= choose_return_scale(dataset(rewards)) <= high


def test_the_scale_of_the_tables_tasks_is_fixed():
    of = {name: make_config({"env": name}).data.return_scale for name in ("hopper-medium", "hopper-p-medium")}
    assert set(of.values()) == {1000.0} and make_config({"env": "tmaze"}).data.return_scale == 1.0
    own = make_config({"env": "mine", "env_id": "Pendulum-v1", "source": "mine.hdf5"})
    assert own.data.return_scale is None
    assert make_config({"env": "mine", "env_id": "Pendulum-v1", "return_scale": 3.0}).data.return_scale == 3.0


def test_returns_in_words_have_digits_that_mean_something():
    found = [return_words(value) for value in (0.0, -0.0, 0.0004, 4e-5, -3.14159, 0.5, 12.34, -2612.34, 1.5e12)]
    assert found == ["0.0", "0.0", "0.000400", "4e-05", "-3.14", "0.500", "12.3", "-2612.3", "1.5e+12"]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_held_out_episodes_are_not_trained_on(hopper_file, fraction):
    given = {"env": "hopper-medium", "source": str(hopper_file), "held_out": 0.3}
    given |= {"draws": "best", "draw_share": fraction}
    read = load_data(make_config(given), str(hopper_file), torch.device("cpu"), memory_map=False, resumed=False)
    every = load_episodes("hopper-medium", str(hopper_file)).returns
    kept = held_out(len(every), 0.3, 0)
    others = np.delete(every, kept)
    assert read.held_out is not None and np.array_equal(read.held_out.episodes.returns, every[kept])
    least = np.sort(others)[-len(read.steps.episodes)]
    assert np.array_equal(read.steps.episodes.returns, others[others >= least])
    assert len(read.steps.episodes) == pytest.approx(fraction * len(others), abs=1)
