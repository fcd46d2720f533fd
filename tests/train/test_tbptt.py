"""Rows that play whole episodes over many updates, and the state that goes with them."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import CONSTANT_STATE
from scipy.stats import chisquare
from torch import Tensor
from windows import LENGTHS, generator, make_data

from aaren_rl.agents import DecisionModel, ModelConfig
from aaren_rl.agents.model.decision import TrunkState
from aaren_rl.train.config import DataConfig, RunConfig, build_config
from aaren_rl.train.data import Batch, Carried, TbpttSampler, settle_context
from aaren_rl.train.trainer import Trainer, action_loss

CONFIG = ModelConfig(observation_dim=3, action_dim=2, width=16, layers=2, heads=2, dropout=0.0, max_timestep=60)
LENGTH, ROWS = 6, 4


def updates(count: int, seed: int = 0) -> list[Batch]:
    source, random = TbpttSampler(make_data(), LENGTH, LENGTH * ROWS), generator(seed)
    return [source.sample(random) for _ in range(count)]


def played(batches: list[Batch]) -> list[list[tuple[int, int]]]:
    """(episode, step) of everything that a row has seen, by row; the columns are those of `make_data`."""
    data = make_data()
    raw = torch.cat([b.observations for b in batches], 1) * data.observation_std + data.observation_mean
    return [[(int(e), int(t)) for e, t, _ in row] for row in raw.round().long().tolist()]


def test_a_row_plays_whole_episodes_one_after_the_other():
    """Each is equally likely, but for the first of a row, of which longer ones are likelier."""
    batches, counts = updates(1500), np.zeros(len(LENGTHS))
    starts = torch.cat([b.starts for b in batches if b.starts is not None], 1)
    assert starts.shape == (ROWS, 1500 * LENGTH) and bool(starts[:, 0].all())
    for row, begun in zip(played(batches), starts.tolist(), strict=True):
        for (episode, step), (after, next_step), new in zip(row, row[1:], begun[1:], strict=False):
            if step + 1 == LENGTHS[episode]:
                assert next_step == 0 and new
                counts[after] += 1
            else:
                assert (after, next_step) == (episode, step + 1) and not new
    assert chisquare(counts).pvalue > 0.01
    # Rows begin anywhere in one long episode, not all at its first step, or they would end together.
    first = TbpttSampler(make_data((1000,)), LENGTH, LENGTH * 50).sample(generator()).timesteps[:, 0]
    assert len(first.unique()) > 40 and int(first.max()) > 800


def predict(model: DecisionModel, b: Batch, state: TrunkState | None) -> tuple[Tensor, TrunkState]:
    named = {"starts": b.starts, "previous_action": b.previous_action}
    return model(b.observations, b.actions, b.returns_to_go, b.timesteps, state, **named)


@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("mixer", CONSTANT_STATE)
def test_carried_updates_see_what_the_whole_episode_shows(mixer, tokens_per_step):
    """With weights that stand still: all updates of a row, and the row at once."""
    torch.manual_seed(0)
    model = DecisionModel(replace(CONFIG, mixer=mixer, tokens_per_step=tokens_per_step)).eval()
    batches, carried, found = updates(30), Carried(model.initial_state(ROWS)), []
    for b in batches:
        actions, after = predict(model, b, carried.state)
        carried.keep(after)
        found.append(actions)
    assert not any(part.requires_grad for part in carried.tensors())
    names = ("observations", "actions", "returns_to_go", "timesteps", "starts")
    *whole, starts = (torch.cat([getattr(b, name) for b in batches], 1) for name in names)
    torch.testing.assert_close(torch.cat(found, 1), model(*whole, starts=starts)[0], rtol=1e-4, atol=1e-5)


def make_trainer() -> Trainer:
    rows = {"context": "tbptt", "tbptt_windows": 0.0, "tbptt_length": LENGTH, "steps_per_update": LENGTH * ROWS}
    network = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.0, "precision": "float32"}
    return Trainer(build_config({**rows, **network, "updates": 10}), make_data(), 2, 60)


def test_the_trainer_goes_on_from_the_state_it_left():
    trainer = make_trainer()
    trainer.step()
    assert trainer.carried is not None and all(len(part) == ROWS for part in trainer.carried.tensors())
    random = torch.Generator()
    random.set_state(trainer.generator.get_state())
    b = copy.deepcopy(trainer.sampler).sample(random)
    losses = []
    for state in (trainer.carried.state, None):
        with torch.no_grad():
            actions, _ = predict(trainer.model, b, state)
        losses.append(action_loss(actions, b.actions, b.mask))
    loss, _ = trainer.step()
    torch.testing.assert_close(loss, losses[0], rtol=2e-6, atol=0)
    assert abs(losses[1] - loss) > 2e-5 * loss


@pytest.mark.parametrize(
    ("agent", "length", "context"),
    [("decision-aaren", 850, "episode"), ("decision-aaren", 856, "tbptt"), ("decision-transformer", 100, "window")],
)
def test_auto_is_what_suits_the_data(agent, length, context):
    """An update of 1,280 steps holds one and a half episodes of 853."""
    config = RunConfig(agent=agent, data=DataConfig(context="auto"))
    assert settle_context(config, length).data.context == context
    if context == "window":
        with pytest.raises(ValueError, match="context: tbptt requires a recurrent agent"):
            replace(config, data=DataConfig(context="tbptt", tbptt_windows=0.0))


def test_a_state_that_holds_values_is_not_carried():
    """That of recurrence encoding with powers; without them it has a constant size."""
    for power, carried in ((None, True), (0, True), (3, False)):
        network = replace(RunConfig().network, rem_max_power=power)
        assert RunConfig(agent="decision-aaren-rsa", network=network).constant_state is carried


def test_a_share_of_the_rows_begins_anywhere_at_every_gradient_step():
    """With a fresh state; the others continue as without them."""
    data, random = make_data((300, 200, 400)), generator()
    drawn = TbpttSampler(data, 20, 100, 0.6)
    first = drawn.sample(random)
    for _ in range(5):
        second = drawn.sample(random)
        assert bool(second.starts[2:, 0].all()) and not second.starts[:2, 0].any()
        assert torch.equal(second.timesteps[:2, 0], first.timesteps[:2, -1] + 1)
        assert not torch.equal(second.timesteps[2:, 0], first.timesteps[2:, -1] + 1)
        first = second
