"""One run of a sweep, and the process that trains it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.processes import start_child
from ..envs import LocalTask, find_task
from ..envs.local.sets import local_path
from ..train.config import RunConfig
from ..train.options import make_parser, make_request, remarks
from ..train.settings import as_text, make_config, run_folder

RETRIES = 2  # of a run that a signal ended
POLL = 0.2  # seconds between looks at the processes

_TRAIN = "import sys; from aaren_rl.base.entry import start; sys.exit(start('aaren_rl.train'))"


@dataclass(frozen=True)
class CellJob:
    """One training run."""

    config: RunConfig  # all its settings
    out: Path  # the folder of all runs
    run: Path  # the run's own in it
    preset: str  # that it started from
    options: tuple[str, ...] = ()  # of `aaren_rl.train`, which are no settings
    notes: tuple[str, ...] = ()  # on settings that a user typed and that have no effect

    @property
    def arguments(self) -> list[str]:
        """Of `aaren_rl.train`, without --resume."""
        return [*self.options, "--config", as_text(self.config), "--out", str(self.out)]


def make_job(given: Mapping[str, Any], out: Path, more: Sequence[str] = (), preset: str = "default") -> CellJob:
    """The run with these settings, env, agent and seed among them, in the folder `out` of all runs.

    `more` are arguments of `aaren_rl.train`, as a user typed them; its settings come before those given, and its preset
    before `preset`. Raises UsageError where the settings make no run, or `more` leads to another folder.
    """
    parser = make_parser()
    parser.set_defaults(preset=preset, out=out)
    asked = make_request(parser.parse_args([*more]))
    config = make_config({**given, **asked.settings}, asked.preset)
    run, meant = run_folder(config, asked.out), out / given["env"] / given["agent"] / f"seed{given['seed']}"
    if run != meant or asked.resume:
        raise UsageError(f"{meant}: the arguments {' '.join(more)} lead to {run}; leave them to the sweep")
    if isinstance(task := find_task(config.data.env), LocalTask):
        local_path(task, config.data.local_steps)  # raises for a size that its data do not have
    others = {"register": asked.register, "device": asked.device, "save-every": asked.save_every}
    options = [f"--{name}={value}" for name, value in others.items() if value is not None]
    options.append(f"--threads={asked.threads or 1}")
    notes = tuple(remarks(config, asked.settings))
    return CellJob(config, out, run, asked.preset, tuple(options), notes)


def launch(job: CellJob, resume: bool, gpu: str | None = None, *, saves: bool = True) -> subprocess.Popen[bytes]:
    """Starts a run as a process that sees one `gpu`, by CUDA's number or name; its output goes to the run's train.log.

    It ends with this process, which would leave the folder locked; where it `saves`, by SIGTERM, with time for that.
    """
    # Not torchrun's, where a sweep is started under it: a run is one process.
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    job.run.mkdir(parents=True, exist_ok=True)
    with (job.run / "train.log").open("ab") as log:
        return start_child(
            _TRAIN,
            [*job.arguments, *(["--resume"] if resume else [])],
            flags=["-P"],  # no module of the current folder in the place of another
            saves=saves,
            apart=True,  # Ctrl-C goes to the sweep alone, which passes it on once
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
