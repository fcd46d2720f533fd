"""Fetching D4RL's files from a server on this machine that can be told what to do wrong."""

import hashlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest

from aaren_rl.envs import TASKS, DataError, UsageError, load_episodes
from aaren_rl.envs.data.download import fetch as download_module
from aaren_rl.envs.data.download.fetch import fetch
from aaren_rl.envs.data.hdf5.d4rl import d4rl_url
from aaren_rl.envs.errors import ResourcesError

TASK = "walker2d-full-replay"
NAME = "walker2d_full_replay-v2.hdf5"
STEPS = 2000


class Server(ThreadingHTTPServer):
    """Serves one file under the path that D4RL's server has it at."""

    daemon_threads = False  # so that server_close() waits for them

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.etag = '"one"'
        self.etags = []  # of each answer, before etag is
        self.status = 200
        self.ranges = True  # whether Range is honoured
        self.if_range = True  # whether If-Range is
        self.claimed = None  # Content-Length, where it is to be wrong
        self.cuts = []  # of each answer, the number of bytes after which it ends
        self.reset = False  # whether a cut is a reset instead of a close
        self.gate = None  # an event to wait for in the middle of an answer
        self.location = None  # where to redirect to
        self.requests = []  # headers
        self.sent = []  # bytes of bodies

    @property
    def base(self):
        return f"http://127.0.0.1:{self.server_address[1]}/mirror"

    @property
    def url(self):
        return f"{self.base}/gym_mujoco_v2/{NAME}"

    @property
    def range_headers(self):
        return [headers["Range"] for headers in self.requests]

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append(self.headers)
        if self.path != f"/mirror/gym_mujoco_v2/{NAME}" or server.status >= 400:
            return self.send_error(404 if server.status == 200 else server.status)
        if server.location:
            self.send_response(302)
            self.send_header("Location", server.location)
            return self.end_headers()
        self.send_body(self.head())

    def head(self):
        """Send the head; returns the first byte to send."""
        server, first = self.server, 0
        etag = server.etags.pop(0) if server.etags else server.etag
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked and server.ranges and (self.headers["If-Range"] == etag or not server.if_range):
            first = int(asked[1])
            self.send_response(206)
            total = len(server.content)
            self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if server.claimed != "":
            self.send_header("Content-Length", str(server.claimed or len(server.content) - first))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        return first

    def send_body(self, first):
        server = self.server
        cut = server.cuts.pop(0) if server.cuts else None
        body = server.content[first:] if cut is None else server.content[first : first + cut]
        half = len(body) // 2
        self.wfile.write(body[:half])
        if server.gate:
            assert server.gate.wait(30)
        self.wfile.write(body[half:])
        server.sent.append(len(body))
        if cut is not None and server.reset:
            time.sleep(0.1)  # what was sent is to arrive before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def image(path, change=lambda file: None):
    """The bytes of a file like D4RL's of Walker2d."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.standard_normal((STEPS, 17)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (STEPS, 6)).astype(np.float32)
        file["rewards"] = rng.standard_normal(STEPS).astype(np.float32)
        file["next_observations"] = rng.standard_normal((STEPS, 17)).astype(np.float32)
        file["terminals"] = np.zeros(STEPS, bool)
        file["timeouts"] = np.arange(1, STEPS + 1) % 500 == 0
        file["infos/qpos"] = np.zeros((STEPS, 9))
        change(file)
    content = path.read_bytes()
    path.unlink()
    return content


def rename_rewards(file):
    file.move("rewards", "reward")


def one_column_less(file):
    observations = file["observations"][:, 1:]
    del file["observations"]
    file["observations"] = observations


def not_finite(file):
    file["rewards"][7] = np.nan


def of_another_environment(file):
    file.attrs["env_id"] = "HalfCheetah-v2"


def bomb(file):
    for key, columns in (("observations", (17,)), ("actions", (6,)), ("rewards", ()), ("timeouts", ())):
        del file[key]
        file.create_dataset(key, (10**11, *columns), np.float32, chunks=(10**6, *columns), compression="gzip")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "d4rl"
    monkeypatch.setenv("D4RL_DATASET_DIR", str(folder))
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download_module, "_PAUSE_S", 0.001)
    return folder


@pytest.fixture
def server(tmp_path, folder, monkeypatch):
    with Server(image(tmp_path / "image.hdf5")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("D4RL_BASE_URL", server.base + "/")
        yield server
        server.shutdown()
        thread.join()


def names(folder):
    return {path.name for path in folder.iterdir()} - {f".{NAME}.lock"}


def fetched(server, folder):
    """The complete file is there with its pin, and nothing else."""
    assert (folder / NAME).read_bytes() == server.content
    assert names(folder) == {NAME, f"{NAME}.sha256"}
    digest = hashlib.sha256(server.content).hexdigest()
    assert (folder / f"{NAME}.sha256").read_text() == f"{digest}  {NAME}\n"
    return True


def refused(*parts, source="d4rl", error=DataError, name=TASK):
    with pytest.raises(error) as caught:
        load_episodes(name, source, progress=False)
    message = str(caught.value)
    assert caught.value.exit_code == {DataError: 3, UsageError: 2, ResourcesError: 7}[error]
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    return message


def test_names_and_addresses_of_every_task(monkeypatch):
    monkeypatch.delenv("D4RL_BASE_URL", raising=False)
    server = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/"
    assert len(TASKS) == 24
    for family in ("halfcheetah", "hopper", "walker2d", "ant"):
        for level in ("random", "medium", "medium-replay", "full-replay", "medium-expert", "expert"):
            task = TASKS[f"{family}-{level}"]
            assert task.d4rl_file == "_".join([family, *level.split("-")]) + "-v2.hdf5"
            assert d4rl_url(task) == task.d4rl_url == server + task.d4rl_file
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
def test_40_a_dropped_connection_is_resumed(server, folder):
    half = len(server.content) // 2
    server.cuts = [half]
    fetch(server.url, folder / NAME, progress=False)
    assert fetched(server, folder)
    assert server.range_headers == [None, f"bytes={half}-"]
    assert sum(server.sent) == len(server.content), "bytes were fetched twice"


@pytest.mark.faults(40)
def test_40_a_reset_connection_is_resumed(server, folder):
    server.cuts, server.reset = [len(server.content) // 2], True
    fetch(server.url, folder / NAME, progress=False)
    assert len(server.requests) == 2
    assert fetched(server, folder)


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


def test_a_server_without_ranges(server, folder):
    server.cuts, server.ranges = [50_000], False
    fetch(server.url, folder / NAME, progress=False)
    assert server.range_headers == [None, "bytes=50000-"]
    assert fetched(server, folder)


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_changed_between_two_calls_is_fetched_anew(server, folder, tmp_path, longer):
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
    fetch(server.url, folder / NAME, progress=False)
    assert server.range_headers == [None, "bytes=50000-", None]
    assert fetched(server, folder)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_etag_a_break_means_starting_over(server, folder, etag):
    server.cuts, server.etag = [50_000], etag
    fetch(server.url, folder / NAME, progress=False)
    assert server.range_headers == [None, None]
    assert fetched(server, folder)


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"url": 1, "validator": 2, "total": 3}'])
def test_a_part_of_unknown_origin_is_not_continued(server, folder, note):
    folder.mkdir()
    (folder / f".{NAME}.part").write_bytes(b"x" * 1000)
    (folder / f".{NAME}.part.json").write_text(note)
    fetch(server.url, folder / NAME, progress=False)
    assert server.range_headers == [None]
    assert fetched(server, folder)


def test_a_part_from_another_address_is_not_continued(server, folder):
    server.cuts = [50_000] + [0] * 5
    refused("broke off")
    note = folder / f".{NAME}.part.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"url": "http://example.org"}))
    fetch(server.url, folder / NAME, progress=False)
    assert server.range_headers[-1] is None
    assert fetched(server, folder)


def test_a_complete_part_needs_no_request(server, folder):
    """Where the process was killed between the last byte and the rename."""
    server.cuts = [50_000] + [0] * 5
    refused("broke off")
    (folder / f".{NAME}.part").write_bytes(server.content)
    requests = len(server.requests)
    fetch(server.url, folder / NAME, progress=False)
    assert len(server.requests) == requests
    assert fetched(server, folder)


def flipped(content):
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    return bytes(changed)


@pytest.mark.faults(39)
def test_39_a_flipped_byte_in_a_download_with_a_pin(server, folder):
    folder.mkdir()
    digest = hashlib.sha256(server.content).hexdigest()
    (folder / f"{NAME}.sha256").write_text(f"{digest}  {NAME}\n")
    good, server.content = server.content, flipped(server.content)
    refused(server.url, "deleted", "SHA-256", digest[:16], folder / f"{NAME}.sha256")
    assert names(folder) == {f"{NAME}.sha256"}
    server.content = good
    load_episodes(TASK, "d4rl", progress=False)
    assert fetched(server, folder)


@pytest.mark.faults(4)
@pytest.mark.parametrize("source", ["d4rl", "auto"])
def test_4_a_flipped_byte_after_the_download(server, folder, source):
    load_episodes(TASK, "d4rl", progress=False)
    (folder / NAME).write_bytes(flipped(server.content))
    refused(folder / NAME, "SHA-256", "delete it to fetch it again", source=source)
    assert len(server.requests) == 1
    (folder / NAME).unlink()
    load_episodes(TASK, source, progress=False)
    assert fetched(server, folder)


def test_a_file_put_there_by_hand_has_no_pin_but_may_have_one(server, folder):
    folder.mkdir()
    (folder / NAME).write_bytes(server.content)
    load_episodes(TASK, "d4rl")
    assert names(folder) == {NAME} and server.requests == []
    pin = folder / f"{NAME}.sha256"
    pin.write_bytes(subprocess.run(["sha256sum", NAME], cwd=folder, check=True, capture_output=True).stdout)
    load_episodes(TASK, "d4rl")
    pin.write_text("0" * 64 + f"  {NAME}\n")
    refused("SHA-256", "0000000000000000")
    pin.write_text("nothing\n")
    refused(pin, "sha256sum")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (rename_rewards, ["missing rewards", "reward"]),
        (one_column_less, ["16 columns", "17"]),
        (not_finite, ["rewards", "step 7"]),
        (of_another_environment, ["HalfCheetah-v2", "Walker2d-v4"]),
        (bomb, ["claims", "(100000000000, 17)"]),
    ],
)
def test_a_wrong_file_leaves_nothing(server, folder, tmp_path, change, parts):
    server.content = image(tmp_path / "wrong.hdf5", change)
    message = refused(server.url, "deleted", *parts)
    assert ".part" not in message
    assert names(folder) == set()


def test_a_page_instead_of_a_file(server, folder):
    server.content = b"<html>Please log in</html>"
    refused(server.url, "deleted", "not a readable HDF5 file")
    assert names(folder) == set()


def test_what_an_option_can_mend_is_kept(server, folder, tmp_path):
    def change(file):
        file["actions"][0] = 1.5
        del file["timeouts"]

    server.content = image(tmp_path / "odd.hdf5", change)
    refused("--clip-actions")
    assert fetched(server, folder)
    episodes = load_episodes(TASK, "d4rl", clip_actions=True, max_episode_steps=1000)
    assert len(episodes) == 2 and len(server.requests) == 1


@pytest.mark.parametrize("status", [403, 404, 503])
def test_an_http_error(server, folder, status):
    server.status = status
    refused(server.url, f"status {status}", folder / NAME, "D4RL_DATASET_DIR", "D4RL_BASE_URL", "HDF5 file")
    assert len(server.requests) == 1, "asking again does not help"
    assert names(folder) == set()


@pytest.mark.parametrize("source", ["d4rl", "auto"])
def test_offline_lists_the_ways_out(folder, monkeypatch, source):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("D4RL_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        ways = (
            "cannot be reached",
            folder / NAME,
            "by hand",
            "D4RL_DATASET_DIR",
            "D4RL_BASE_URL",
            "path of an HDF5 file",
        )
        assert "local" not in refused(*ways, source=source)
        refused("--source local", source="d4rl", name="hopper-medium")


def test_too_large(server, folder, monkeypatch):
    server.claimed = 9 * 2**30
    refused(server.url, "9,663,676,416", "8,589,934,592")
    assert len(server.requests) == 1 and names(folder) == set()
    server.claimed = ""
    monkeypatch.setattr(download_module, "_MAX_BYTES", 1000)
    refused(server.url, "or more")
    assert names(folder) == set()


def test_no_room(server, folder):
    folder.mkdir()
    server.claimed = 2**32
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": min(free, 2**20)}))
        refused("4,294,967,296", "1,048,576", "make room")
    assert names(folder) == set()


@pytest.mark.faults(17)
def test_a_disk_that_fills_up(server, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(folder / NAME, "cannot be written", "make room", error=ResourcesError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(server.requests) == 1 and not (folder / NAME).exists()
    load_episodes(TASK, "d4rl", progress=False)
    assert server.range_headers == [None, "bytes=100000-"]
    assert fetched(server, folder)


def test_a_folder_that_cannot_be_written(server, folder, monkeypatch):
    folder.write_text("")
    refused("cannot be written", "D4RL_DATASET_DIR")
    assert server.requests == []


@pytest.mark.parametrize(
    "base", ["ftp://127.0.0.1", "file:///etc", "127.0.0.1:80", "http://", "http://a\nb", "http://[x"]
)
def test_only_http(folder, monkeypatch, base):
    monkeypatch.setenv("D4RL_BASE_URL", base)
    refused("http or https", "D4RL_BASE_URL", error=UsageError)
    assert not folder.exists()


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x"])
def test_a_redirect_does_not_leave_http(server, folder, location):
    server.location = location
    refused(server.url, "unknown url type: ftp" if location.startswith("ftp") else "status 302")
    assert names(folder) == set()


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


def test_the_command(server, folder, tmp_path, capsys):
    from aaren_rl.train import command as train

    server.status = 404
    assert train.main(["--env", TASK, "--source", "d4rl", "--out", str(tmp_path / "runs")]) == 3
    announced, error = capsys.readouterr().err.splitlines()
    assert announced.startswith(f"{TASK}: fetching") and error.startswith(f"error: {server.url}: ")
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.suffix == ".yaml"]


def test_the_command_fetches_resumes_and_trains(server, folder, tmp_path, capsys):
    """The connection is cut at half; the run goes on to a policy that says what it was trained on."""
    from aaren_rl.policies.folder import read_card
    from aaren_rl.train import command as train

    half = len(server.content) // 2
    server.cuts = [half]
    small = "--width 16 --layers 1 --heads 2 --updates 3 --steps-per-update 100 --eval-episodes 1 --final-episodes 1"
    command = ["--env", TASK, "--source", "d4rl", "--out", str(tmp_path / "runs"), "--threads", "1", *small.split()]
    assert train.main(command) == 0
    assert server.range_headers == [None, f"bytes={half}-"] and fetched(server, folder)
    card = read_card(tmp_path / "runs" / TASK / "decision-aaren" / "seed0")
    assert (card.source, card.env_id, card.updates, card.reference) == ("d4rl", "Walker2d-v4", 3, "D4RL v2")
    assert "from D4RL's file" in capsys.readouterr().out
