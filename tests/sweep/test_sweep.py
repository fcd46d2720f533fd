"""Grids of runs: one that is killed goes on, one that is finished is left alone."""

import dataclasses
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_run import arguments, folder, records

from aaren_rl.base.errors import CheckpointError, UsageError
from aaren_rl.policies.folder import read_card
from aaren_rl.sweep import Grid, SweepError, read_grid, request_run, train_all
from aaren_rl.sweep import main as sweep
from aaren_rl.train.config import Request, make_parser, make_request

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra: sweep)")
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
SMALL = {"width": 16, "layers": 1, "heads": 2, "warmup_updates": 1, "eval_episodes": 1, "final_episodes": 1}


def asked(data: Path, out: Path, seed: int, *more: str, updates: int = 10) -> Request:
    small = f"--updates {updates} --eval-every 5 --eval-episodes 1 --final-episodes 1"
    made = make_request(make_parser().parse_args(arguments(data, out, *small.split(), *more)))
    return request_run({"agent": "decision-aaren", "seed": seed, **made.settings}, out)


def process_of(run: Path) -> int | None:
    """The process that holds a run folder's lock open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == str(run / ".lock"):
                return int(link.parts[2])
    return None


def until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a Ray cluster of two nodes on this machine, each with room for one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    node = [*RAY, "start", "--num-cpus=1", "--block", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
    head = ["--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false"]
    quiet: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    nodes = [subprocess.Popen([*node, *head], **quiet)]
    try:
        until(lambda: answers(address))
        nodes.append(subprocess.Popen([*node, f"--address={address}"], **quiet))
        yield address
    finally:
        for process in nodes:
            process.terminate()
        for process in nodes:
            process.wait()


GRID = "{preset: default, envs: [tmaze], agents: [decision-aaren, bc], seeds: [0, 1, 2], settings: SETTINGS}"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", pytest.param("cluster", marks=needs_ray)])
def test_a_killed_run_goes_on(tmp_path, request, place):
    """Six runs of 20 updates. The process of one is killed after its first checkpoint, and nothing is lost."""
    (tmp_path / "grid.yaml").write_text(GRID.replace("SETTINGS", str({**SMALL, "updates": 20, "eval_every": 5})))
    out = tmp_path / "runs"
    requests = read_grid(str(tmp_path / "grid.yaml")).requests(out)
    where: dict[str, Any] = {"jobs": 2} if place == "here" else {"ray": request.getfixturevalue("cluster")}
    killed: list[int] = []

    def kill_once() -> None:
        until(lambda: list((requests[1].folder / "checkpoints").glob("0*")))
        killed.append(process_of(requests[1].folder) or 0)
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_once, daemon=True)
    thread.start()
    assert train_all(requests, **where) == 0
    thread.join()
    for one in requests:
        assert read_card(one.folder).updates == 20
        assert [line["update"] for line in records(one.folder) if "eval/mean_return" in line] == [5, 10, 15, 20]
    # Resumed, not restarted: the log has two beginnings.
    logs = [(one.folder / "train.log").read_text() for one in requests]
    assert [log.count("run folder:") for log in logs] == [1, 2, 1, 1, 1, 1] and killed != [0]

    files = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    assert train_all(requests, **where) == 0
    assert files == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}


def test_a_failing_run_does_not_stop_the_others_and_other_settings_are_refused(hopper_file, tmp_path):
    good = asked(hopper_file, tmp_path, 0, "--target-return", "3")
    bad = asked(hopper_file, tmp_path, 1, "--learning-rate", "1e30", "--precision", "float32")
    with pytest.raises(SweepError, match=r"1 of 2 runs failed.*seed1 \(exit code 6.*loss or gradient is not finite"):
        train_all([bad, good], jobs=1)
    assert read_card(good.folder).updates == 10
    with pytest.raises(CheckpointError, match=r"optimizer\.updates.*target_return \(run: 3.0, requested: None\)"):
        train_all([asked(hopper_file, tmp_path, 0, updates=6)])


DEADLY = """
import multiprocessing, os
if multiprocessing.parent_process() is not None:
    open("tries", "a").write("x")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_fails(hopper_file, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SweepError, match=r"1 of 1 runs failed.*its process was killed") as raised:
        train_all([dataclasses.replace(asked(hopper_file, tmp_path, 0), register="deadly")], jobs=1)
    assert raised.value.exit_code == 1 and (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.slow
@pytest.mark.parametrize("ray", [[], pytest.param(["--ray"], marks=needs_ray)])
def test_ctrl_c_saves_every_run_and_leaves_no_process(hopper_file, tmp_path, ray):
    """A terminal sends it to all processes of the command."""
    endless = arguments(hopper_file, tmp_path, "--eval-every", "100000", "--updates", "100000")
    runs, process = started(tmp_path, 3, "--jobs", "2", *ray, "--", *endless)
    until(lambda: all((run / "metrics.jsonl").exists() for run in runs[:2]))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.splitlines()[-1].startswith("stopped; "), errors
    assert "Traceback" not in errors
    for run in runs[:2]:
        assert list((run / "checkpoints").glob("0*")), errors
        assert process_of(run) is None
    assert not runs[2].exists()


@pytest.mark.slow
def test_no_run_outlives_a_sweep_that_is_killed(hopper_file, tmp_path):
    """In the middle of an evaluation, too, which a run that is only asked to end would finish first."""
    evaluating = arguments(hopper_file, tmp_path, "--eval-every", "1", "--eval-episodes", "100000")
    (run,), process = started(tmp_path, 1, "--", *evaluating)
    until((run / "checkpoints" / "00000001.pt").exists)
    assert process_of(run) is not None
    process.kill()
    process.communicate()
    until(lambda: process_of(run) is None)


def started(out: Path, runs: int, *more: str) -> tuple[list[Path], subprocess.Popen[str]]:
    """The folders of a sweep, and the process that is its command, with a group of its own."""
    grid = f"{{preset: default, envs: [hopper-medium], agents: [decision-aaren], seeds: {list(range(runs))}}}"
    (out / "grid.yaml").write_text(grid)
    command = [sys.executable, "-m", "aaren_rl", "sweep", str(out / "grid.yaml"), "--out", str(out), *more]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "start_new_session": True}
    return [folder(out, seed=seed) for seed in range(runs)], subprocess.Popen(command, text=True, **pipes)


