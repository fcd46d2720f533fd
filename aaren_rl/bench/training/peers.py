"""Decision Transformers that pip can install, each trained by the plain loop of its documentation."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from ...train.contexts.batches import Batch
from ...train.trainer import masked_mse

Step = Callable[[], Tensor]
Predict = Callable[[Batch], Tensor]


class Peer:
    """A peer's model and its update.

    Args:
        model: the peer's own module.
        predict: actions (B, T, A) of a batch.
        batches: drawn beforehand, so that the peer pays nothing for its data.
        bfloat16: run the forward pass under autocast, as ours.
        device: what it trains on.
    """

    def __init__(
        self, model: nn.Module, predict: Predict, batches: list[Batch], *, bfloat16: bool, device: torch.device
    ) -> None:
        """Moves the model to the device."""
        self.model, self.predict, self.batches = model.to(device).train(), predict, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
        self.updates, self.mask = 0, batches[0].mask  # updates done, and which of the last one's steps are real

    def step(self) -> Tensor:
        """One update; returns its loss."""
        batch = self.batches[self.updates % len(self.batches)]
        self.updates, self.mask = self.updates + 1, batch.mask
        with self.autocast:
            predicted = self.predict(batch)
        loss = masked_mse(predicted, batch.actions, batch.mask)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()
        return loss.detach()


def hugging_face(sizes: dict[str, int], horizon: int) -> tuple[nn.Module, Predict]:
    """transformers' DecisionTransformerModel, its defaults but for the sizes.

    Raises:
        ImportError: transformers is not installed.
    """
    with _quiet():
        from transformers import DecisionTransformerConfig, DecisionTransformerModel

        config = DecisionTransformerConfig(
            state_dim=sizes["observation_dim"],
            act_dim=sizes["action_dim"],
            hidden_size=sizes["width"],
            n_layer=sizes["layers"],
            n_head=sizes["heads"],
            max_ep_len=horizon + 1,
        )
        model = DecisionTransformerModel(config)

    def predict(batch: Batch) -> Tensor:
        predicted: Tensor = model(
            states=batch.observations,
            actions=batch.actions,
            returns_to_go=batch.returns_to_go.unsqueeze(-1),
            timesteps=batch.timesteps,
            attention_mask=batch.mask.long(),
            return_dict=True,
        ).action_preds
        return predicted

    return model, predict


def torchrl(sizes: dict[str, int], horizon: int) -> tuple[nn.Module, Predict]:
    """TorchRL's DTActor, its defaults but for the sizes.

    Raises:
        ImportError: torchrl, or transformers, on which it builds, is not installed.
    """
    with _quiet():
        from torchrl.modules import DTActor

        if importlib.util.find_spec("transformers") is None:
            raise ImportError("No module named 'transformers'")
        config = DTActor.default_config()
        config.n_embd, config.n_layer, config.n_head = sizes["width"], sizes["layers"], sizes["heads"]
        config.n_inner = 4 * sizes["width"]
        model: nn.Module = DTActor(sizes["observation_dim"], sizes["action_dim"], config)

    def predict(batch: Batch) -> Tensor:
        predicted: Tensor = model(batch.observations, batch.actions, batch.returns_to_go.unsqueeze(-1))
        return predicted

    return model, predict


PEERS = {"transformers DecisionTransformerModel": hugging_face, "torchrl DTActor": torchrl}


def make_peers(
    sizes: dict[str, int], horizon: int, batches: list[Batch], precisions: Iterable[str], device: torch.device
) -> tuple[dict[tuple[str, str], Peer], list[str]]:
    """Every peer by name and precision, and what to say of those that are not installed."""
    peers, notes = {}, []
    for name, make in PEERS.items():
        try:
            for precision in precisions:
                model, predict = make(sizes, horizon)
                half = precision == "bfloat16"
                peers[name, precision] = Peer(model, predict, batches, bfloat16=half, device=device)
        except ImportError as error:
            notes.append(f"{name} is left out: {error}; pip install 'aaren-rl[bench]'")
    return peers, notes


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the packages say while they are imported is about themselves."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
