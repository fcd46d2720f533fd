"""Seeds that train together: weights, losses and everything that is saved are those of each seed alone.

To the bit, but where rows of whole episodes are padded to the longest of a group: sums of more numbers round otherwise.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.envs import Episodes
from aaren_rl.envs.data.storage import MappedArray, allocate
from aaren_rl.train.data.batches import Batch, StepData
from aaren_rl.train.group import Group
from aaren_rl.train.seeds import _stepper
from aaren_rl.train.settings import make_config
from aaren_rl.train.trainer import Trainer

SEEDS, UPDATES = 3, 12
SMALL: dict[str, Any] = {"width": 32, "layers": 2, "heads": 2, "steps_per_update": 320, "updates": 40}
SMALL |= {"tbptt_length": 32, "precision": "float32", "warmup_updates": 3}
AGENTS = [
    ("decision-aaren", "episode"),
    ("decision-aaren", "tbptt"),
    ("decision-aaren", "mixed"),
    ("decision-aaren", "window"),
    ("decision-mingru", "episode"),
    ("decision-transformer", "window"),
]


def episodes(seed: int) -> Episodes:
    """Every seed's own, as where it holds out episodes of its own: of other lengths, too."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(40, 120, 20))])
    sizes = ((offsets[-1], k) for k in (4, 2, 1))
    observations, actions, rewards = (rng.uniform(-1, 1, size).astype(np.float32) for size in sizes)
    return Episodes(observations, actions, rewards[:, 0], offsets, np.ones(20, bool))


def trainer(
    agent: str, context: str, seed: int, *, on_device: bool = False, device: str = "cpu", **settings: Any
) -> Trainer:
    config = make_config({"agent": agent, "seed": seed, "context": context, **SMALL, **settings}, "default")
    return Trainer(config, StepData(episodes(seed), 10.0, device), 2, 200, on_device=on_device)


def every(agent: str, context: str, **settings: Any) -> list[Trainer]:
    return [trainer(agent, context, seed, **settings) for seed in range(SEEDS)]


def steps(trainers: list[Trainer], group: Group | None, count: int) -> Tensor:
    """Losses and norms of gradient steps, (count, 2, S)."""
    taken = []
    for _ in range(count):
        found = zip(*(one.step() for one in trainers), strict=True) if group is None else group.step()
        taken.append(torch.stack([torch.stack(tuple(part)) for part in found]).clone())
    return torch.stack(taken)


