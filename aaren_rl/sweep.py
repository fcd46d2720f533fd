"""Train a grid of runs, several at once; call it again to go on where it was stopped.

  aaren-rl sweep local -- --updates 100                # briefly, 12 sets
  aaren-rl sweep grid.yaml                             # yours
  aaren-rl sweep grid.yaml --ray --gpus-per-run 0.25   # four runs on each GPU
  aaren-rl sweep grid.yaml --ray 10.0.0.1:6379         # on a cluster

Every run is a process of its own, or a task of Ray, so that one that dies takes no other with it. Finished runs are
skipped, the others go on from their last checkpoint.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import chain
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml

from .base.errors import AarenRLError, CheckpointError, UsageError, explain, one_line
from .base.fields import COUNT, GPUS, read
from .base.files import check_place, core_count, read_small
from .cli import Parser, StopRequest, progress_bar, run, split_at_dashes
from .train.config import Request, UniqueKeys, differences, make_parser, make_request, read_config, settings_of
from .train.folder import holds_training, is_finished, read_metrics

RETRIES = 2  # of a run whose process was ended from outside
POLL = 0.2  # seconds between looks at a stop request
ENDED = 128 + signal.SIGTERM  # as the exit code of a run that something else ended

Outcome = tuple[int, str]  # exit code of a run, above 128 if a signal ended it, and the message of its error
# What trains a run and returns its outcome, and what asks all runs to save and end, or forces them to.
Place = tuple[Callable[[Request], Outcome], Callable[[bool], None]]
PACKAGED = ("paper", "local")  # the grids that ship with the package


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    own, more = split_at_dashes(argv)
    parser = Parser("sweep", __doc__, "GRID [options] [-- arguments of train for every run]")
    grids = "a YAML file; paper: the 120 runs of the paper's Table 1; local: the same sets, made locally"
    parser.add_argument("grid", metavar="GRID", help=grids)
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    add_places(parser)
    parser.add_shared()
    return run(parser, lambda arguments: _sweep(arguments, more), own)


def _sweep(arguments: argparse.Namespace, more: list[str]) -> int:
    registering = [] if arguments.register is None else ["--register", arguments.register]
    requests = read_grid(arguments.grid).requests(arguments.out, [*registering, *more])
    return train_all(requests, arguments.jobs, arguments.ray, arguments.gpus_per_run)


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    preset: str  # of all runs
    envs: list[str]  # tasks, or names of one's own for data that `data` or `settings` name
    agents: list[str]  # names in AGENTS
    seeds: list[int]  # training seeds
    agent_seeds: dict[str, list[int]] = field(default_factory=dict)  # the same, for the runs of one of `agents`
    settings: dict[str, Any] = field(default_factory=dict)  # of `aaren_rl.train`, for all runs
    data: dict[str, dict[str, Any]] = field(default_factory=dict)  # the same, for the runs of one of `envs`

    def __post_init__(self) -> None:
        """Raises ValueError for what no run would miss; the settings of a run are checked with the run."""
        for what, given, known in (("agent_seeds", self.agent_seeds, self.agents), ("data", self.data, self.envs)):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"{what}: {', '.join(unknown)} is not one of {', '.join(known)}")
        if own := {"env", "agent", "seed"} & set(chain(self.settings, *self.data.values())):
            raise ValueError(f"settings, data: {', '.join(sorted(own))}: the lists of the grid have it")
        if not all((self.envs, self.agents, self.seeds, *self.agent_seeds.values())):
            raise ValueError("envs, agents, seeds and those of agent_seeds must not be empty")

    def requests(self, out: Path, more: Sequence[str] = ()) -> list[Request]:
        """A run for each combination, in folders under `out`; `more` are arguments for every run."""
        # Seeds vary slowest, so that a sweep that is stopped early has every task and agent.
        seeds = dict.fromkeys(chain(self.seeds, *self.agent_seeds.values()))
        combinations = [
            {"env": e, "agent": a, "seed": s, **self.settings, **self.data.get(e, {})}
            for s in seeds
            for e in dict.fromkeys(self.envs)
            for a in dict.fromkeys(self.agents)
            if s in self.agent_seeds.get(a, self.seeds)
        ]
        return [request_run(given, out, more, self.preset) for given in combinations]


def read_grid(name: str) -> Grid:
    """The grid of a YAML file, or the packaged one of a name in PACKAGED.

    Raises UsageError if it is not readable, or not a grid; the message names what does not fit.
    """
    try:
        if name in PACKAGED:
            text = resources.files(f"aaren_rl.configs.{name}").joinpath("table1.yaml").read_text(encoding="utf-8")
        else:
            text = read_small(Path(name))
        return read(Grid, yaml.load(text, UniqueKeys))
    except (OSError, RecursionError, ValueError, yaml.YAMLError) as error:
        what = "a grid has preset, envs, agents, seeds and, where wanted, agent_seeds, settings and data"
        raise UsageError(f"{name}: {one_line(error, 2000)}; {what}") from error


class SweepError(AarenRLError):
    """A run failed; the exit code is that of the run, 1 if its process was killed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code if code < 128 else 1


