"""Training. `train_policy` is `aaren-rl train` from Python."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .folder import read_metrics

if TYPE_CHECKING:
    from ..agents.policy.policy import Policy
    from ..envs.data.episodes import Episodes

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
        for values in read_metrics(self.folder):
            update = values.pop("update")
            for tag, value in values.items():
                found[tag].append((update, value))
        return dict(found)


def train_policy(
    env: str | None = None,
    *,
    episodes: Episodes | None = None,
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
    memory_map: bool = False,
    on_log: Callable[[int, dict[str, float]], object] | None = None,
    **settings: Any,  # noqa: ANN401  settings have many types
) -> TrainingResult:
    """Train an agent and print its progress, as the command does.

        result = train_policy("hopper-medium", updates=200)
        policy, losses = result.policy, result.metrics["train/loss"]

    Args:
        env: the task, such as "hopper-medium"; with `env_id`, `source` or `episodes`, a name for a custom dataset.
        episodes: data of this program, as `Episodes.from_arrays` and `.from_trajectories` make them. They are saved in
            OUT/ENV/, as a file that `source` names from then on.
        agent: as `--agent`; "decision-aaren" unless `config` or the initial policy (`start_from`) sets another.
        preset: settings to start from.
        seed: training seed; 0 unless `config` sets another.
        config: the config.yaml of a run, or a part of one.
        out: parent folder of runs; this run is saved in OUT/ENV/AGENT/seedN.
        resume: resume the run in that folder; more `updates` extend a finished run.
        save_every: gradient steps between checkpoints; every evaluation saves one as well.
        threads: CPU threads of torch in this process; the setting stays after the call. None: unchanged.
        device: "auto", "cpu" or "cuda".
        register: a module to import that registers environments. Environments of this process are always available.
        memory_map: map observations and actions of a file from the disk, as it is done if memory is short.
        on_log: called for every line of metrics.jsonl with the gradient step and the scalars, tag -> value. An
            exception that it raises ends the training; `resume` continues the run.
        settings: any other setting by its name on the command line, with underscores: `updates=200`,
            `source="my.hdf5"`; `start_from="RUN"` is `--from`. Paths may be `Path`s, and `env_kwargs` a dict.

    Returns:
        The run folder, its policy and its metrics.

    Raises:
        UsageError: an argument or a setting is unknown or invalid.
        AarenRLError: any other error for which the command has an exit code.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; a checkpoint was saved first.
    """
    from .config import Request
    from .run import run_training

    if episodes is not None:
        if "source" in settings or not hasattr(episodes, "sha256"):
            raise UsageError("episodes: make them with Episodes.from_arrays or .from_trajectories, without a source")
        settings |= _saved(episodes, env, Path(out))
    elif env is not None:
        settings["env"] = env
    named = {**settings, "agent": agent, "seed": seed}
    typed = {name: _plain(name, value) for name, value in named.items() if value is not None}
    asked = Request(typed, config, preset, register, Path(out), device, threads, resume, save_every, on_log, memory_map)
    if (code := run_training(asked)) > 128:
        raise KeyboardInterrupt(f"stopped by signal {code - 128}; resume=True continues")
    return TrainingResult(asked.folder)


def _saved(episodes: Episodes, env: str | None, out: Path) -> dict[str, Any]:
    """The settings of a run on these data, which are saved; a run on the same data finds the file again."""
    from ..base.files import writing
    from ..envs.data.files import write_hdf5
    from ..envs.load import default_name

    name = env or default_name(episodes.dataset or "own-data")
    path = out / name / f"data-{episodes.sha256()[:12]}.hdf5"
    if not path.exists():
        with writing(path, "choose another folder (out)"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_hdf5(path, episodes, {"origin": "episodes given to train_policy"})
    return {"env": name, "source": str(path)}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401  a setting of any type
    """A setting as a command line has it: paths are text, and a mapping is JSON."""
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name}: {error}; give numbers, words and lists of them") from error
    return os.fspath(value) if isinstance(value, os.PathLike) else value