def same(first: Any, second: Any, padded: bool = False) -> None:
    """Equal to the bit, or to 1e-5 where `padded`, through dictionaries and lists."""
    if isinstance(first, Tensor) and padded:
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    elif isinstance(first, Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            same(value, second[key], padded)
    elif isinstance(first, list | tuple):
        for one, other in zip(first, second, strict=True):
            same(one, other, padded)
    else:
        assert first == second


def saved(one: Trainer, padded: bool = False) -> dict[str, Any]:
    one.gather()
    states = one.states()
    del states["torch"]  # which nothing draws by
    if not padded:
        return states
    # The bias of keys adds the same to all scores: its gradient is rounding alone, which AdamW makes large.
    weights = {name: {key: w for key, w in states[name].items() if "key.bias" not in key} for name in ("raw", "ema")}
    return weights | {"sampler": states["sampler"]}


@pytest.mark.parametrize("non_finite", ["stop", "skip"])
@pytest.mark.parametrize(("agent", "context"), AGENTS)
def test_a_seed_of_a_group_is_the_seed_alone(agent: str, context: str, non_finite: str) -> None:
    alone, together = (every(agent, context, non_finite=non_finite) for _ in range(2))
    group = Group(together)
    padded = context == "episode"
    same(steps(alone, None, UPDATES), steps(together, group, UPDATES), padded)
    assert padded == (len({one.mask.shape for one in alone}) > 1)  # sizes differ, or the test would not see padding
    for one, other in zip(alone, together, strict=True):
        assert one.update == other.update == UPDATES and one.mask.sum() == other.mask.sum()
        same(saved(one, padded), saved(other, padded), padded)


CONTEXTS = ["episode", "tbptt", "mixed", "window"]


def held_apart(context: str, stored: Episodes, **settings: Any) -> list[Trainer]:
    """Trainers on the same episodes, without some that are each seed's own."""
    made = []
    for seed in range(SEEDS):
        config = make_config({"agent": "decision-aaren", "seed": seed, "context": context, **SMALL}, "default")
        chosen = np.setdiff1d(np.arange(20), [seed, 3 * seed + 5])
        made.append(Trainer(config, StepData(stored, 10.0, chosen=chosen), 2, 200, **settings))
    return made


def samples(trainers: list[Trainer], count: int) -> list[list[Batch]]:
    return [[one.sampler.sample(one.generator) for one in trainers] for _ in range(count)]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_rows_of_a_batch_are_those_of_each_seed(context: str, apart: bool) -> None:
    """Of data that are the seeds' own, and of the same that each holds others out of: its own mean, too."""
    kinds = [held_apart(context, episodes(0)) if apart else every("decision-aaren", context) for _ in range(2)]
    alone, together = kinds
    group = Group(together)
    assert group.sampler is not None
    for batches in samples(alone, 6):
        whole = group.sampler.sample(*(one.generator for one in together))
        for k, batch in enumerate(batches):
            for name, expected in vars(batch).items():
                if expected is None:
                    assert getattr(whole, name) is None
                    continue
                found = getattr(whole, name).chunk(SEEDS)[k]
                if name != "previous_action":  # rows of episodes are padded to the longest of the seeds
                    assert not whole.mask.chunk(SEEDS)[k][:, expected.shape[1] :].any()
                    found = found[:, : expected.shape[1]]
                assert torch.equal(found, expected), name
    observations = [one.data.observations.data_ptr() for one in together]
    assert len(set(observations)) == (1 if apart else SEEDS)
    if context == "tbptt":
        assert all(torch.equal(a.sampler.next, b.sampler.next) for a, b in zip(alone, together, strict=True))


def test_data_on_the_disk_stay_there() -> None:
    stored = episodes(0)
    observations = allocate(stored.observations.shape, np.float32, mapped=True)
    observations[:] = stored.observations
    mapped = dataclasses.replace(stored, observations=observations)
    alone, together = (held_apart("tbptt", mapped) for _ in range(2))
    group = Group(together)
    assert group.sampler is None
    same(steps(alone, None, 3), steps(together, group, 3))
    assert all(isinstance(one.data.observations, MappedArray) for one in together)


def test_on_a_device_what_waits_for_nothing_is_the_same_up_to_rounding() -> None:
    alone, together = (every("decision-aaren", "tbptt", non_finite="skip", on_device=on) for on in (False, True))
    found = steps(alone, None, UPDATES), steps(together, Group(together), UPDATES)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_group_goes_on_where_its_seeds_were_saved_and_without_one_of_them() -> None:
    alone, together = (every("decision-aaren", "tbptt") for _ in range(2))
    steps(alone, None, UPDATES)
    steps(together, Group(together), UPDATES)
    restored = every("decision-aaren", "tbptt")
    for one, other in zip(restored, together, strict=True):
        other.gather()
        one.restore(UPDATES, other.states())
    rest = restored[1:]
    same(steps(alone[1:], None, 4), steps(rest, Group(rest), 4))
    same(steps(alone[:1], None, 4), steps(together[:1], None, 4))  # a trainer that leaves the group trains alone
    for one, other in zip(alone, [together[0], *rest], strict=True):
        same(saved(one), saved(other))


def test_who_leaves_a_group_takes_the_rates_of_its_own_steps() -> None:
    """Rates on the device are counted by who takes the steps."""
    alone, together = (every("decision-aaren", "tbptt", on_device=True) for _ in range(2))
    runs: Any = [SimpleNamespace(trainer=one) for one in together]
    whole = _stepper(runs)
    steps(alone, None, UPDATES)
    for _ in range(UPDATES):
        whole()
    rest = _stepper(runs[:1])
    for _ in range(3):
        expected = torch.stack(alone[0].step())
        torch.testing.assert_close(rest()[0], expected, rtol=1e-5, atol=1e-6)
    assert alone[0].optimizers.learning_rate == together[0].optimizers.learning_rate


def test_a_row_that_is_padded_holds_what_it_does_without() -> None:
    data = StepData(episodes(0), 10.0)
    begins, lengths = data.first[:3], data.lengths[:3]
    size = int(lengths.sum())
    segments = begins.unsqueeze(0), lengths.unsqueeze(0)
    exact, padded = (data.filled(*segments, steps, torch.tensor([[size]])) for steps in (size, size + 500))
    assert exact.mask.all() and padded.mask.sum() == size
    for name in ("observations", "actions", "returns_to_go", "timesteps", "starts"):
        assert torch.equal(getattr(padded, name)[:, :size], getattr(exact, name))


@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_that_is_not_finite_is_skipped_for_its_seed_alone(on_device: bool) -> None:
    alone, together = (every("decision-aaren", "tbptt", non_finite="skip", on_device=on_device) for _ in range(2))
    group = Group(together)
    for number in range(4):
        for one in (alone[1], together[1]):
            one.data.actions[:] = torch.nan if number == 1 else 0.5
        found = steps(alone, None, 1), steps(together, group, 1)
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert [one.skipped for one in together] == [one.skipped for one in alone] == [0, 1, 0]
    for one, other in zip(alone, together, strict=True):
        same(saved(one, padded=True), saved(other, padded=True), padded=True)


@pytest.mark.gpu
@pytest.mark.parametrize("context", ["episode", "tbptt", "window"])
def test_recorded_on_a_gpu_a_seed_is_the_seed_alone(context: str) -> None:
    together = every("decision-aaren", context, device="cuda", on_device=True)
    alone = every("decision-aaren", context, device="cuda", on_device=True)
    found = steps(alone, None, UPDATES), steps(together, Group(together), UPDATES)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
