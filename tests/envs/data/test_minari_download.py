"""Fetching Minari datasets from a server on this machine that answers like Hugging Face's."""

import hashlib
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote, urlsplit

import pytest
from loopback import LoopbackServer, QuietHandler
from minari_sets import ID

from aaren_rl.envs import DataError
from aaren_rl.envs.data.minari.read import read_minari

REPOSITORY, COMMIT = f"farama-minari/{ID.split('/')[0]}", "1" * 40


class Hub(LoopbackServer):
    """Serves one repository, `files` (path: content), under the addresses that huggingface_hub asks for."""

    def __init__(self, files):
        super().__init__(Handler)
        self.files = files
        self.forbidden = None  # a file that is refused
        self.paths = []  # of every GET


class Handler(QuietHandler):
    def do_GET(self):
        path, files = unquote(urlsplit(self.path).path), self.server.files
        if self.command == "GET":
            self.server.paths.append(path)
        match = re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/[^/]+/(.+)", path)
        name = match and match[1]
        if path == f"/api/datasets/{REPOSITORY}/revision/main":
            self.send({"id": REPOSITORY, "sha": COMMIT, "siblings": []})
        elif path == f"/api/datasets/{REPOSITORY}/tree/{COMMIT}":
            self.send([{"type": "file", "path": p, "size": len(d), "oid": oid(d)} for p, d in files.items()])
        elif name and name == self.server.forbidden:
            self.send_error(403)
        elif name in files:
            self.send(files[name], ETag=f'"{oid(files[name])}"', X_Repo_Commit=COMMIT)
        else:
            self.send(b"", 404, X_Error_Code="EntryNotFound" if match else "RepoNotFound", X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def send(self, body, status=200, **headers):
        """Bytes, or what is sent as JSON."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def oid(data):
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def point_at(address, monkeypatch):
    """What HF_ENDPOINT does before huggingface_hub is imported."""
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Minari's folder, empty; huggingface_hub's cache, and nobody at its address."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    point_at("http://127.0.0.1:1", monkeypatch)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return tmp_path / "datasets"


@pytest.fixture
def hub(minari_recorded, tmp_path, folder, monkeypatch):
    remote = tmp_path / "remote"
    shutil.copytree(minari_recorded, remote)
    top = remote / ID.split("/")[0]
    files = {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    with Hub(files) as hub, hub.serving():
        point_at(hub.address, monkeypatch)
        yield hub


DATA = "hopper/random-v0/data/main_data.hdf5"


def names(folder):
    """The files of the dataset, and whatever else lies about."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def refused(*parts):
    with pytest.raises(DataError) as caught:
        read_minari(ID, progress=False)
    message = str(caught.value)
    assert "\n" not in message and "; " in message
    for part in parts:
        assert part in message


def test_it_is_fetched_once_checked_and_pinned(hub, folder, capfd):
    hub.forbidden = DATA
    refused("minari could not download it", "403", "MINARI_REMOTE", str(folder / ID))
    assert not (folder / ID).exists()
    hub.forbidden = None
    capfd.readouterr()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: read_minari(ID, progress=False), range(2))
    out, err = capfd.readouterr()
    assert out == ""
    line = f"{ID}: downloading from Hugging Face to {folder / ID}, where it is not yet"
    waiting = f"{folder / ID}: another process is downloading it; waiting"
    assert err.replace("\n", "") in (line + waiting, waiting + line)
    assert [path for path in hub.paths if path.endswith(DATA)] == [f"/datasets/{REPOSITORY}/resolve/{COMMIT}/{DATA}"]
    assert first.episodes.n_steps == second.episodes.n_steps > 20
    digest = hashlib.sha256(hub.files[DATA]).hexdigest()
    pin = folder / ID / "data" / "main_data.hdf5.sha256"
    assert pin.read_text() == f"{digest}  main_data.hdf5\n"
    data = f"{ID}/data"
    lock = "test/hopper/.random-v0.lock"
    assert names(folder) == [lock, f"{data}/main_data.hdf5", f"{data}/main_data.hdf5.sha256", f"{data}/metadata.json"]
    hub.paths.clear()
    read_minari(ID)
    assert hub.paths == [] and capfd.readouterr() == ("", "")


@pytest.mark.faults(41)
def test_41_what_fails_the_checks_is_deleted_and_not_imported(hub, folder, tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    (tmp_path / "evil_module.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = DATA.replace("main_data.hdf5", "metadata.json")
    metadata = json.loads(hub.files[name])
    metadata["env_spec"] = metadata["env_spec"].replace("gymnasium.envs.mujoco.hopper_v5", "evil_module")
    del metadata["observation_space"], metadata["action_space"]
    hub.files[name] = json.dumps(metadata).encode()
    refused("what was downloaded was deleted", "random-v0/data/metadata.json:env_spec", "evil_module", "not imported")
    assert names(folder) == ["test/hopper/.random-v0.lock"] and not trace.exists()


def test_what_cannot_be_fetched(hub, folder, monkeypatch):
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        refused("minari could not download it", "offline", "check the id and the network")
    hub.files = {name: data for name, data in hub.files.items() if "random" not in name}
    refused("minari could not download it (the remote has no such dataset)")
    assert not (folder / ID).exists()
