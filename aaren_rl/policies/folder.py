"""The policy folder, in the layout of the Hugging Face hub.

It holds config.json (how the policy was made, all it needs to act, and the SHA-256 of the other files) and
model.safetensors (the weights that it acts with); in a run also model_raw.safetensors, the raw weights.
Nothing that is read here is executed: JSON and safetensors.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..agents.model.config import ModelConfig
from ..agents.model.decision import DecisionModel, ReturnRange
from ..agents.policy.policy import Policy
from ..base.errors import CheckpointError, one_line
from ..base.fields import read
from ..base.files import is_there, read_small, sha256, write_folder, write_json, write_text
from ..envs.tasks.spaces import as_flat
from .card import WEIGHTS, PolicyCard, card_from_json, weights_words

FORMAT = 5
CARD = "config.json"
FOLDERS = ("policy", "policy_best")  # of a run


def save_policy(
    folder: Path, card: PolicyCard, states: Mapping[str, Mapping[str, Tensor]], readme: str | None = None
) -> None:
    """Writes a policy folder, whole or not at all, in place of one that was there.

    `states` are "ema" or "raw" -> the model's weights, with those that the card names; `readme` is README.md.
    """

    def fill(fresh: Path) -> None:
        for weights, tensors in states.items():
            content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
            (fresh / _weights_file(card, weights)).write_bytes(content)
        _write_card(fresh, card)
        if readme is not None:
            write_text(fresh / "README.md", readme)

    write_folder(folder, fill)


def amend_card(folder: Path, **changes: Any) -> None:  # noqa: ANN401  values of fields
    """Writes a policy folder's card again with other values of some fields; raises CheckpointError as `read_card`."""
    _write_card(folder, dataclasses.replace(read_card(folder), **changes))


def _weights_file(card: PolicyCard, weights: str) -> str:
    return "model.safetensors" if weights == card.weights else f"model_{weights}.safetensors"


def _write_card(folder: Path, card: PolicyCard) -> None:
    digests = {file.name: sha256(file) for file in folder.glob("*.safetensors")}
    tree = dataclasses.asdict(card)
    write_json(folder / CARD, {"format": FORMAT, "sha256": digests, "card_sha256": _digest(tree), **tree})


def _digest(tree: dict[str, Any]) -> str:
    """The SHA-256 of a card's own entries, by which a damaged digit is found."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def policy_folder(path: str | Path) -> Path:
    """The policy folder meant by a run folder or by itself; raises CheckpointError where there is none."""
    path = Path(path)
    for folder in (path, path / FOLDERS[0]):
        if is_there(folder / CARD):
            return folder
    raise CheckpointError(f"{path}: no policy here; give a run folder or its policy/ (is its training finished?)")


def has_policies(run: Path) -> bool:
    """Whether both policies of a run are there; a user may have deleted one."""
    return all(is_there(run / name / CARD) for name in FOLDERS)


def read_card(path: str | Path) -> PolicyCard:
    """The card of a run folder's policy; raises CheckpointError: no policy, not readable, or of another format."""
    return _read_json(policy_folder(path))[0]


@dataclasses.dataclass(frozen=True)
class SavedPolicy(Policy):
    """A policy with its card, which says how it was made."""

    card: PolicyCard = dataclasses.field(kw_only=True, repr=False, compare=False)


def load_policy(
    path: str | Path,
    *,
    rollout: str | None = None,
    rollout_context: int | None = None,
    weights: str | None = None,
    device: torch.device | str = "cpu",
    temperature: float | None = None,
) -> SavedPolicy:
    """A trained policy, ready to act; its `card` says how it was made, and its `target_return` is the card's.

    Args:
        path: a run folder or its policy/, or one in the hub's layout (`hf download USER/NAME --local-dir FOLDER`).
        rollout: "recurrent", "staggered" or "window"; None: as on its card.
        rollout_context: K of the modes staggered and window, in steps.
        weights: "ema" or "raw" instead of the default.
        device: where to run it.
        temperature: discrete actions are sampled from softmax(logits / temperature); None: the most likely one.

    Raises:
        CheckpointError: the folder is missing, damaged or does not fit together, or an argument is unknown.
    """
    folder = policy_folder(path)
    if weights not in (None, *WEIGHTS):
        raise CheckpointError(f"weights {weights!r} is not one of {', '.join(WEIGHTS)}")
    card, digests = _read_json(folder)
    weights = weights or card.weights
    file = folder / _weights_file(card, weights)
    if weights != card.weights and not file.exists():
        raise CheckpointError(
            f"{folder}: holds the {weights_words(card.weights)} only; the {weights_words(weights)} are in its run"
        )
    tensors = load_tensors(file, digests.get(file.name))
    try:
        model = make_model(read(ModelConfig, card.model, "model"), tensors)
        policy = make_policy(model.to(device), card, rollout=rollout, rollout_context=rollout_context)
        return policy if temperature is None else dataclasses.replace(policy, temperature=temperature)
    except (TypeError, ValueError, RuntimeError, OverflowError, AssertionError) as error:  # torch asserts CUDA
        raise CheckpointError(f"{folder}: {one_line(error)}") from error