ENVIRONMENT = """
import gymnasium as gym
gym.register("Swept-v0", entry_point="gymnasium.envs.mujoco.hopper_v4:HopperEnv", max_episode_steps=1000)
"""
OWN = "{preset: default, envs: [mine], agents: [bc], seeds: [0], data: {mine: {env_id: Swept-v0, source: DATA}}, \
settings: {width: 16, layers: 1, heads: 2, updates: 1, warmup_updates: 1, steps_per_update: 20, final_episodes: 1}}"


def test_an_environment_of_ones_own(hopper_file, tmp_path, monkeypatch, capsys):
    """With a module that registers it; the grid names no code. The same line again finds it finished."""
    (tmp_path / "swept.py").write_text(ENVIRONMENT)
    (tmp_path / "grid.yaml").write_text(OWN.replace("DATA", str(hopper_file)))
    (tmp_path / "random.py").write_text("raise RuntimeError")  # which the runs do not import
    monkeypatch.chdir(tmp_path)
    line = ["grid.yaml", "--register", "swept", "--jobs", "1", "--out", "runs"]
    assert sweep(line) == 0
    assert read_card(tmp_path / "runs" / "mine" / "bc" / "seed0").env_id == "Swept-v0"
    assert sweep(line) == 0
    assert "1 runs, 1 of them finished before" in capsys.readouterr().out


def test_the_task_of_a_run_is_its_folders(tmp_path):
    with pytest.raises(ValueError, match="settings, data: env: the lists of the grid have it"):
        Grid("default", ["small"], ["bc"], [0], data={"small": {"env": "hopper-medium"}})
    hopper = {"env": "hopper-medium", "agent": "bc", "seed": 0}
    assert request_run(hopper, tmp_path, ("--preset", "paper")).preset == "paper"


def test_ray_that_is_not_there_is_refused_at_once(hopper_file, tmp_path, monkeypatch):
    requests = [asked(hopper_file, tmp_path, 0)]
    with monkeypatch.context() as patch, pytest.raises(UsageError, match=r"pip install 'aaren-rl\[sweep\]'"):
        patch.setitem(sys.modules, "ray", None)
        train_all(requests, ray="local")
    if importlib.util.find_spec("ray") is None:
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        with pytest.raises(UsageError, match="Ray does not answer"):
            train_all(requests, ray=f"127.0.0.1:{taken.getsockname()[1]}")
