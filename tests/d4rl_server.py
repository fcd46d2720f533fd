"""A server on this machine with one of D4RL's files, which can be told what to do wrong; checks of what was fetched."""

import hashlib
import socket
import struct
import time

import h5py
import numpy as np
import pytest
from loopback import LoopbackServer, QuietHandler

from aaren_rl.envs import DataError, load_episodes

TASK = "walker2d-full-replay"
NAME = "walker2d_full_replay-v2.hdf5"
STEPS = 2000


class Server(LoopbackServer):
    """Serves one file under the path that D4RL's server has it at; a client that hangs up is no error here."""

    daemon_threads = False  # so that server_close() waits for them
    status = 200
    claimed = None  # Content-Length, where it is to be wrong
    reset = False  # whether a cut is a reset instead of a close
    gate = None  # an event to wait for in the middle of an answer
    location = None  # where to redirect to

    def __init__(self, content):
        super().__init__(Handler)
        self.content = content
        self.cuts = []  # of each answer the number of bytes after which it ends
        self.requests, self.sent = [], []  # headers, and bytes of bodies
        self.base = f"{self.host}/mirror"
        self.at = f"gym_mujoco_v2/{NAME}"

    @property
    def url(self):
        return f"{self.base}/{self.at}"


class Handler(QuietHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.headers)
        if self.path != f"/mirror/{server.at}" or server.status >= 400:
            return self.send_error(404 if server.status == 200 else server.status)
        if server.location:
            self.send_response(302)
            self.send_header("Location", server.location)
            return self.end_headers()
        total = len(server.content)
        self.send_response(200)
        if server.claimed != "":
            self.send_header("Content-Length", str(server.claimed or total))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else total
        body = server.content[:cut]
        self.wfile.write(body[: cut // 2])
        if server.gate:
            assert server.gate.wait(30)
        self.wfile.write(body[cut // 2 :])
        server.sent.append(len(body))
        if cut < total and server.reset:
            time.sleep(0.1)  # what was sent is to arrive before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def image(path, change=lambda file: None):
    """The bytes of a file like D4RL's of Walker2d."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for key, columns in (("observations", 17), ("actions", 6)):
            file[key] = rng.uniform(-1, 1, (STEPS, columns)).astype(np.float32)
        file["rewards"] = rng.standard_normal(STEPS).astype(np.float32)
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
    with pytest.raises(error) as caught:
        load_episodes(name, source, progress=False)
    message = str(caught.value)
    assert "\n" not in message and all(str(part) in message for part in parts), message
    return message