def make_policy(
    model: DecisionModel, card: PolicyCard, *, rollout: str | None = None, rollout_context: int | None = None
) -> SavedPolicy:
    """The policy of a model and its card, on the model's device; the arguments are those of `load_policy`.

    Raises:
        TypeError, ValueError, RuntimeError: an argument is unknown, or the card does not fit the model.
    """
    device, bounds, config = next(model.parameters()).device, card.return_range, model.config
    if (config.action_dim if config.discrete else None) != card.n_actions:
        kind = "discrete" if config.discrete else "continuous"
        raise ValueError(f"n_actions is {card.n_actions}, and the model has {config.action_dim} {kind} actions")

    def vector(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    fed = None
    if bounds is not None:
        fed = ReturnRange(bounds.every, np.array([bounds.low, bounds.high]).T)
    span: dict[str, Any] = {name: vector(getattr(card, name), torch.float64) for name in ("action_low", "action_high")}
    rollout = card.rollout if rollout is None else rollout
    return SavedPolicy(
        model,
        vector(card.observation_mean, torch.float64),
        vector(card.observation_std),
        card.return_scale,
        rollout,
        card.rollout_context if rollout_context is None else rollout_context,
        return_range=fed,
        target_return=card.target_return,
        action_start=card.action_start,
        card=card,
        exact=card.exact,
        flatten=partial(as_flat, card.observation_space),
        tree=None if rollout == "window" else config.tree(),
        **({} if config.discrete else span),
    )


def load_tensors(file: Path, digest: str | None = None) -> dict[str, Tensor]:
    """Reads safetensors, with the SHA-256 `digest` if that is given; raises CheckpointError where this cannot be."""
    try:
        if file.exists() and not file.is_file():
            raise ValueError("is not a file")  # a pipe would never end
        content = file.read_bytes()
        tensors = load(content)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{file}: not readable: {one_line(error)}") from error
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{file}: damaged (its SHA-256 is not the card's)")
    return tensors


def _read_json(folder: Path) -> tuple[PolicyCard, dict[str, Any]]:
    file = folder / CARD
    try:
        tree = json.loads(read_small(file))
        if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
            raise ValueError(f"not a policy of format {FORMAT}")
        digests = tree.pop("sha256", {})
        if not isinstance(digests, dict):
            raise ValueError("sha256 is not an object")
        digest = tree.pop("card_sha256", None)  # of a card written by hand, or before there was one: None
        card = card_from_json(tree)
        if digest not in (None, _digest(tree)):
            raise ValueError("damaged or edited (its SHA-256 is not card_sha256, which you may delete if it is meant)")
        return card, digests
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable: {one_line(error)}") from error


def make_model(config: ModelConfig, tensors: Mapping[str, Tensor]) -> DecisionModel:
    """The model with these weights, in float32; ValueError or RuntimeError where they do not fit it.

    That is found before memory is allocated for the model.
    """
    if config.layers > len(tensors):
        raise ValueError(f"the model has {config.layers} layers, its weights are {len(tensors)} tensors")
    if config.width > (widest := max((size for tensor in tensors.values() for size in tensor.shape), default=0)):
        raise ValueError(f"the model's width is {config.width}, and no size of its weights is above {widest}")
    with torch.device("meta"):
        model = DecisionModel(config)
    copies = {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(copies, assign=True)
    return model
