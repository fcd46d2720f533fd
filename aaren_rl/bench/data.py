"""The benchmark "data": time and memory from a file in D4RL's layout to the first training batches.

What was loaded is held against what was written, and the numbers made from it against float64.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ..cli import Parser, positive
from ..envs import Episodes, get_task, load_episodes
from ..envs.data.hdf5.d4rl import write_hdf5
from ..errors import CommandError, UsageError, run_command
from ..machine import Machine, peak_bytes, resident_bytes
from ..train.contexts.batches import StepData
from ..train.contexts.sampling import make_sampler
from .timing import WRONG, require

TASK = get_task("hopper-medium")
MEAN_LENGTH = 457  # steps an episode, about that of D4RL's hopper-medium
FEWEST_STEPS = 100  # fewer have no statistics to speak of
REPEATS = 3  # fresh processes
RETURN_SCALE, CONTEXT_LENGTH, STEPS_PER_UPDATE = 1000.0, 20, 1280  # the default preset's
CONTEXTS = ("mixed", "window")
TOLERANCE = 1e-5
MIB = 2**20

HELP = "time and memory from a file to training batches"
DESCRIPTION = f"""\
Writes STEPS steps of Hopper's size, random numbers in episodes of {MEAN_LENGTH} steps on average, to a temporary
HDF5 file, compressed with gzip as D4RL's files are. Then loads and prepares them and draws one batch each of
mixed contexts and windows: medians of {REPEATS} fresh processes, the file being in the page cache. Memory is the
process's peak less what it had after its imports, libraries' first use (about 13 MiB) included; the arrays are
observations, actions, rewards, terminals and timeouts, not compressed."""
EPILOG = """\
example:
  python -m aaren_rl.bench data --steps 1000000 --json data.json"""


@dataclass(frozen=True)
class Stage:
    """From the end of the stage before; medians.

    Attributes:
        name: what was done.
        seconds: on the clock.
        cpu_seconds: of the processor, user and system: the figure to look at on a busy machine.
        peak_bytes: the process's peak at the stage's end, less what it had after its imports; None where the system
            does not tell.
        ratio: of the peak to the arrays.
    """

    name: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int | None
    ratio: float | None


@dataclass(frozen=True)
class DataResult:
    """The outcome of `data`.

    Attributes:
        steps: in the file.
        episodes: in the file.
        file_bytes: its size, compressed.
        arrays_bytes: of the five arrays, not compressed.
        stages: load_episodes, StepData, samplers; then all of them together.
        machine: what it ran on.
    """

    steps: int
    episodes: int
    file_bytes: int
    arrays_bytes: int
    stages: tuple[Stage, ...]
    machine: Machine


def make_episodes(steps: int) -> Episodes:
    """Random episodes of Hopper's size: the same ones for the same number of steps."""
    rng = np.random.default_rng(0)
    lengths = rng.gamma(4, MEAN_LENGTH / 4, size=steps // 100 + 10).round().clip(1, TASK.horizon).astype(np.int64)
    ends = lengths.cumsum()
    offsets = np.concatenate(([0], ends[ends < steps], [steps]))
    observations = rng.standard_normal((steps, TASK.observation_dim), dtype=np.float32)
    # Columns of unequal size and offset, as joint angles and velocities are.
    columns = np.arange(1, TASK.observation_dim + 1, dtype=np.float32)
    observations *= columns / 4
    observations += columns[::-1] / 10
    return Episodes(
        observations=observations,
        actions=rng.uniform(-1, 1, (steps, TASK.action_dim)).astype(np.float32),
        rewards=rng.normal(3, 1, steps).astype(np.float32),
        offsets=offsets,
        terminated=np.diff(offsets) < TASK.horizon,
    )


def arrays_bytes(episodes: Episodes) -> int:
    """Bytes of the arrays as D4RL's layout has them, terminals and timeouts included."""
    return episodes.observations.nbytes + episodes.actions.nbytes + episodes.rewards.nbytes + 2 * episodes.n_steps


def check(episodes: Episodes, data: StepData, written: Episodes) -> None:
    """Compares what was loaded with what was written, and what was made from it with float64.

    Raises:
        CommandError: something is wrong.
    """
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        loaded, wanted = getattr(episodes, name), getattr(written, name)
        # By their bytes, so that no two numbers pass for equal that are not the same.
        if loaded.dtype != wanted.dtype or loaded.tobytes() != wanted.tobytes():
            raise CommandError(f"the loaded {name} are not those that were written; {WRONG}")
    every = torch.arange(written.n_steps).unsqueeze(0)
    drawn = data.rows(every, torch.ones_like(every, dtype=torch.bool))
    observations = written.observations.astype(np.float64)
    sums = np.concatenate(([0.0], written.rewards.cumsum(dtype=np.float64)))
    ends, lengths = written.offsets[1:], written.lengths
    exact = {
        "observations": (observations - observations.mean(0)) / observations.std(0),
        "actions": written.actions,
        "returns_to_go": (np.repeat(sums[ends], lengths) - sums[:-1]) / RETURN_SCALE,
        "timesteps": np.concatenate([np.arange(length) for length in lengths]),
    }
    for name, wanted in exact.items():
        difference = float(np.abs(getattr(drawn, name)[0].numpy() - wanted).max())
        require(f"the {name} to train on differ from the float64 reference", difference, TOLERANCE)


def measure_once(path: Path, steps: int) -> list[dict[str, Any]]:
    """Loads, prepares and draws in this process, which should be a fresh one; checks afterwards."""
    before, stages = resident_bytes(), []
    seconds, cpu_seconds = time.perf_counter(), time.process_time()

    def end(stage: str) -> None:
        nonlocal seconds, cpu_seconds
        now, cpu_now, peak = time.perf_counter(), time.process_time(), peak_bytes()
        growth = None if before is None or peak is None else peak - before
        stages.append(
            {"name": stage, "seconds": now - seconds, "cpu_seconds": cpu_now - cpu_seconds, "peak_bytes": growth}
        )
        seconds, cpu_seconds = now, cpu_now

    episodes = load_episodes(TASK.name, path, progress=False)
    end("load_episodes")
    data = StepData(episodes, RETURN_SCALE)
    end("StepData")
    generator = torch.Generator().manual_seed(0)
    for context in CONTEXTS:
        sampler = make_sampler(
            context, data, context_length=CONTEXT_LENGTH, horizon=TASK.horizon, steps=STEPS_PER_UPDATE
        )
        sampler.sample(generator)
    end(f"samplers, {' and '.join(CONTEXTS)}")
    check(episodes, data, make_episodes(steps))
    return stages


def serve() -> None:
    """Body of a measuring process: arguments from the command line, figures to standard output."""
    path, steps, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)

    def measure() -> int:
        print(json.dumps(measure_once(path, steps)))
        return 0

    sys.exit(run_command(measure))


