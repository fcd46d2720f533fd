"""Fetching D4RL's files from a server on this machine that can be told what to do wrong."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from d4rl_server import NAME, STEPS, TASK, fetched, image, names, refused

from aaren_rl.envs import TASKS, DataError, load_episodes
from aaren_rl.envs.data.download import fetch
from aaren_rl.envs.data.hdf5.d4rl import d4rl_url


def test_names_and_addresses_of_every_task(monkeypatch):
    monkeypatch.delenv("D4RL_BASE_URL", raising=False)
    server = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/"
    assert len(TASKS) == 24
    for name, task in TASKS.items():
        assert d4rl_url(task) == task.d4rl_url == f"{server}{name.replace('-', '_')}-v2.hdf5"
    monkeypatch.setenv("D4RL_BASE_URL", "https://example.org/d4rl/")
    assert d4rl_url(TASKS[TASK]) == f"https://example.org/d4rl/gym_mujoco_v2/{NAME}"


@pytest.mark.parametrize("source", ["d4rl", "auto"])
def test_a_missing_file_is_fetched_once(server, folder, capsys, source):
    episodes = load_episodes(TASK, source)
    assert (episodes.source, episodes.n_steps, len(episodes)) == ("d4rl", STEPS, 4)
    assert episodes.path == str(folder / NAME)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"{TASK}: fetching D4RL's file, which is not at {folder / NAME}, from ")
    assert server.url in err and "100%" in err
    assert fetched(server, folder)
    load_episodes(TASK, source)
    assert len(server.requests) == 1
    assert capsys.readouterr() == ("", "")


def test_auto_prefers_the_local_set(server, folder, monkeypatch, capsys):
    monkeypatch.setattr("aaren_rl.envs.data.load.make_local", lambda task, steps, progress: folder / "made locally")
    with pytest.raises(DataError, match="made locally"):
        load_episodes("hopper-medium", "auto")
    assert "--source d4rl fetches it" in capsys.readouterr().err
    assert server.requests == []


@pytest.mark.faults(40)
@pytest.mark.parametrize("reset", [False, True])
def test_40_a_dropped_connection_is_resumed(server, folder, reset):
    half = len(server.content) // 2
    server.cuts, server.reset = [half], reset
    fetch(server.url, folder / NAME, check=lambda path: None, progress=False)
    assert fetched(server, folder)
    assert server.range_headers == [None, f"bytes={half}-"]
    assert sum(server.sent) == len(server.content), "bytes were fetched twice"


@pytest.mark.faults(40)
def test_40_a_later_call_resumes(server, folder, monkeypatch):
    third = len(server.content) // 3
    server.cuts = [third] + [0] * 5
    message = refused(server.url, "broke off 6 times", f"{third:,} of {len(server.content):,} bytes", folder / NAME)
    assert "try again" in message
    assert names(folder) == {f".{NAME}.part", f".{NAME}.part.json"}
    load_episodes(TASK, "d4rl", progress=False)
    assert server.range_headers == [None] + [f"bytes={third}-"] * 6
    assert sum(server.sent) == len(server.content)
    assert fetched(server, folder)


@pytest.mark.faults(40)
def test_40_a_short_body(server, folder):
    server.claimed = len(server.content) + 1000
    server.ranges = False
    server.etag = None
    refused(server.url, "broke off 6 times", folder / NAME)
    assert len(server.requests) == 6 and set(server.range_headers) == {None}
    assert names(folder) == set(), "what cannot be continued is not kept"


def test_40_a_short_body_of_unknown_length(server, folder):
    server.claimed, server.cuts = "", [len(server.content) // 2]
    refused(server.url, "deleted", "truncated")
    assert names(folder) == set()


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_changed_between_two_calls_is_fetched_from_the_start(server, folder, tmp_path, longer):
    server.cuts = [50_000] + [0] * 5
    refused("broke off")
    server.etag = '"two"'
    server.content = image(
        tmp_path / "other.hdf5", lambda file: file.create_dataset("more", data=np.ones(100 * longer))
    )
    load_episodes(TASK, "d4rl", progress=False)
    assert server.requests[-1]["If-Range"] == '"one"'
    assert server.sent[-1] == len(server.content)
    assert fetched(server, folder)


def test_a_range_of_another_copy_is_not_appended(server, folder):
    server.cuts, server.if_range, server.etags = [50_000], False, ['"an older one"']
    fetch(server.url, folder / NAME, check=lambda path: None, progress=False)
    assert server.range_headers == [None, "bytes=50000-", None]
    assert fetched(server, folder)


@pytest.mark.parametrize(("etag", "ranges"), [(None, True), ('W/"weak"', True), ('"one"', False)])
def test_a_break_means_starting_over_where_the_server_cannot_continue(server, folder, etag, ranges):
    server.cuts, server.etag, server.ranges = [50_000], etag, ranges
    fetch(server.url, folder / NAME, check=lambda path: None, progress=False)
    assert server.range_headers == [None, None if ranges else "bytes=50000-"]
    assert fetched(server, folder)


@pytest.mark.parametrize("note", ["", "[]", "{}", "[1, 2, 3]", '["http://example.org", "one", 200000]'])
def test_a_part_of_unknown_origin_is_not_continued(server, folder, note):
    folder.mkdir()
    (folder / f".{NAME}.part").write_bytes(b"x" * 1000)
    (folder / f".{NAME}.part.json").write_text(note)
    fetch(server.url, folder / NAME, check=lambda path: None, progress=False)
    assert server.range_headers == [None]
    assert fetched(server, folder)


def test_a_complete_part_needs_no_request(server, folder):
    """Where the process was killed between the last byte and the rename."""
    server.cuts = [50_000] + [0] * 5
    refused("broke off")
    (folder / f".{NAME}.part").write_bytes(server.content)
    requests = len(server.requests)
    fetch(server.url, folder / NAME, check=lambda path: None, progress=False)
    assert len(server.requests) == requests
    assert fetched(server, folder)


SCRIPT = """
import sys
from aaren_rl.envs import load_episodes
print("ready", flush=True)
sys.stdin.readline()
print(load_episodes({task!r}, "d4rl", progress=False).n_steps, flush=True)
"""


def start():
    """A process that fetches when it is sent a line."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(task=TASK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def go(process):
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.faults(42)
def test_42_two_processes_fetch_once(server, folder):
    server.gate = threading.Event()
    with start() as first, start() as second:
        go(first)
        wait_for(lambda: server.requests)
        go(second)
        assert "fetching D4RL's file" in second.stderr.readline()
        assert "another process is fetching it" in second.stderr.readline()
        server.gate.set()
        for process in (first, second):
            assert process.communicate(timeout=60)[0] == f"{STEPS}\n"
            assert process.returncode == 0
    assert len(server.requests) == 1
    assert fetched(server, folder)


@pytest.mark.faults(42)
def test_42_a_killed_lock_holder_frees_the_lock_and_its_part_is_continued(server, folder):
    server.gate = threading.Event()
    part = folder / f".{NAME}.part"
    half = len(server.content) // 2
    with start() as process:
        go(process)
        wait_for(lambda: part.exists() and part.stat().st_size > 0)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    kept = part.stat().st_size
    assert 0 < kept <= half and not (folder / NAME).exists()
    server.gate.set()
    server.gate = None
    load_episodes(TASK, "d4rl", progress=False)
    assert server.range_headers == [None, f"bytes={kept}-"]
    assert fetched(server, folder)
