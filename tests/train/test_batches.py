"""Training batches from small data sets whose observations say which episode and step they are."""

import re

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import chisquare
from small_run import quick
from torch._subclasses.fake_tensor import FakeTensorMode
from windows import LENGTHS, generator, make_data, make_episodes, sampler, stretches

from aaren_rl.envs import Episodes
from aaren_rl.envs.data.draws import draw_weights, effective
from aaren_rl.policies.folder import read_card
from aaren_rl.train.config import DataConfig
from aaren_rl.train.data import EpisodeSampler, StepData, WindowSampler, make_sampler


def test_windows_are_cut_only_by_the_episodes_end():
    data = make_data()
    batch = WindowSampler(data, 20, 2000).sample(generator())
    assert batch.mask.shape == (100, 20) and batch.starts is None
    for episode, first, length in stretches(batch, data):
        assert length == min(20, LENGTHS[episode] - first)


@pytest.mark.parametrize("context", ["window", "mixed"])
def test_starts_are_uniform_over_steps(context):
    """Tails and one-step episodes included."""
    data = make_data()
    counts = torch.zeros(len(data))
    offsets = np.cumsum([0, *LENGTHS])
    random = generator(1)
    for _ in range(6):
        # The last stretch of a "mixed" row is a cut one, but begins anywhere all the same.
        found = stretches(sampler(context, data, 20_000).sample(random), data)
        counts += torch.bincount(torch.tensor([offsets[e] + first for e, first, _ in found]), minlength=len(data))
    assert len(data) == sum(LENGTHS) and float(counts.sum()) > 40 * len(data)
    assert chisquare(counts.numpy()).pvalue > 0.01


def test_episodes_are_whole_and_equally_likely():
    """Windows that begin anywhere fill the row: by episode starts, their steps would be seen too often."""
    data = make_data()
    offsets, whole = np.cumsum([0, *LENGTHS]), round(1000 * len(LENGTHS) / sum(LENGTHS))
    counts, begins, random = torch.zeros(len(LENGTHS)), torch.zeros(sum(LENGTHS)), generator()
    for _ in range(100):
        batch = EpisodeSampler(data, 1000).sample(random)
        found = stretches(batch, data)
        assert bool(batch.mask.all()) and batch.mask.shape[0] == 1 and batch.mask.shape[1] % 128 == 0
        assert all(first == 0 and length == LENGTHS[episode] for episode, first, length in found[:whole])
        assert sum(length for *_, length in found[:whole]) > batch.mask.shape[1] - 128
        counts += torch.bincount(torch.tensor([episode for episode, *_ in found[:whole]]), minlength=len(LENGTHS))
        # The row's end may cut the last window, and nothing else.
        windows = found[whole:]
        assert all(length == min(20, LENGTHS[episode] - first) for episode, first, length in windows[:-1])
        places = [offsets[episode] + first for episode, first, _ in windows]
        begins += torch.bincount(torch.tensor(places, dtype=torch.long), minlength=len(begins))
    assert chisquare(counts.numpy()).pvalue > 0.01
    assert begins.sum() > 4 * len(begins) and chisquare(begins.numpy()).pvalue > 0.01


@pytest.mark.parametrize("context", ["window", "mixed"])
def test_no_shape_depends_on_what_is_drawn(context):
    """Tensors without memory: a number that is asked for, or a shape made from one, is an error."""
    data = make_data()
    mode = FakeTensorMode()
    for name, value in vars(data).items():
        if isinstance(value, torch.Tensor):
            setattr(data, name, mode.from_tensor(value))
    with mode:
        data.normalize_by(data.observation_mean, data.observation_std)
        batch = sampler(context, data, 64).sample(generator())
    assert batch.observations.shape[:2].numel() in (60, 64)


RANDOM = np.random.default_rng(0)
SPREAD = RANDOM.uniform(0, 3000, 200)


def weights_of(returns: npt.ArrayLike, length: int = 1000, share: float = 0.2) -> npt.NDArray[np.float64]:
    returns = np.asarray(returns, np.float64)
    weights = draw_weights(returns, np.full(len(returns), length), "return", share)
    assert weights.max() == 1 and weights.min() >= 0
    assert (np.diff(weights[np.argsort(returns)]) >= 0).all()  # never less for a better episode
    return weights


