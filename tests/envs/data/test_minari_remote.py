"""Asking Minari's remote which versions it has, through minari's own client and a server on this machine."""

import hashlib

import pytest
from minari_server import Hub
from minari_sets import ID

from aaren_rl.envs import DataError, UsageError
from aaren_rl.envs.data.minari import choose_version, installed, read_minari
from aaren_rl.envs.load import resolve, task_name

NAME = ID.removesuffix("-v0")  # test/hopper/random
REPOSITORY = "/datasets/farama-minari/test/resolve/main/"
NAMESPACE = f"{REPOSITORY}namespace_metadata.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
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
    with pytest.raises(DataError) as caught:
        read_minari(name, progress=False)
    message = str(caught.value)
    assert "\n" not in message and "; " in message and all(str(part) in message for part in parts), message
    return message


def test_an_id_without_a_version_is_the_latest_that_can_be_read(hub, folder, capsys):
    episodes = read_minari(NAME, progress=False).episodes
    assert (episodes.dataset, len(episodes)) == (f"{NAME}-v1", 4)
    left_out, downloading = capsys.readouterr().err.splitlines()
    assert left_out.startswith(f"{NAME}-v7: left out, because Minari 9.1 wrote it") and f"{NAME}-v1:" in downloading
    assert sorted(path.name for path in (folder / NAME).parent.iterdir() if path.is_dir()) == ["random-v1"]
    hub.asked.clear()
    assert read_minari(f"{NAME}-v1", progress=False).episodes.dataset == f"{NAME}-v1" and hub.asked == []


def test_a_version_is_never_asked_for(hub, folder):
    assert choose_version(ID) == ID and choose_version("nobody/has-v3") == "nobody/has-v3"
    assert hub.asked == []


def test_what_is_on_this_machine(hub, folder, minari_recorded, monkeypatch, capsys):
    """Later versions here count, and those of a server that does not answer or has none."""
    for version in (0, 10, 9):
        (folder / f"{NAME}-v{version}" / "data").mkdir(parents=True)
    (folder / f"{NAME}-very-v11" / "data").mkdir(parents=True)
    assert installed(NAME) == [f"{NAME}-v{version}" for version in (10, 9, 0)]
    assert choose_version(NAME) == f"{NAME}-v10"
    (folder / "mine" / "walk-v2" / "data").mkdir(parents=True)
    (folder / "top-v2" / "data").mkdir(parents=True)
    capsys.readouterr()
    assert (choose_version("mine/walk"), choose_version("top")) == ("mine/walk-v2", "top-v2")
    monkeypatch.setenv("MINARI_REMOTE", "nowhere")
    assert choose_version("mine/walk") == "mine/walk-v2"
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "mine/walk: using mine/walk-v2, which is on this machine, because Hugging Face has no dataset"
    )
    assert "nothing that begins with top" in second and "nowhere cannot be asked for its versions" in third


def test_the_error_lists_what_the_server_has(hub):
    has = [f"test/hopper/{name}" for name in ("medium-expert-v0", "random-v0", "random-v1", "random-v7")]
    refused("no dataset of that name", ", ".join(has), "minari:ID", name="test/hopper/randm")
    refused(*has, name="test/hoper/random")
    refused("nothing that begins with mujoco", name="mujoco/hopper/medium")
    for version in range(30):
        hub.add(f"many/of-v{version}")
    refused("and 10 more", name="test/many/off")
    for version in (0, 1):
        del hub.files[f"hopper/random-v{version}/data/metadata.json"]
    refused("no version of it that can be read here")


def answer(content, kind="application/json", **options):
    options.setdefault("X_Repo_Commit", hashlib.sha1(content.encode()).hexdigest())  # else the client has it cached
    return lambda handler: handler.body(content.encode(), kind, **options)


def hang_up(handler):
    handler.connection.close()


