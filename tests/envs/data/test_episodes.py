from dataclasses import replace

import numpy as np
import pytest
from minari_sets import small

from aaren_rl.envs import REFERENCE_RETURNS, TASKS, UnknownTaskError, normalized_score, returns_to_go
from aaren_rl.envs.data.columns import SIZES
from aaren_rl.envs.data.episodes import held_out
from aaren_rl.envs.tasks.environment import own_task

ORIGIN = {"dataset": "mine", "source": "minari", "path": "there", "env_id": "Hopper-v4", "notes": ("a note",)}


def make(lengths=(3, 1, 4), observation_dim=2, **changes):
    """Rewards number the steps."""
    made = small(observation_dim=observation_dim, action_dim=2, lengths=lengths)
    return replace(made, **{"rewards": np.arange(1, made.n_steps + 1, dtype=np.float32), **changes})


def test_returns_to_go_is_accumulated_in_float64():
    result = returns_to_go([1.0, 2.0, 3.0])
    assert result.dtype == np.float32 and result.tolist() == [6.0, 5.0, 3.0]
    # In float32 the ones vanish beside 2**24, from either side.
    rewards = np.array([2.0**24] + [1.0] * 64, dtype=np.float32)
    assert returns_to_go(rewards)[0] == returns_to_go(rewards[::-1])[0] == 2.0**24 + 64


def test_episodes_is_a_sequence_of_views():
    episodes = make()
    assert episodes.lengths.tolist() == [3, 1, 4]
    assert [e.rewards.tolist() for e in episodes] == [[1, 2, 3], [4], [5, 6, 7, 8]]
    assert [e.terminated for e in episodes] == [True, False, True]
    assert np.shares_memory(episodes[2].observations, episodes.observations)
    assert [len(e) for e in episodes[1:]] == [1, 4]
    with pytest.raises(IndexError):
        episodes[3]
    assert (episodes.n_steps, episodes.observation_dim, episodes.action_dim) == (8, 2, 2)
    assert episodes.returns.tolist() == [6.0, 4.0, 26.0]
    assert episodes.returns_to_go().tolist() == [6, 5, 3, 4, 26, 21, 15, 8]
    assert episodes.timesteps().tolist() == [0, 1, 2, 0, 0, 1, 2, 3] and episodes.timesteps().dtype == np.int64


def test_a_column_constant_up_to_rounding_is_divided_by_one():
    episodes = make(lengths=(1000, 1000), observation_dim=4)
    episodes.observations[:, 1:] = 0.0, 12345.678, 1e6
    episodes.observations[::2, 3] -= 0.0625
    _, std = episodes.observation_statistics()
    assert std[1:].tolist() == [1.0] * 3 and std[0] != 1.0


def test_arrays_that_do_not_fit_are_refused():
    offsets = ([0, 3, 3, 8], [1, 3, 4, 8], [0, 3, 4, 7], [0, 8])
    wrong = {"rewards": np.zeros(8), "actions": np.zeros((7, 2), np.float32), "terminated": np.zeros(0, bool)}
    for field, value in (*wrong.items(), *(("offsets", np.array(offset)) for offset in offsets)):
        with pytest.raises(ValueError, match=r"must|unequal|need"):
            make(**{field: value})


def test_normalized_score():
    assert normalized_score("hopper", 3234.3) == 100.0 and isinstance(normalized_score("ant", 1.0), float)
    scores = normalized_score("hopper-medium", np.array([[-20.272305], [3234.3]]))
    assert scores.tolist() == [[0.0], [100.0]] and scores.dtype == np.float64
    with pytest.raises(UnknownTaskError):
        normalized_score("humanoid", 1.0)


@pytest.mark.parametrize("family", REFERENCE_RETURNS)
def test_the_table_describes_the_real_environments(family, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    task = TASKS[f"{family}-medium-replay"]
    found = own_task(task.name, task.env_id)
    for name in (*SIZES, "horizon"):
        assert getattr(found, name) == getattr(task, name)
    # No chatter on the terminal, no MUJOCO_LOG.TXT in the user's folder.
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_taking_episodes_copies_their_rows_and_keeps_their_origin():
    episodes = make(**ORIGIN)
    taken = episodes.take([2, 1, -3])
    assert taken.rewards.tolist() == [5, 6, 7, 8, 4, 1, 2, 3] and taken.terminated.tolist() == [True, False, True]
    for one, other in zip(taken, (episodes[2], episodes[1], episodes[0]), strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.actions, other.actions)
    assert {key: getattr(taken, key) for key in ORIGIN} == ORIGIN
    taken.rewards[:] = 0
    assert episodes.rewards.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert episodes.rows([1, 0]).tolist() == [3, 0, 1, 2]
    with pytest.raises(IndexError):
        episodes.take([3])
    with pytest.raises(ValueError, match="0 episodes"):
        episodes.take([])


@pytest.mark.parametrize(("count", "share", "held"), [(40, 0.1, 8), (100, 0.15, 15), (41, 0.99, 40)])
def test_a_share_is_held_out_by_a_seed_in_order(count, share, held):
    chosen = held_out(count, share, 3).tolist()
    assert len({*chosen}) == held and chosen == sorted(chosen) and {*chosen} <= {*range(count)}
    assert chosen == held_out(count, share, 3).tolist() != held_out(count, share, 4).tolist()


def test_of_few_episodes_or_a_share_of_none_nothing_is_held_out():
    for count, share in ((39, 0.5), (1, 0.1), (100, 0.0)):
        assert not held_out(count, share, 0).size
