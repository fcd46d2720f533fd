"""What a run leaves behind for others: the policy folder.

It holds policy.json (how the policy was made, all it needs to act, and the SHA-256 of the other files),
weights.safetensors (the raw weights) and weights_average.safetensors (their moving average). Nothing that is read here
is executed: JSON and safetensors.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..agents import DecisionModel, ModelConfig, Policy, ReturnRange
from ..envs.errors import one_line
from ..envs.files import sha256
from ..errors import CheckpointError
from ..files import is_there, read_small, write_folder, write_json
from .card import PolicyCard, ReturnBounds, card_from_json
from .names import asked_number
from .tensors import FORMAT, WEIGHTS, load_tensors, save_tensors

CARD = "policy.json"
# The same card, and the weights that it names, as the Hugging Face hub has them (`aaren_rl.hub`).
HUB_CARD, HUB_WEIGHTS = "config.json", "model.safetensors"
FOLDERS = ("policy", "policy_best")  # of a run


def save_policy(folder: Path, card: PolicyCard, raw: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> None:
    """Writes a policy folder, whole or not at all; one that stood there is replaced."""

    def fill(fresh: Path) -> None:
        save_tensors(raw, fresh / WEIGHTS["raw"])
        save_tensors(average, fresh / WEIGHTS["average"])
        write_card(fresh / CARD, card, WEIGHTS.values())

    write_folder(folder, fill)


def write_card(file: Path, card: PolicyCard, weights: Iterable[str]) -> None:
    """Writes a card as `read_card` reads it, with the SHA-256 of the files of weights beside it."""
    digests = {name: sha256(file.with_name(name)) for name in weights}
    write_json(file, {"format": FORMAT, "sha256": digests, **dataclasses.asdict(card)})


def amend_card(folder: Path, **changes: Any) -> None:  # noqa: ANN401  values of fields
    """Writes a policy folder's card anew with other values of some fields; the weights stay.

    Raises:
        CheckpointError: no policy, or not readable.
    """
    write_card(folder / CARD, dataclasses.replace(read_card(folder), **changes), WEIGHTS.values())


def policy_folder(path: str | Path) -> Path:
    """The policy folder meant by a run folder or by itself; one in the hub's layout is a policy folder too.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    for folder in (path, path / FOLDERS[0]):
        if is_there(folder / CARD) or is_there(folder / HUB_CARD):
            return folder
    raise CheckpointError(f"{path}: no policy here; give a run folder or its policy/ (is its training finished?)")


def read_card(path: str | Path) -> PolicyCard:
    """The card of a run folder's policy.

    Raises:
        CheckpointError: no policy, not readable, or of another format.
    """
    folder = policy_folder(path)
    with _offering_the_other(folder):
        return _read_json(folder)[0]


def load_policy(
    path: str | Path,
    *,
    rollout: str | None = None,
    rollout_context: int | None = None,
    weights: str | None = None,
    device: torch.device | str = "cpu",
) -> Policy:
    """A trained policy, ready to act; its `card` says how it was made, and its `target_return` is the card's.

    Args:
        path: a run folder or its policy/ folder.
        rollout: "carry", "rolling" or "window" instead of the mode it was trained for.
        rollout_context: K of the modes rolling and window, in steps.
        weights: "average" or "raw" instead of the default.
        device: where to run it.

    Raises:
        CheckpointError: the folder is missing, damaged or does not fit together, or an argument is unknown.
    """
    folder = policy_folder(path)
    with _offering_the_other(folder):
        card, digests = _read_json(folder)
        model = _load_model(folder, card, digests, weights or card.weights)
    try:
        return make_policy(model.to(device), card, rollout=rollout, rollout_context=rollout_context)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:  # torch asserts that there is CUDA
        raise CheckpointError(f"{folder}: {one_line(str(error))}") from error


def make_policy(
    model: DecisionModel, card: PolicyCard, *, rollout: str | None = None, rollout_context: int | None = None
) -> Policy:
    """The policy of a model and its card, on the model's device; the arguments are those of `load_policy`.

    Raises:
        TypeError, ValueError, RuntimeError: an argument is unknown, or the card does not fit the model.
    """
    device = next(model.parameters()).device

    def vector(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return Policy(
        model,
        vector(card.observation_mean),
        vector(card.observation_std),
        card.return_scale,
        rollout or card.rollout,
        rollout_context or card.rollout_context,
        vector(card.action_low),
        vector(card.action_high),
        None if card.return_range is None else _return_range(card.return_range, device),
        target_return=asked_number(card.target_return),
        card=card,
    )


def _return_range(bounds: ReturnBounds, device: torch.device) -> ReturnRange:
    return ReturnRange(bounds.every, torch.tensor([bounds.low, bounds.high], dtype=torch.float64, device=device).T)


def _read_json(folder: Path) -> tuple[PolicyCard, dict[str, Any]]:
    """The card, and the SHA-256 of the other files; a policy of an older version has none."""
    file = folder / (CARD if (folder / CARD).is_file() else HUB_CARD)
    try:
        tree = json.loads(read_small(file))
        if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
            raise ValueError(f"not a policy of format {FORMAT}")
        digests = tree.pop("sha256", {})
        if not isinstance(digests, dict):
            raise ValueError("sha256 is not an object")
        return card_from_json(tree), digests
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable: {one_line(str(error))}") from error


def _load_model(folder: Path, card: PolicyCard, digests: dict[str, Any], weights: str) -> DecisionModel:
    if weights not in WEIGHTS:
        raise CheckpointError(f"weights {weights!r} is not one of {', '.join(WEIGHTS)}")
    file = folder / WEIGHTS[weights]
    if not (folder / CARD).is_file():
        if weights != card.weights:
            raise CheckpointError(f"{folder}: holds the {card.weights} weights only; {weights} ones are in its run")
        file = folder / HUB_WEIGHTS
    tensors = load_tensors(file)
    if file.name in digests and sha256(file) != digests[file.name]:
        raise CheckpointError(f"{file}: damaged (its SHA-256 is not the card's)")
    try:
        config = ModelConfig(**card.model)
        _check_shapes(config, tensors)
        model = DecisionModel(config)
        model.load_state_dict(tensors)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{folder}: {one_line(str(error))}") from error
    return model


def _check_shapes(config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a description that the weights do not bear out, before memory is taken for the model described."""
    if config.layers > len(tensors):
        raise ValueError(f"the model has {config.layers} layers, its weights are {len(tensors)} tensors")
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in DecisionModel(config).state_dict().items()}
    for name in sorted({*wanted, *tensors}):
        shape = tensors[name].shape if name in tensors else None
        if shape != wanted.get(name):
            raise ValueError(f"weight {name!r:.60} is of shape {shape}, the model described needs {wanted.get(name)}")


@contextmanager
def _offering_the_other(folder: Path) -> Iterator[None]:
    """Adds to the error of a damaged policy that the run's other one is whole, where it is."""
    try:
        yield
    except CheckpointError as error:
        for other in (folder.parent / name for name in FOLDERS if folder.name in FOLDERS and name != folder.name):
            if _is_whole(other):
                raise CheckpointError(f"{error}; {other} is whole") from error
        raise


def _is_whole(folder: Path) -> bool:
    try:
        card, digests = _read_json(folder)
        for weights in WEIGHTS:
            _load_model(folder, card, digests, weights)
    except CheckpointError:
        return False
    return True