def add_places(parser: Parser) -> None:
    """The options that say where and how many at once, of `sweep` and of `compare`."""
    add = parser.add_argument
    add("--jobs", type=COUNT.integer, metavar="N", help="runs at once, a thread each (one a core; all that Ray holds)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: of its own, or the cluster at ADDRESS")
    add("--gpus-per-run", type=GPUS.number, metavar="X", default=0.0, help="with --ray: share of a GPU [0]")


def request_run(given: Mapping[str, Any], out: Path, more: Sequence[str] = (), preset: str = "default") -> Request:
    """The run with these settings, env, agent and seed among them, in the folder `out` of all runs.

    `more` are arguments of `aaren_rl.train`, as a user typed them. Its settings come before those given, and its preset
    before `preset`. Raises UsageError if the settings are invalid, or `more` leads to another folder.
    """
    parser = make_parser()
    parser.set_defaults(preset=preset, out=out)
    asked = make_request(parser.parse_args([*more]))
    request = replace(asked, typed={**given, **asked.settings}, config_file=None, threads=asked.threads or 1)
    meant = out / given["env"] / given["agent"] / f"seed{given['seed']}"
    if request.folder != meant or asked.resume:
        raise UsageError(f"{meant}: the arguments {' '.join(more)} lead to {request.folder}; leave them to the sweep")
    return request


def is_done(request: Request) -> bool:
    """Whether a run is finished. Raises CheckpointError if its folder holds a run with other settings."""
    from .policies.folder import has_policies  # with torch: seconds

    run, config = request.folder, request.config
    if not ((run / "config.yaml").exists() and holds_training(run)):
        return False
    if differing := "; ".join(differences(settings_of(read_config(run / "config.yaml")), settings_of(config))):
        moved = ", or where the same data have moved, aaren-rl train --resume --source" * ("data.source" in differing)
        raise CheckpointError(f"{run}: holds a run that differs in {differing}; choose another --out{moved}")
    return has_policies(run) and is_finished(read_metrics(run), config.optimizer.updates)


def train_one(request: Request, folder: str) -> Outcome:
    """Body of a process, and of a task of Ray: trains a run, from its last checkpoint if there is one.

    `folder` is the working folder. What the run prints goes to its train.log.
    """
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = str(request.threads)  # torch reads it when it is imported, below
    request.folder.mkdir(parents=True, exist_ok=True)
    with (request.folder / "train.log").open("ab") as log:
        for stream in (1, 2):  # standard output and error, of libraries too
            os.dup2(log.fileno(), stream)
    try:
        from .train.run import train

        return train(replace(request, resume=holds_training(request.folder))), "ended by a signal"
    except KeyboardInterrupt:
        return ENDED, "interrupted"
    except Exception as error:  # whatever it is, the others go on
        message, code = explain(error)
        print(f"error: {message}", file=sys.stderr)
        return code, message