@pytest.mark.parametrize(
    ("returns", "count"),
    [
        (SPREAD, 40),
        (-SPREAD - 100, 40),
        (1e-9 * SPREAD, 40),
        (1e30 * SPREAD, 40),
        (np.append(SPREAD[1:], 1e9), 40),  # a giant return
        (np.append(SPREAD[1:], -1e9), 40),
        (np.eye(50)[0], 30),  # one success: no less than 30 episodes
        (np.arange(100) < 50, 50),  # successes are all the same
        (SPREAD[:100], 30),
        (SPREAD[:30], 30),
        (SPREAD[:10], 10),
        (np.zeros(60), 60),
        ([5.0], 1),
    ],
)
def test_the_effective_number_of_episodes(returns, count):
    assert effective(weights_of(returns)) == pytest.approx(count, rel=1e-6)


def test_nearly_equal_returns_are_drawn_about_equally_often():
    assert effective(weights_of(3600 + 30 * RANDOM.standard_normal(200))) > 190


def test_a_giant_return_leaves_the_others_apart():
    returns = np.append(SPREAD, 1e9)
    weights = weights_of(returns)
    assert np.average(SPREAD, weights=weights[:-1]) > 2000 and weights[:-1][SPREAD < 1000].max() == 0


def test_few_steps_are_all_drawn():
    assert effective(weights_of(SPREAD, length=150)) == pytest.approx(200 * 20_000 / 30_000)
    assert weights_of(SPREAD, length=100).min() == 1


def test_best_and_uniform():
    lengths = np.full(200, 1000)
    best = draw_weights(SPREAD, lengths, "best", 0.1)
    assert np.array_equal(best, SPREAD >= np.sort(SPREAD)[-20])
    assert (draw_weights(SPREAD, lengths, "uniform", 0.1) == 1).all()


@pytest.mark.parametrize("context", ["window", "episode", "mixed", "tbptt"])
def test_steps_are_drawn_in_proportion_to_the_weights(context):
    """Observations tell which episode a step is of; a share of 9 % of 9,000 episodes or more is off by 3 % at most."""
    lengths, weights = (30, 40, 20, 25, 35), np.array([0.25, 1.0, 0.0, 0.5, 1.0])
    data = StepData(make_episodes(lengths), 1.0, weights=weights)
    config = DataConfig(context=context, tbptt_length=20, context_length=2, steps_per_update=300_000)
    batch = make_sampler(config, data, 20).sample(torch.Generator().manual_seed(0))
    raw = batch.observations * data.observation_std + data.observation_mean
    counts = np.bincount(raw[..., 0][batch.mask].round().long(), minlength=5)
    assert counts[2] == 0
    expected = weights * lengths / (weights @ lengths)
    if context != "mixed":  # whose segments are cut at the end of an episode, and so favor long ones
        np.testing.assert_allclose(counts / counts.sum(), expected, rtol=0.1)


def test_normalization_follows_the_weights():
    """Bad episodes far away must not blind the policy; against float64."""
    observations = RANDOM.normal(size=(300, 2)).astype(np.float32)
    observations[:200] *= 100
    offsets = np.array([0, 200, 250, 300])
    episodes = Episodes(observations, observations, observations[:, 0], offsets, np.ones(3, bool))
    for weights in (np.array([0, 0.5, 1.0]), np.array([0.1, 0.5, 1.0])):
        each = np.repeat(weights, [200, 50, 50])
        mean = np.average(observations.astype(np.float64), axis=0, weights=each)
        std = np.sqrt(np.average((observations - mean) ** 2, axis=0, weights=each))
        data = StepData(episodes, 1.0, weights=weights)
        np.testing.assert_allclose(data.observation_mean, mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(data.observation_std, std, rtol=1e-5)


def test_a_run_says_what_is_drawn(tmp_path, hopper_file, capsys):
    """In its first line and on its card; and its target is what the best tenth of a file reached."""
    run = quick(tmp_path, hopper_file, "--updates 1")
    card = read_card(run)
    assert (card.draws, card.draw_share) == ("return", 0.2)
    assert card.target_return == pytest.approx(card.data_returns["best_tenth"], rel=1e-3)
    printed = capsys.readouterr().out
    told = r"steps, drawn by return: \d+ of \d+ episodes effective, mean return [\d.]+ of [\d.]+; \d+ more are held out"
    assert re.search(told, printed)
    assert "episodes drawn by return (effective share 0.2), training seed 0" in printed
