"""Other packages' networks, as `bench train` trains them beside the package's own."""

from __future__ import annotations

import pytest
import torch

from aaren_rl.bench import peers, train
from aaren_rl.train.trainer import masked_mse


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_a_peer_learns(name: str) -> None:
    pytest.importorskip("transformers" if "transformers" in name else "torchrl", exc_type=ImportError)
    config = train.make_config({"context": "window", "steps_per_update": 160})
    data = train.StepData(train.make_episodes(3000), 1000.0)
    own = train.Trainer(config, data, 3, 1000)
    sizes = {"observation_dim": 11, "action_dim": 3, "width": 16, "layers": 1, "heads": 2}
    model, predict = peers.PEERS[name](sizes, 1000)
    batch = own.sampler.sample(own.generator)
    update = peers.make_update(model, predict, [batch], bfloat16=False, device=torch.device("cpu"))
    before = masked_mse(predict(batch), batch.actions, batch.mask).item()
    for _ in range(60):
        assert update() is batch.mask
    assert masked_mse(predict(batch), batch.actions, batch.mask).item() < before
