"""Servers on this machine that run as long as a test needs them, and can be told what to do wrong.

One has a file of D4RL's, the other answers like Hugging Face, with Minari datasets; and checks of what was fetched.
"""

import hashlib
import json
import socket
import struct
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import checks
import h5py
import numpy as np

from aaren_rl.envs import DataError, load_episodes

TASK = "walker2d-full-replay"
NAME = "walker2d_full_replay-v2.hdf5"
STEPS = 2000


class LoopbackServer(ThreadingHTTPServer):
    """Answers by a handler at a free port; a client that hangs up is no error here."""

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.host = f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self):
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield self
        self.shutdown()
        thread.join()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class Server(LoopbackServer):
    """Serves one file under the path that D4RL's server has it at; a client that hangs up is no error here."""

    daemon_threads = False  # so that server_close() waits for them
    claimed = None  # Content-Length, where it is to be wrong
    reset = False  # whether a cut is a reset instead of a close

    def __init__(self, content):
        super().__init__(FileHandler)
        self.content = content
        self.cuts = []  # of each answer the number of bytes after which it ends
        self.requests = []  # headers
        self.base = f"{self.host}/mirror"
        self.url = f"{self.base}/gym_mujoco_v2/{NAME}"


class FileHandler(QuietHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.headers)
        if self.path != f"/mirror/gym_mujoco_v2/{NAME}":
            return self.send_error(404)
        total = len(server.content)
        self.send_response(200)
        if server.claimed != "":
            self.send_header("Content-Length", str(server.claimed or total))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else total
        self.wfile.write(server.content[:cut])
        if cut < total and server.reset:
            time.sleep(0.1)  # what was sent is to arrive before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def image(path, change=lambda file: None):
    """The bytes of a file like D4RL's of Walker2d."""
    with h5py.File(path, "w") as file:
        file.update(checks.columns(STEPS, 17, 6))
        file["terminals"] = np.zeros(STEPS, bool)
        file["timeouts"] = np.arange(1, STEPS + 1) % 500 == 0
        change(file)
    content = path.read_bytes()
    path.unlink()
    return content


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
    return checks.refused(lambda: load_episodes(name, source, progress=False), *parts, error=error)


class Hub(LoopbackServer):
    """Serves `files`, by their path in the dataset repository `farama-minari/REPOSITORY`.

    `faults` are functions of a handler by the beginning of the paths that they answer in place of the server.
    """

    def __init__(self, repository):
        super().__init__(HubHandler)
        self.repository, self.files, self.faults, self.asked, self.named = repository, {}, {}, [], []
        self.url = self.host

    @property
    def listed(self):
        return sorted(name.removesuffix("/data/metadata.json") for name in self.files if name.endswith("metadata.json"))

    @property
    def commit(self):
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def add(self, name, folder=None, minari_version="0.5.3"):
        """A dataset such as hopper/random-v0: a copy of a folder, or metadata alone."""
        self.files[f"{name}/data/metadata.json"] = json.dumps({"minari_version": minari_version}).encode()
        for path in folder.iterdir() if folder else ():
            self.files[f"{name}/data/{path.name}"] = path.read_bytes()
        about = json.loads(self.files[f"{name}/data/metadata.json"]) | {"dataset_id": f"{self.repository}/{name}"}
        self.files[f"{name}/data/metadata.json"] = json.dumps(about).encode()


class HubHandler(QuietHandler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        for start, fault in hub.faults.items():
            if path.startswith(start):
                return fault(self)
        repository = f"farama-minari/{hub.repository}"
        resolve = f"/datasets/{repository}/resolve/"
        if path == "/api/datasets":
            asked = parse_qs(urlsplit(self.path).query)
            found = asked.get("author") == ["farama-minari"] and asked["search"][0] in repository
            return self.json([{"id": repository}] if found else [])
        if path.startswith(f"/api/datasets/{repository}/revision/"):
            siblings = [{"rfilename": name} for name in hub.files]
            return self.json({"id": repository, "sha": hub.commit, "siblings": siblings})
        if path.startswith(f"/api/datasets/{repository}/tree/"):
            of_all = {"type": "file", "oid": "0" * 40}
            return self.json([{**of_all, "path": name, "size": len(content)} for name, content in hub.files.items()])
        if path.startswith(resolve):
            name = path.removeprefix(resolve).partition("/")[2]
            if name == "namespace_metadata.json":
                return self.body(json.dumps({"datasets": [f"{hub.repository}/{one}" for one in hub.listed]}).encode())
            if name in hub.files:
                return self.body(hub.files[name])
        self.body(b"", status=404, X_Error_Code="EntryNotFound")

    def json(self, value):
        self.body(json.dumps(value).encode(), "application/json")

    def body(self, content, kind="application/octet-stream", status=200, **headers):
        headers = {"Content-Type": kind, "Content-Length": len(content), "X-Repo-Commit": self.server.commit, **headers}
        headers.setdefault("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_response(status)
        for key, value in headers.items():
            if value is not None:
                self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
