"""Asking Minari's remote which versions it has, through minari's own client and a server on this machine."""

import hashlib

import checks
import pytest
from minari_sets import ID
from servers import Hub

from aaren_rl.envs.data.minari import choose_version, installed, read_minari

NAME = ID.removesuffix("-v0")  # test/hopper/random
REPOSITORY = "/datasets/farama-minari/test/resolve/main/"
NAMESPACE = f"{REPOSITORY}namespace_metadata.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub" / "hub"))
    for name, value in {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return tmp_path / "datasets"


@pytest.fixture
def hub(minari_recorded, folder, monkeypatch):
    """A server with versions 0 and 1 of a dataset, and a version 7 that a later Minari wrote."""
    with Hub("test") as hub, hub.serving():
        for version in (0, 1):
            hub.add(f"hopper/random-v{version}", minari_recorded / ID / "data")
        hub.add("hopper/random-v7", minari_version="9.1")
        hub.add("hopper/medium-expert-v0")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        pattern = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", pattern)
        yield hub


def refused(*parts, name=NAME):
    return checks.refused(lambda: read_minari(name), *parts)


def test_an_id_without_a_version_is_the_latest_that_can_be_read(hub, folder, capfd):
    assert choose_version(ID) == ID and choose_version("nobody/has-v3") == "nobody/has-v3" and hub.asked == []
    episodes = read_minari(NAME).episodes
    assert (episodes.dataset, len(episodes)) == (f"{NAME}-v1", 4)
    assert f"{NAME}-v1: downloading from Hugging Face to {folder / NAME}-v1" in capfd.readouterr().err
    data = folder / f"{NAME}-v1" / "data"
    digest = hashlib.sha256((data / "main_data.hdf5").read_bytes()).hexdigest()
    assert (data / "main_data.hdf5.sha256").read_text() == f"{digest}  main_data.hdf5\n"
    assert sorted(path.name for path in (folder / NAME).parent.iterdir() if path.is_dir()) == ["random-v1"]
    hub.asked.clear()
    assert read_minari(f"{NAME}-v1").episodes.dataset == f"{NAME}-v1" and hub.asked == []


def test_what_is_on_this_machine(hub, folder, monkeypatch, capsys):
    """Later versions here count, and those of a server that does not answer or has none."""
    for version in (0, 10, 9):
        (folder / f"{NAME}-v{version}" / "data").mkdir(parents=True)
    (folder / f"{NAME}-very-v11" / "data").mkdir(parents=True)
    (folder / "mine" / "walk-v2" / "data").mkdir(parents=True)
    assert installed(NAME) == [f"{NAME}-v{version}" for version in (10, 9, 0)]
    assert (choose_version(NAME), choose_version("mine/walk")) == (f"{NAME}-v10", "mine/walk-v2")
    monkeypatch.setenv("MINARI_REMOTE", "nowhere")
    assert choose_version("mine/walk") == "mine/walk-v2"
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("mine/walk: using mine/walk-v2, which is on this machine, because Hugging Face has no ")
    assert "nowhere cannot be asked for its versions" in second
    refused("mine/run", name="mine/run")


def answer(content, kind="application/json", **options):
    options.setdefault("X_Repo_Commit", hashlib.sha1(content.encode()).hexdigest())  # else the client has it cached
    return lambda handler: handler.body(content.encode(), kind, **options)


def test_what_a_server_may_answer(hub, folder, recwarn):
    for place, fault in (
        ("/api/datasets", answer('{"error": "no\\nentry"}', status=403)),
        ("/api/datasets", answer("<html>log in</html>")),
        ("/api/datasets", answer('[{"id": "../../etc/passwd"}]')),
        (NAMESPACE, answer('{"datasets": ["test/../../x-v0"]}')),
        (NAMESPACE, answer('{"datasets": 7}')),
    ):
        hub.faults = {place: fault}
        assert len(refused(f"minari:{NAME}: Hugging Face ", "MINARI_REMOTE")) < 700
    assert not folder.exists()


def test_what_a_download_may_bring(hub, folder, tmp_path):
    place = "hopper/random-v1"
    data, about = (f"{place}/data/{name}" for name in ("main_data.hdf5", "metadata.json"))
    content, at = hub.files[data], f"/datasets/farama-minari/test/resolve/{hub.commit}/{data}"
    evil = hub.files[about].replace(b"Hopper-v5", b"evil_module:Hopper-v5")
    for changed, faults in (
        ({data: content[:1000]}, {}),
        ({about: b'{"minari_version": "0.5.3"}'}, {}),
        ({about: evil}, {}),
        ({}, {at: answer("", status=302, Location="file:///etc/passwd")}),
        ({f"{place}/../../../../../outside": b"x"}, {}),
    ):
        original = {name: hub.files.get(name) for name in changed}
        hub.files |= changed
        hub.faults = faults
        refused(f"{NAME}-v1", name=f"{NAME}-v1")
        assert not (folder / f"{NAME}-v1").exists() and not list(tmp_path.rglob("outside"))
        hub.files = {name: there for name, there in {**hub.files, **original}.items() if there is not None}
    hub.faults = {}
    assert len(read_minari(f"{NAME}-v1").episodes) == 4  # nothing of those is left in the way
