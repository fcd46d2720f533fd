"""Whether two training runs came to the same, bit for bit: everything but times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from aaren_rl.train.checkpoint import load_checkpoint


def differences(whole: Path, killed: Path) -> list[str]:
    """What is not the same in two runs: everything but times."""
    found: list[str] = []
    a, b = (load_checkpoint(run / "checkpoints") for run in (whole, killed))
    compare("raw", dict(a.raw), dict(b.raw), found)
    compare("average", dict(a.average), dict(b.average), found)
    compare("trainer", a.trainer, b.trainer, found)
    compare("progress", timeless(a.progress), timeless(b.progress), found)
    logs = [
        [timeless(json.loads(x)) for x in (run / "metrics.jsonl").read_text().splitlines()] for run in (whole, killed)
    ]
    compare("metrics", logs[0], logs[1], found)
    for policy in ("policy", "policy_best"):
        for file in sorted((whole / policy).glob("*.safetensors")):
            if file.read_bytes() != (killed / policy / file.name).read_bytes():
                found.append(f"{policy}/{file.name}")
    left = [str(p.relative_to(killed)) for p in killed.rglob(".*") if p.name != ".lock"]
    return [*found, *(f"left behind: {name}" for name in left)]


def timeless(tree: Any) -> Any:
    """The tree without what depends on the clock."""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if "per_second" not in key}
    return tree


def compare(name: str, one: Any, other: Any, found: list[str]) -> None:
    """Adds the names of what is not equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        if not (isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)):
            found.append(name)
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            compare(f"{name}.{key}", one[key], other[key], found)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            compare(f"{name}[{i}]", left, right, found)
    elif one != other:
        found.append(name)