def _in_a_fresh_process(path: Path, steps: int) -> list[dict[str, Any]]:
    """`measure_once`, where no memory was used and freed before.

    Raises:
        CommandError: the process found something wrong, or died.
    """
    script = f"from {__name__} import serve; serve()"
    command = [sys.executable, "-P", "-c", script, str(path), str(steps), str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        if said[-1].startswith("error: "):
            raise CommandError(said[-1].removeprefix("error: "))
        raise CommandError(f"the measuring process ended with code {done.returncode} ({said[-1]}); try fewer --steps")
    stages: list[dict[str, Any]] = json.loads(done.stdout)
    return stages


def measure_data(steps: int) -> DataResult:
    """Time and memory of loading `steps` steps; needs about 60 bytes a step of disk space for a moment.

    Raises:
        CommandError: what was loaded is wrong, the file cannot be written, or a measuring process died.
    """
    with tempfile.TemporaryDirectory(prefix="aaren-rl-bench-") as folder:
        path, written = Path(folder) / "data.hdf5", make_episodes(steps)
        try:
            write_hdf5(path, written, {"env_id": TASK.env_id})
        except OSError as error:
            raise CommandError(f"{path}: cannot be written ({error.strerror or error}); set TMPDIR") from error
        runs = [_in_a_fresh_process(path, steps) for _ in range(REPEATS)]
        file_bytes = path.stat().st_size
    own = arrays_bytes(written)
    for run in runs:
        whole = {key: sum(stage[key] for stage in run) for key in ("seconds", "cpu_seconds")}
        run.append({"name": "all", **whole, "peak_bytes": run[-1]["peak_bytes"]})
    stages = tuple(_medians(own, [run[i] for run in runs]) for i in range(len(runs[0])))
    return DataResult(steps, len(written), file_bytes, own, stages, Machine.here())


def _medians(own: int, stages: list[dict[str, Any]]) -> Stage:
    """Of one stage in several runs; `own` is the arrays' size in bytes."""
    seconds, cpu_seconds = (median(stage[key] for stage in stages) for key in ("seconds", "cpu_seconds"))
    peaks = [stage["peak_bytes"] for stage in stages]
    peak = None if None in peaks else int(median(peaks))
    return Stage(stages[0]["name"], seconds, cpu_seconds, peak, None if peak is None else peak / own)


def format_data(result: DataResult) -> str:
    """An aligned table with the machine's and the data's description above it."""
    own = f"{result.arrays_bytes / MIB:.1f}"
    rows = [("", "seconds", "CPU s", "arrays MiB", "peak MiB", "ratio")]
    for stage in result.stages:
        peak = "n/a" if stage.peak_bytes is None else f"{stage.peak_bytes / MIB:.1f}"
        ratio = "n/a" if stage.ratio is None else f"{stage.ratio:.2f}"
        rows.append((stage.name, f"{stage.seconds:.3f}", f"{stage.cpu_seconds:.3f}", own, peak, ratio))
    return "\n".join(
        [
            str(result.machine),
            f"{result.steps:,} steps of Hopper's size in {result.episodes:,} episodes; "
            f"HDF5 file of {result.file_bytes / MIB:.1f} MiB, gzip",
            f"checked against what was written; medians of {REPEATS} processes",
            *(f"{row[0]:<28}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows),
        ]
    )


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("--steps", type=positive, default=1_000_000, help="in the file (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: too few steps.
        CommandError: what was loaded is wrong, the file cannot be written, or a measuring process died.
    """
    if arguments.steps < FEWEST_STEPS:
        raise UsageError(f"--steps: must be at least {FEWEST_STEPS}, not {arguments.steps}")
    result = measure_data(arguments.steps)
    return format_data(result), asdict(result)
