"""A server on this machine that answers like Hugging Face, with Minari datasets, and can be told what to do wrong."""

import hashlib
import json
import threading
from urllib.parse import parse_qs, unquote, urlsplit

from loopback import LoopbackServer, QuietHandler


class Hub(LoopbackServer):
    """Serves `files`, by their path in the dataset repository `farama-minari/REPOSITORY`.

    `faults` are functions of a handler by the beginning of the paths that they answer in place of the server.
    """

    def __init__(self, repository):
        super().__init__(Handler)
        self.repository, self.files, self.faults, self.asked, self.named = repository, {}, {}, [], []
        self.url = self.host
        self.done = threading.Event()

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

    def stop(self):
        self.done.set()
        super().stop()


class Handler(QuietHandler):
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
            names = (
                [repository] if asked.get("author") == ["farama-minari"] and asked["search"][0] in repository else []
            )
            return self.json([{"id": name} for name in names])
        if path.startswith(f"/api/datasets/{repository}/revision/"):
            return self.json(
                {"id": repository, "sha": hub.commit, "siblings": [{"rfilename": name} for name in hub.files]}
            )
        if path.startswith(f"/api/datasets/{repository}/tree/"):
            return self.json(
                [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in hub.files.items()]
            )
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

    def drip(self):
        """An answer that never ends, byte by byte."""
        if self.command == "HEAD":
            return self.server.done.wait(30)
        self.send_response(200)
        self.end_headers()
        while not self.server.done.wait(0.2):
            self.wfile.write(b" ")