def train_all(
    requests: Sequence[Request], jobs: int | None = None, ray: str | None = None, gpus_per_run: float = 0.0
) -> int:
    """Train every run that is not finished, several at once. Returns the exit code.

    A run whose process is killed is tried again, at most twice; if one fails, the others go on to their end. The first
    SIGINT or SIGTERM stops all runs, which save: 128 plus its number.

    Args:
        requests: the runs, as `request_run` makes them.
        jobs: how many at once; by default one per core of this machine, and all that Ray has room for.
        ray: None: processes of this machine; "local": a Ray that starts and ends here; else the address of a cluster,
            whose machines share this folder and have the package installed.
        gpus_per_run: share of a GPU that a run takes, on Ray.

    Raises:
        UsageError: Ray is missing, or does not answer.
        CheckpointError: a folder holds a run with other settings.
        SweepError: a run failed; the message ends with that of its error.
    """
    waiting = [request for request in requests if not is_done(request)]
    print(f"{len(requests)} runs, {len(requests) - len(waiting)} of them finished before")
    if not waiting:
        return 0
    for request in waiting:
        check_place(request.folder)
    if gpus_per_run and ray is None:
        raise UsageError("--gpus-per-run: goes with --ray; leave it out")
    at_once = jobs or (core_count() if ray is None else len(waiting))
    with _processes() if ray is None else _ray_tasks(ray, gpus_per_run) as place, StopRequest() as stop:
        failed = _run_all(waiting, place, at_once, stop)
    if stop.signal is not None:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 128 + stop.signal
    if failed:
        run, code, message = failed[0]
        which = f"{run} (exit code {code}; see its train.log)"
        raise SweepError(f"{len(failed)} of {len(requests)} runs failed, the first is {which}: {message}", code)
    return 0


def _run_all(waiting: Sequence[Request], place: Place, at_once: int, stop: StopRequest) -> list[tuple[Path, int, str]]:
    """Train the runs until all have ended. Returns those that did not finish: folder, exit code and message."""
    train, stop_all = place

    def to_its_end(request: Request) -> Outcome:
        outcome, tries = (ENDED, "not begun"), 0
        while outcome[0] > 128 and tries <= RETRIES and stop.signal is None:
            if tries:
                bar.write(f"{request.folder}: {outcome[1]}; trying again from its last checkpoint", file=sys.stderr)
            outcome, tries = train(request), tries + 1
        if 0 < outcome[0] <= 128:
            bar.write(f"{request.folder}: {outcome[1]}", file=sys.stderr)
        bar.update(outcome[0] == 0)
        return outcome

    with (
        ThreadPoolExecutor(at_once, initializer=_keep_ctrl_c_from_children) as threads,
        progress_bar(total=len(waiting), desc="training", unit="run") as bar,
    ):
        outcomes = {request.folder: threads.submit(to_its_end, request) for request in waiting}
        try:
            while wait(outcomes.values(), POLL).not_done:
                if stop.signal is not None:
                    stop_all(False)
        except KeyboardInterrupt:  # Ctrl-C again
            stop_all(True)
            raise
    return [(run, *future.result()) for run, future in outcomes.items() if future.result()[0]]


def _keep_ctrl_c_from_children() -> None:
    """Ctrl-C in a terminal goes to all processes; this one passes it on. Processes inherit the mask of this thread."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Ends this process when the sweep has ended, even by SIGKILL; the run goes on from its last checkpoint."""

    def wait_for(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for, args=(parent_process(),), daemon=True).start()


@contextmanager
def _processes() -> Iterator[Place]:
    """A fresh process for every run."""

    def train(request: Request) -> Outcome:
        try:
            # A pool of its own: the death of a process breaks its pool, and the other runs go on.
            with ProcessPoolExecutor(1, get_context("spawn"), _end_with_parent) as pool:
                return pool.submit(train_one, request, os.getcwd()).result()
        except BrokenExecutor:
            return ENDED, "its process was killed"

    def stop(force: bool) -> None:
        for child in active_children():
            child.kill() if force else child.terminate()

    resource_tracker.ensure_running()  # before threads block a signal, which its start unblocks
    yield train, stop


@contextmanager
def _ray_tasks(address: str, gpus: float) -> Iterator[Place]:
    """A task of one CPU and a share of a GPU for every run. Raises UsageError if there is no Ray, here or there."""
    # Read when Ray is imported, and by the processes it starts: no reports home, no remark on how GPUs are hidden.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    host, _, port = address.rpartition(":")
    try:
        import ray

        if host and port.isdigit():  # Ray itself tries a dead address for minutes
            socket.create_connection((host.rpartition("/")[2], int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'aaren-rl[sweep]', or leave --ray out") from error
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise UsageError(f"--ray {address}: Ray does not answer: {one_line(error)}") from error
    task, started = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=1)(train_one), []

    def train(request: Request) -> Outcome:
        started.append(task.options(name=str(request.folder)).remote(request, os.getcwd()))
        try:
            outcome: Outcome = ray.get(started[-1])
            return outcome
        except ray.exceptions.RayError as error:
            return ENDED, one_line(error, 60)

    def stop(force: bool) -> None:
        for reference in started:
            ray.cancel(reference, force=force)

    try:
        yield train, stop
    finally:
        ray.shutdown()
