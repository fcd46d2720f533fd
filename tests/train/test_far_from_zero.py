"""Columns far from zero: degrees, times, ticks. They keep their digits from the data to the action, exported too."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checks import hdf5
from policies import OBSERVATION, make_card, make_policy, onnx_policy_of

from aaren_rl import train_policy
from aaren_rl.envs import Episodes
from aaren_rl.envs.data.columns import Column, narrowed, read_observations
from aaren_rl.envs.data.episodes import FAR, allocate, gather, is_far, moments, release
from aaren_rl.envs.data.files import read_file
from aaren_rl.envs.data.minari import read_minari, write_minari
from aaren_rl.policies.card import card_from_json
from aaren_rl.train.data import StepData

RNG = np.random.default_rng(0)
NEAR = RNG.normal(size=(200, 3))
SPREADS = {"degrees": (48.8566, 1e-5), "unix time": (1.7e9, 30.0), "ticks": (2.0**40, 50.0), "meters": (1e6, 1e-3)}


def dataset(observations) -> Episodes:
    steps = len(observations)
    zeros = np.zeros((steps, 1), np.float32)
    offsets = np.arange(0, steps + 1, 20)
    return Episodes(observations, zeros, zeros[:, 0], offsets, np.zeros(len(offsets) - 1, bool))


@pytest.mark.parametrize(("origin", "spread"), SPREADS.values(), ids=SPREADS)
def test_a_batch_has_the_digits_of_the_column(origin, spread):
    raw = NEAR.copy()
    raw[:, 1] = origin + spread * NEAR[:, 1]
    data = StepData(dataset(narrowed(raw)), 1.0)
    expected = (raw - raw.mean(0)) / raw.std(0)
    seen = data.observed(torch.arange(len(raw)))
    assert seen.dtype == torch.float32
    np.testing.assert_allclose(seen, expected, atol=2e-5)


def test_other_columns_stay_float32_and_their_batches_the_same_bits():
    raw = (100 * NEAR + 7).astype(np.float32)
    assert narrowed(raw.astype(np.float64)).dtype == np.float32 and narrowed(raw) is not None
    data, (mean, std) = StepData(dataset(raw), 1.0), dataset(raw).observation_statistics()
    assert mean.dtype == np.float32
    assert torch.equal(data.observed(torch.arange(200)), torch.from_numpy((raw - mean) / std))


def test_the_mean_is_the_one_of_a_whole_array_to_the_last_bit():
    values = (RNG.normal(size=(150_000, 3)) * [100, 1e-3, 1] + [0, 0, 1000]).astype(np.float32)
    mean, std = moments(values)
    assert np.array_equal(mean, values.mean(axis=0, dtype=np.float64))
    rows = RNG.permutation(150_000)[:66_000]
    assert np.array_equal(moments(values, rows), moments(values[rows]))
    np.testing.assert_allclose(std, values.std(axis=0, dtype=np.float64))


def test_constant_columns_do_not_make_data_float64_and_are_named():
    raw = NEAR.copy()
    raw[:, 0], raw[:, 2] = 0.1, 1.7e9
    assert narrowed(raw).dtype == np.float32
    assert StepData(dataset(narrowed(raw)), 1.0).statistics.constant.tolist() == [True, False, True]
    raw[-1, 2] += 0.5
    assert narrowed(raw).dtype == np.float64


def test_small_units_are_no_constants():
    data = StepData(dataset((1e-9 * NEAR).astype(np.float32)), 1.0)
    assert not data.statistics.constant.any()
    assert data.observed(torch.arange(200)).std() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("stored", [np.float64, np.int64])
def test_a_file_keeps_its_digits(tmp_path, stored):
    raw = (1.7e15 + 1e5 * RNG.normal(size=(40, 2))).astype(stored)
    columns = {"actions": np.zeros((40, 1)), "rewards": np.zeros(40), "terminals": np.arange(40) % 20 == 19}
    path = hdf5(tmp_path / "far.hdf5", {"observations": raw, **columns})
    assert np.array_equal(read_file(path).observations, raw.astype(np.float64))


def test_a_minari_dataset_keeps_its_digits(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    far = dataset(1.7e15 + 1e5 * NEAR)
    write_minari("my/far-v0", far, env_id=None)
    assert np.array_equal(read_minari("my/far-v0").episodes.observations, far.observations)


def test_batches_of_some_episodes_are_those_of_a_copy_of_them_mapped_too():
    whole, chosen, index = dataset(narrowed(NEAR)), np.array([1, 4, 5, 9]), torch.tensor([[0, 30, 31], [5, 79, 0]])
    mapped = allocate(NEAR.shape, np.float32, mapped=True)
    mapped[:] = whole.observations
    copied = StepData(whole.take(chosen), 1.0)
    weights = np.zeros(len(whole))
    weights[chosen] = 1
    for data in (StepData(whole, 1.0, weights=weights), StepData(dataset(mapped[:]), 1.0, weights=weights)):
        assert torch.equal(data.observed(index), copied.observed(index))
        assert torch.equal(data.returns_to_go, copied.returns_to_go) and len(data.episodes) == 4
        assert np.array_equal(data.statistics.mean, copied.statistics.mean)


def test_rows_of_a_mapped_array_are_read_where_they_lie(monkeypatch):
    mapped = allocate((40, 3), np.float64, mapped=True)
    mapped[:] = NEAR[:40]
    rows = np.array([39, 0, 1, 2, 17, 17, 16])
    for part, shift in ((mapped, 0), (mapped[5:], 5)):
        assert np.array_equal(gather(part, rows[1:]), NEAR[rows[1:] + shift])
    assert np.array_equal(gather(mapped, rows), NEAR[rows]) and not gather(mapped, rows[:0]).size
    copied = mapped.copy()
    release(copied)
    assert np.array_equal(gather(copied, rows), NEAR[rows])
    monkeypatch.setattr("aaren_rl.envs.data.episodes._AT_ONCE", 8)  # as of rows beyond 2 GiB
    assert np.array_equal(gather(mapped, rows), NEAR[rows])


def test_a_hash_is_of_the_numbers():
    one = dataset(NEAR.astype(np.float32))
    assert one.sha256() == dataset(NEAR.astype(np.float32)).sha256() != dataset((NEAR + 1).astype(np.float32)).sha256()


def test_what_is_mapped_from_the_disk_is_the_same():
    keep = [np.ones(len(NEAR), bool)]
    for raw in (NEAR, NEAR + 1e9):
        read = [read_observations([Column("x", raw)], keep, mapped) for mapped in (False, True)]
        assert np.array_equal(*read) and isinstance(read[1], np.memmap)


@pytest.mark.parametrize("rollout", ["recurrent", "window"])
@pytest.mark.slow
def test_a_policy_acts_as_one_around_zero_exported_too(rollout):
    origin, std = np.full(OBSERVATION, 1.7e9 + 0.1), torch.full((OBSERVATION,), 30.0)
    near = replace(make_policy(rollout=rollout), observation_mean=torch.zeros(OBSERVATION), observation_std=std)
    far = replace(near, observation_mean=torch.from_numpy(origin), exact=True)
    exported, acted = onnx_policy_of(far), []
    assert near.observation_dtype == np.float32 and far.observation_dtype == exported.observation_dtype == np.float64
    seen = 30 * np.random.default_rng(1).normal(size=(6, 2, OBSERVATION))
    for policy, shift in ((near, 0), (far, origin), (exported, origin)):
        state, actions = policy.initial_state(2, 3.0), []
        for observation in seen:
            # What a float64 near 1.7e9 holds of it.
            action, state = policy.act((observation + origin) - origin + shift, np.zeros(2), state)
            actions.append(action)
        acted.append(actions)
    np.testing.assert_allclose(acted[1], acted[0], atol=1e-6)
    np.testing.assert_allclose(acted[2], acted[0], atol=1e-5)


def test_a_mean_that_float32_holds_is_subtracted_as_in_training(tmp_path):
    """A counter's steps of 2 around 1e8, where float32 has steps of 8."""
    ticks = np.tile([-1.0, 1.0], 100)
    observations, actions = np.stack([1e8 + ticks, NEAR[:, 0] - NEAR[:, 0].mean()], 1), 0.5 * ticks[:, None]
    ends = np.arange(1, 201) % 20 == 0
    episodes = Episodes.from_arrays(observations, actions.astype(np.float32), np.ones(200), timeouts=ends)
    small = {"width": 16, "layers": 1, "heads": 2, "updates": 2, "steps_per_update": 100, "threads": 1}
    policy = train_policy("ticks", episodes=episodes, out=tmp_path, **small).policy
    assert policy.card.exact and policy.observation_dtype == np.float64
    acted, _ = policy.act(observations[:2], np.zeros(2), policy.initial_state(2))
    assert acted[0] != acted[1]


def test_a_card_keeps_the_digits_of_a_mean():
    card = make_card(make_policy().model, observation_mean=[1.7e9 + 0.123456] * 3)
    assert card_from_json(vars(card) | {"return_range": None}).observation_mean[0] == 1.7e9 + 0.123456


def test_what_is_far_from_zero():
    near, far = np.nextafter(FAR, 0.0), np.nextafter(FAR, 2 * FAR)
    assert is_far(np.array([near, far, -far]), np.ones(3)).tolist() == [False, True, True]