LISTINGS = {
    "not there": answer("", status=404),
    "forbidden": answer('{"error": "no\\nentry"}', status=403),
    "not JSON": answer("<html>log in</html>"),
    "empty": answer(""),
    "a number": answer("7"),
    "an object": answer("{}"),
    "null": answer("null"),
    "texts": answer('["farama-minari/test"]'),
    "no ids": answer('[{"name": "test"}]'),
    "an id that is none": answer('[{"id": 7}]'),
    "an id with a path": answer('[{"id": "../../etc/passwd"}]'),
    "an unknown repository": answer('[{"id": "farama-minari/other"}]'),
    "nothing": answer("[]"),
    "a circle": answer("", status=302, Location="/api/datasets"),
    "to a file": answer("", status=302, Location="file:///etc/passwd"),
    "gzip that is none": answer("[]", Content_Encoding="gzip"),
}
NAMESPACES = {
    "not JSON": answer("<html>"),
    "empty": answer(""),
    "a list": answer("[]"),
    "a number": answer('{"datasets": 7}'),
    "numbers": answer('{"datasets": [7]}'),
    "null": answer('{"datasets": null}'),
    "an id with a path": answer('{"datasets": ["test/../../x-v0"]}'),
    "an id with a line": answer('{"datasets": ["test/hopper/x\\ny-v0"]}'),
    "none": answer('{"datasets": []}'),
    "other names": answer('{"datasets": ["mujoco/hopper/random-v0"]}'),
    "no ETag": answer('{"datasets": []}', ETag=None),
    "not UTF-8": lambda handler: handler.body(b"\xff\xfe{"),
    "deeply nested": answer("[" * 100_000),
    "forbidden": answer("", status=403),
    "a missing entry": answer("", status=404, X_Error_Code="EntryNotFound"),
}


@pytest.mark.parametrize("start, faults", [("/api/datasets", LISTINGS), (NAMESPACE, NAMESPACES)], ids=["list", "names"])
def test_what_a_server_may_answer(hub, folder, start, faults, recwarn):
    for name, fault in faults.items():
        hub.faults = {start: fault}
        message = refused(f"minari:{NAME}: Hugging Face ", "MINARI_REMOTE")
        assert len(message) < 700, name
        assert ("is not a Minari id" in message) == (faults is NAMESPACES and name.startswith("an id with")), name
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "[]", "7", "{", '{"minari_version": 7}', "{}", '{"minari_version": ["a"]}'])
def test_metadata_that_cannot_be_read_leaves_a_version_out(hub, content, capsys):
    hub.faults = {f"{REPOSITORY}hopper/random-v{version}": answer(content) for version in (1, 7)}
    assert choose_version(NAME) == ID
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": left out, because ")[0] for line in lines] == [f"{NAME}-v7", f"{NAME}-v1"]


@pytest.mark.parametrize(
    "remote_path", ["s3://bucket", "nothing", "gcp://", "hf://", "hf://a/b/c", "://", "hf://farama minari"]
)
def test_a_remote_that_is_none(folder, hub, monkeypatch, remote_path):
    monkeypatch.setenv("MINARI_REMOTE", remote_path)
    refused(f"{remote_path} ", "MINARI_REMOTE")


def test_a_server_that_hangs_up(hub, folder):
    hub.faults = {"/": hang_up}
    refused("cannot be asked")


def test_a_version_of_a_tasks_data_goes_under_its_name(folder, hub):
    """So that a run can keep the version that it was trained on."""
    version = "minari:mujoco/hopper/medium-v3"
    assert task_name("hopper-medium", version, None) == "hopper-medium"
    assert resolve("hopper-medium", version) == ("minari", "mujoco/hopper/medium-v3")
    for other in ("minari:mujoco/hopper/medium-expert-v3", "minari:my/set-v0", "minari:mujoco/hopper/medium-v3x"):
        with pytest.raises(UsageError, match="a name of their own"):
            task_name("hopper-medium", other, None)


def test_what_a_download_may_bring(hub, folder, tmp_path):
    place = "hopper/random-v1"
    data, about = (f"{place}/data/{name}" for name in ("main_data.hdf5", "metadata.json"))
    content, at = hub.files[data], f"/datasets/farama-minari/test/resolve/{hub.commit}/{data}"
    for changed, faults in (
        ({data: content[:1000]}, {}),
        ({data: b"<html>log in</html>"}, {}),
        ({about: b'{"minari_version": "0.5.3"}'}, {}),
        ({}, {at: answer("", status=403)}),
        ({}, {at: lambda handler: handler.body(content, Content_Length=len(content) + 9)}),
        ({}, {at: lambda handler: handler.body(content, Content_Encoding="gzip")}),
        ({}, {at: answer("", status=302, Location="file:///etc/passwd")}),
        ({f"{place}/../../../../../outside": b"x"}, {}),
    ):
        original = {name: hub.files.get(name) for name in changed}
        hub.files |= changed
        hub.faults = faults
        refused(f"{NAME}-v1")
        assert not (folder / f"{NAME}-v1").exists() and not list(tmp_path.rglob("outside"))
        hub.files = {name: there for name, there in {**hub.files, **original}.items() if there is not None}
    hub.faults = {}
    assert len(read_minari(NAME, progress=False).episodes) == 4  # nothing of those is left in the way
