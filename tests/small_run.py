"""The checkout and its scripts; the command line of a training run that takes seconds, and what it leaves."""

import argparse
import json
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


SMALL: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 2, "updates": 2, "warmup_updates": 1, "threads": 1, "steps_per_update": 160,
    "eval_episodes": 1, "final_episodes": 1,
}  # fmt: skip


def typed(settings: dict[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def load_script(name: str) -> ModuleType:
    """A file of scripts/, which has no suffix, as a module."""
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    """A run of 20 updates on one thread, with dropout."""
    small = "--env hopper-medium --width 16 --layers 2 --heads 2 --updates 20 --warmup-updates 5 --steps-per-update 160"
    scored = "--eval-every 10 --eval-episodes 2 --final-episodes 2 --threads 1 --dropout 0.1"
    return [*small.split(), *scored.split(), "--source", str(data), "--out", str(out), *more]


def quick(out: Path, data: Path | str, options: str = "", agent: str = "decision-aaren") -> Path:
    """Trains for 6 updates, or as the options say, with an evaluation every 3; the run's folder."""
    from aaren_rl.train.config import main

    small = "--env hopper-medium --width 16 --layers 1 --heads 2 --updates 6 --warmup-updates 1 --steps-per-update 160"
    scored = "--threads 1 --eval-every 3 --eval-episodes 1 --final-episodes 1"
    assert main(f"{small} {scored} --agent {agent} --source {data} --out {out} {options}".split()) == 0
    return folder(out, agent)


def train_before(line: list[str], left: int = 0) -> None:
    """Trains what is missing of a comparison in this process, which imports nothing again, all but the last `left`."""
    from aaren_rl.cli import split_at_dashes
    from aaren_rl.compare import _jobs, make_parser
    from aaren_rl.train.run import run_training

    own, settings = split_at_dashes(line)
    jobs = _jobs(make_parser().parse_args(own, argparse.Namespace(settings=settings)))
    for job in jobs[: len(jobs) - left]:
        assert job.folder.exists() or run_training(job) == 0


def scores(run: Path, options: str, file: Path) -> list[dict[str, Any]]:
    """What an evaluation writes to a file."""
    from aaren_rl.evaluate import main

    assert main([str(run), *options.split(), "--json", str(file)]) == 0
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def folder(out: Path, agent: str = "decision-aaren", seed: int = 0) -> Path:
    return out / "hopper-medium" / agent / f"seed{seed}"


def records(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_for_updates(run: Path, process: subprocess.Popen[str]) -> None:
    """Until a process has logged something in a run's folder."""
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 240
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
