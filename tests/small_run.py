"""The command line of a training run that takes seconds, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    """A run of 20 updates on one thread, with dropout."""
    small = "--env hopper-medium --width 16 --layers 2 --heads 2 --updates 20 --warmup-updates 5 --steps-per-update 160"
    scored = "--eval-every 10 --eval-episodes 2 --final-episodes 2 --threads 1"
    return [*small.split(), *scored.split(), "--source", str(data), "--out", str(out), *more]


def folder(out: Path, agent: str = "decision-aaren", seed: int = 0) -> Path:
    return out / "hopper-medium" / agent / f"seed{seed}"


def records(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
