"""Other packages' networks, as `bench train` trains them beside the package's own."""

from __future__ import annotations

import pytest
import torch

from aaren_rl.bench.training import benchmark, peers


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_a_peer_learns(name: str) -> None:
    pytest.importorskip("transformers" if "transformers" in name else "torchrl", exc_type=ImportError)
    config = benchmark.build_config("decision-aaren", 0, {"data": {"context": "window", "steps_per_update": 160}})
    data = benchmark.StepData(benchmark.make_episodes(3000), 1000.0)
    own = benchmark.Trainer(config, data, 3, 1000)
    sizes = {"observation_dim": 11, "action_dim": 3, "width": 16, "layers": 1, "heads": 2}
    model, predict = peers.PEERS[name](sizes, 1000)
    batch = own.sampler.sample(own.generator)
    peer = peers.Peer(model, predict, [batch], bfloat16=False, device=torch.device("cpu"))
    assert predict(batch).shape == batch.actions.shape
    losses = [float(peer.step()) for _ in range(60)]
    assert losses[-1] < losses[0]
