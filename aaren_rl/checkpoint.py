"""What a run leaves behind: the policy folder that others load, and the checkpoints that training resumes from.

A policy folder holds policy.json (how the policy was made, and all it needs to act), weights.safetensors (the raw
weights) and weights_average.safetensors (their moving average). A checkpoint adds the optimiser and every random state.
Nothing that is read here is executed: JSON, safetensors, and tensors through torch.load(weights_only=True).
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .agents import DecisionModel, ModelConfig, Policy
from .card import PolicyCard, misfits
from .envs.files import sha256
from .errors import CheckpointError
from .files import write_folder, write_json

FORMAT = 2
WEIGHTS = {"raw": "weights.safetensors", "average": "weights_average.safetensors"}
CARD = "policy.json"
# The same card, and the weights that it names, as the Hugging Face hub has them (hub.py).
HUB_CARD, HUB_WEIGHTS = "config.json", "model.safetensors"
KEPT = 2  # checkpoints of a run


def save_policy(folder: Path, card: PolicyCard, raw: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> None:
    """Writes a policy folder, whole or not at all; one that stood there is replaced."""

    def fill(fresh: Path) -> None:
        save_tensors(raw, fresh / WEIGHTS["raw"])
        save_tensors(average, fresh / WEIGHTS["average"])
        write_card(fresh / CARD, card)

    write_folder(folder, fill)


def write_card(file: Path, card: PolicyCard) -> None:
    """Writes a card as `read_card` reads it."""
    write_json(file, {"format": FORMAT, **dataclasses.asdict(card)})


def policy_folder(path: str | Path) -> Path:
    """The policy folder meant by a run folder or by itself; one in the hub's layout is a policy folder too.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    for folder in (path, path / "policy"):
        if (folder / CARD).is_file() or (folder / HUB_CARD).is_file():
            return folder
    raise CheckpointError(f"{path}: no policy here; give a run folder or its policy/ (is its training finished?)")


def read_card(path: str | Path) -> PolicyCard:
    """The card of a run folder's policy.

    Raises:
        CheckpointError: no policy, not readable, or of another format.
    """
    folder = policy_folder(path)
    file = folder / (CARD if (folder / CARD).is_file() else HUB_CARD)
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable: {error}") from error
    if not isinstance(tree, dict) or tree.pop("format", None) != FORMAT:
        raise CheckpointError(f"{file}: not a policy of format {FORMAT}")
    fields = {f.name for f in dataclasses.fields(PolicyCard)}
    if set(tree) != fields:
        raise CheckpointError(f"{file}: missing or unknown keys: {', '.join(sorted(set(tree) ^ fields))}")
    if wrong := misfits(tree):
        raise CheckpointError(f"{file}: values of the wrong type: {', '.join(wrong)}; write it anew from its run")
    return PolicyCard(**tree)


def load_policy(
    path: str | Path,
    *,
    rollout: str | None = None,
    rollout_context: int | None = None,
    weights: str | None = None,
    device: torch.device | str = "cpu",
) -> Policy:
    """A trained policy, ready to act.

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
    card = read_card(folder)
    weights = weights or card.weights
    if weights not in WEIGHTS:
        raise CheckpointError(f"weights {weights!r} is not one of {', '.join(WEIGHTS)}")
    file = folder / WEIGHTS[weights]
    if not (folder / CARD).is_file():
        if weights != card.weights:
            raise CheckpointError(f"{folder}: holds the {card.weights} weights only; {weights} ones are in its run")
        file = folder / HUB_WEIGHTS
    tensors = load_tensors(file)
    try:
        model = DecisionModel(ModelConfig(**card.model))
        model.load_state_dict(tensors)
        return Policy(
            model.to(device),
            torch.tensor(card.observation_mean, dtype=torch.float32, device=device),
            torch.tensor(card.observation_std, dtype=torch.float32, device=device),
            card.return_scale,
            rollout or card.rollout,
            rollout_context or card.rollout_context,
            torch.tensor(card.action_low, dtype=torch.float32, device=device),
            torch.tensor(card.action_high, dtype=torch.float32, device=device),
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: {' '.join(str(error).split())}") from error


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Reads safetensors.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: not readable: {error}") from error


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes safetensors."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)


@dataclass(frozen=True)
class Checkpoint:
    """Everything training needs to go on as if it had not stopped.

    Attributes:
        update: updates done.
        raw: the weights.
        average: their moving average.
        trainer: optimiser state and random states, as tensors and plain values.
        progress: scores so far, as JSON values.
    """

    update: int
    raw: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    trainer: dict[str, Any]
    progress: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Adds `checkpoint` to a run's checkpoints folder and drops all but the last KEPT."""

    def fill(fresh: Path) -> None:
        save_tensors(checkpoint.raw, fresh / WEIGHTS["raw"])
        save_tensors(checkpoint.average, fresh / WEIGHTS["average"])
        torch.save(checkpoint.trainer, fresh / "trainer.pt")
        files = {file.name: sha256(file) for file in sorted(fresh.iterdir())}
        manifest = {"format": FORMAT, "update": checkpoint.update, "progress": checkpoint.progress, "sha256": files}
        write_json(fresh / "manifest.json", manifest)

    write_folder(folder / f"{checkpoint.update:08d}", fill)
    for old in _checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """`load_checkpoint`, or None where a run was stopped before its first."""
    return load_checkpoint(folder) if _checkpoints(folder) else None


def load_checkpoint(folder: Path) -> Checkpoint:
    """The newest checkpoint of a run that is whole.

    Raises:
        CheckpointError: there is none, or all are damaged; the message names what is wrong with the newest.
    """
    problems = []
    for candidate in reversed(_checkpoints(folder)):
        try:
            return _read_checkpoint(candidate)
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError(problems[0] if problems else f"{folder}: no checkpoint to resume from")


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]*") if p.is_dir()) if folder.is_dir() else []


def _read_checkpoint(folder: Path) -> Checkpoint:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = manifest["sha256"]
        wanted = {*WEIGHTS.values(), "trainer.pt"}
        if manifest["format"] != FORMAT or set(files) != wanted:
            raise CheckpointError(f"{folder}: not a checkpoint of format {FORMAT}")
        for name, digest in files.items():
            if sha256(folder / name) != digest:
                raise CheckpointError(f"{folder / name}: damaged (its SHA-256 is not the manifest's)")
        trainer = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
    except (OSError, ValueError, KeyError, TypeError, pickle.UnpicklingError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: not readable: {' '.join(str(error).split())[:200]}") from error
    return Checkpoint(
        manifest["update"],
        load_tensors(folder / WEIGHTS["raw"]),
        load_tensors(folder / WEIGHTS["average"]),
        trainer,
        manifest["progress"],
    )
