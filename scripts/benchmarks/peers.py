"""Decision Transformers from other packages, each trained by the plain loop of its documentation."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from aaren_rl.train.data import Batch
from aaren_rl.train.trainer import action_loss

Predict = Callable[[Batch], Tensor]  # actions (B, T, A)
Update = Callable[[], Tensor]  # returns the mask of its batch, False for padding


def make_update(
    model: nn.Module, predict: Predict, batches: list[Batch], *, bfloat16: bool, device: torch.device
) -> Update:
    """A gradient step of a peer on presampled batches, so data take no time. `bfloat16`: with autocast, as ours."""
    optimizer = torch.optim.AdamW(model.to(device).train().parameters(), lr=1e-4, weight_decay=1e-4)
    drawn = itertools.cycle(batches)

    def update() -> Tensor:
        batch = next(drawn)
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            predicted = predict(batch)
        optimizer.zero_grad(set_to_none=True)
        action_loss(predicted, batch.actions, batch.mask).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return batch.mask

    return update


def hugging_face(sizes: dict[str, int], horizon: int) -> tuple[nn.Module, Predict]:
    """DecisionTransformerModel of transformers, with its defaults except for sizes. Raises ImportError without it."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    names = {"observation_dim": "state_dim", "action_dim": "act_dim", "width": "hidden_size"}
    names |= {"layers": "n_layer", "heads": "n_head"}
    theirs: dict[str, Any] = {name: sizes[our] for our, name in names.items()}
    model = DecisionTransformerModel(DecisionTransformerConfig(**theirs, max_ep_len=horizon + 1))
    return (
        model,
        lambda batch: (
            model(
                states=batch.observations,
                actions=batch.actions,
                returns_to_go=batch.returns_to_go.unsqueeze(-1),
                timesteps=batch.timesteps,
                attention_mask=batch.mask.long(),
                return_dict=True,
            ).action_preds
        ),
    )


def torchrl(sizes: dict[str, int], horizon: int) -> tuple[nn.Module, Predict]:
    """DTActor of TorchRL, with its defaults except for sizes. Raises ImportError without it or transformers."""
    from torchrl.modules import DTActor

    if importlib.util.find_spec("transformers") is None:
        raise ImportError("No module named 'transformers'")
    config = DTActor.default_config()
    config.n_embd, config.n_layer, config.n_head = sizes["width"], sizes["layers"], sizes["heads"]
    config.n_inner = 4 * sizes["width"]
    model: nn.Module = DTActor(sizes["observation_dim"], sizes["action_dim"], config)
    return model, lambda batch: model(batch.observations, batch.actions, batch.returns_to_go.unsqueeze(-1))


PEERS = {"transformers DecisionTransformerModel": hugging_face, "torchrl DTActor": torchrl}


def make_peers(
    sizes: dict[str, int], horizon: int, batches: list[Batch], precisions: Iterable[str], device: torch.device
) -> tuple[dict[tuple[str, str], Update], list[str]]:
    """The gradient step of every peer by name and precision, and notes about peers that are not installed."""
    updates, notes = {}, []
    for name, make in PEERS.items():
        try:
            for precision in precisions:
                # Hide the messages that these packages print on import.
                with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
                    warnings.simplefilter("ignore")
                    model, predict = make(sizes, horizon)
                half = precision == "bfloat16"
                updates[name, precision] = make_update(model, predict, batches, bfloat16=half, device=device)
        except ImportError as error:
            notes.append(f"{name} is left out: {error}; pip install 'aaren-rl[bench]'")
    return updates, notes
