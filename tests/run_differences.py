"""Whether two training runs came to the same, bit for bit: everything but times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from aaren_rl.train.records import find_checkpoint


def differences(whole: Path, killed: Path) -> list[str]:
    """The names of what is not the same in two runs."""
    ones, others = everything(whole), everything(killed)
    found = [name for name in {**ones, **others} if name not in ones or ones[name] != others.get(name)]
    left = [str(p.relative_to(killed)) for p in killed.rglob(".*") if p.name != ".lock"]
    return [*found, *(f"left behind: {name}" for name in left)]


def everything(run: Path) -> dict[str, Any]:
    """All values of a run's last checkpoint, metrics and policies by their names, without what the clock decides."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    files = {str(file.relative_to(run)): file.read_bytes() for file in run.glob("policy*/*.safetensors")}
    saved = find_checkpoint(run / "checkpoints")
    trees = saved.states | {"number": saved.number, "progress": saved.progress, "metrics": metrics}
    return files | {key: value for name, tree in trees.items() for key, value in leaves(name, tree).items()}


def leaves(name: str, tree: Any) -> dict[str, Any]:
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        parts = [leaves(f"{name}.{key}", value) for key, value in items if "per_second" not in str(key)]
        return {name: len(parts), **{key: value for part in parts for key, value in part.items()}}
    return {name: (tree.dtype, tree.tolist()) if isinstance(tree, torch.Tensor) else tree}
