"""Small data sets whose observations say which episode and step they are, and what is drawn from them."""

import numpy as np
import torch

from aaren_rl.envs import Episodes, returns_to_go
from aaren_rl.train.config import DataConfig
from aaren_rl.train.data import Batch, Sampler, StepData, make_sampler

SCALE = 10.0
LENGTHS = (1, 7, 30, 2, 1, 55, 12)


def make_episodes(lengths: tuple[int, ...] = LENGTHS) -> Episodes:
    """Observation (episode, step, 3): a constant column too. Action and reward tell them as well."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    columns = [np.stack(c, -1).astype(np.float32) for c in ((episode, step, 0 * step + 3), (episode, -step))]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rewards = (step + 100 * episode).astype(np.float32)
    return Episodes(*columns, rewards, offsets, np.ones(len(lengths), bool))


def make_data(lengths: tuple[int, ...] = LENGTHS) -> StepData:
    return StepData(make_episodes(lengths), SCALE)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampler(context: str, data: StepData, steps: int = 256) -> Sampler:
    config = DataConfig(context=context, tbptt_windows=0.0, tbptt_length=20, steps_per_update=steps)
    return make_sampler(config, data, horizon=50)


def stretches(batch: Batch, data: StepData) -> list[tuple[int, int, int]]:
    """(episode, first step, length) of every sequence in a batch, all that they carry checked on the way."""
    episodes, found = make_episodes(tuple(data.lengths.tolist())), []
    raw = (batch.observations * data.observation_std + data.observation_mean).round().long()
    assert bool((raw[..., 2] == 3).all())
    for row in range(len(raw)):
        length = int(batch.mask[row].sum())
        assert bool(batch.mask[row, :length].all())  # padded on the right only
        begins = [0] if batch.starts is None else batch.starts[row].nonzero().flatten().tolist()
        if len(raw) > 1 and begins[:1] != [0]:
            begins.insert(0, 0)  # a row that goes on from the last update
        assert begins[0] == 0
        for begin, end in zip(begins, [*begins[1:], length], strict=True):
            episode, first = (int(x) for x in raw[row, begin, :2])
            steps = slice(first, first + end - begin)
            assert steps.stop <= len(episodes[episode])
            wanted = torch.arange(first, steps.stop)
            assert bool((raw[row, begin:end, 0] == episode).all()) and torch.equal(raw[row, begin:end, 1], wanted)
            assert torch.equal(batch.timesteps[row, begin:end], wanted)
            assert torch.equal(batch.actions[row, begin:end], torch.from_numpy(episodes[episode].actions[steps]))
            to_go = torch.from_numpy(returns_to_go(episodes[episode].rewards)[steps]) / SCALE
            torch.testing.assert_close(batch.returns_to_go[row, begin:end], to_go)
            found.append((episode, first, end - begin))
    return found
