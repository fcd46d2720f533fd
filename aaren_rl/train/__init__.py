"""The command train: configuration, batches, updates, ranks, checkpoints and the loop; `train_policy` from Python."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..agents import Policy

__all__ = ["TrainingResult", "train_policy"]


@dataclass(frozen=True)
class TrainingResult:
    """What a training made.

    Attributes:
        folder: the run's folder, which the commands take.
    """

    folder: Path

    @cached_property
    def policy(self) -> Policy:
        """The trained policy on the CPU, as `load_policy(folder)` loads it.

        Raises:
            CheckpointError: the folder holds none, or a damaged one.
        """
        from ..policies.folder import load_policy

        return load_policy(self.folder)

    @cached_property
    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """Tag -> (update, value) of every line of metrics.jsonl that has the tag, in the order of updates."""
        found: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for line in (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            update = values.pop("update")
            for tag, value in values.items():
                found[tag].append((update, value))
        return dict(found)


def train_policy(
    env: str | None = None,
    *,
    agent: str | None = None,
    preset: str = "default",
    seed: int | None = None,
    config: str | Path | None = None,
    out: str | Path = "runs",
    resume: bool = False,
    save_every: int | None = None,
    threads: int | None = None,
    device: str = "auto",
    register: str | None = None,
    compile: bool = False,
    on_log: Callable[[int, dict[str, float]], object] | None = None,
    **settings: Any,  # noqa: ANN401  of every type that a configuration has
) -> TrainingResult:
    """Trains an agent as the command does, and prints what it prints.

        result = train_policy("hopper-medium", updates=200)
        policy, losses = result.policy, result.metrics["train/loss"]

    Args:
        env: the task, such as "hopper-medium"; with `env_id` and `source` a name for data of your own.
        agent: as `--agent`: "decision-aaren" unless `config` or a policy that is started from has another.
        preset: settings to start from.
        seed: training seed; 0 unless `config` has another.
        config: a run's config.yaml, or a part of one.
        out: where runs go: the folder is OUT/ENV/AGENT/seedN.
        resume: go on with the run in that folder, with more `updates` also with one that is finished.
        save_every: updates between checkpoints, beside those of evaluations.
        threads: torch's CPU threads, for this process, also afterwards; None: as they are.
        device: "auto", "cpu" or "cuda".
        register: a module to import, which registers environments; those of this program are there anyway.
        compile: torch.compile the model.
        on_log: called with the update and the scalars, tag -> value, of every line of metrics.jsonl. What it raises
            ends the training; `resume` goes on with it.
        settings: any other setting by its name on the command line, with underscores: `updates=200`,
            `source="my.hdf5"`; `start_from="RUN"` is `--from`.

    Returns:
        The run's folder, its policy and its metrics.

    Raises:
        UsageError: an argument or a setting is unknown or cannot be.
        AarenRLError: what the command would leave with another exit code for.
        KeyboardInterrupt: Ctrl-C or SIGTERM came; a checkpoint was saved first.
    """
    from .session import run_training
    from .settings import Job, run_folder

    named = {"env": env, "agent": agent, "seed": seed}
    typed = {name: value for name, value in named.items() if value is not None} | settings
    job = Job(typed, config, preset, register, Path(out), device, threads, compile, resume, save_every, on_log)
    made = job.make_config()
    if run_training(job, made) > 128:
        raise KeyboardInterrupt(f"stopped by {signal.SIGINT.name} or {signal.SIGTERM.name}; resume=True goes on")
    return TrainingResult(run_folder(made, job.out))
