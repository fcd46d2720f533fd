"""Training batches from small data sets whose observations say which episode and step they are."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch._subclasses.fake_tensor import FakeTensorMode
from windows import LENGTHS, generator, make_data, sampler, stretches

from aaren_rl.train.data import EpisodeSampler, WindowSampler


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
