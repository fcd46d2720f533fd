"""Fetching D4RL's files from a server on this machine that can be told what to do wrong."""

import hashlib
import subprocess

import pytest
from servers import NAME, STEPS, TASK, Server, fetched, image, names, refused

from aaren_rl.base.errors import ResourcesError
from aaren_rl.envs import UsageError, load_episodes
from aaren_rl.envs.data import download as download_module


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
    with Server(image(tmp_path / "image.hdf5")) as server, server.serving():
        monkeypatch.setenv("D4RL_BASE_URL", server.base + "/")
        yield server


def load(**options):
    return load_episodes(TASK, "d4rl", progress=False, **options)


def test_a_missing_file_is_fetched_once(server, folder, capsys):
    episodes = load_episodes(TASK, "auto")
    assert (episodes.source, episodes.n_steps, len(episodes)) == ("d4rl", STEPS, 4)
    assert episodes.path == str(folder / NAME)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"{TASK}: downloading D4RL's file from {server.url}")
    assert server.url in err and "100%" in err
    assert fetched(server, folder)
    load_episodes(TASK, "d4rl")
    assert len(server.requests) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.faults
@pytest.mark.parametrize("reset", [False, True])
def test_a_dropped_connection_begins_again(server, folder, reset):
    server.cuts, server.reset = [50_000, 60_000], reset
    load()
    assert len(server.requests) == 3 and fetched(server, folder)
    (folder / NAME).unlink()
    server.cuts = [1000] * 9
    refused(server.url, "broke off 4 times", "try again", folder / NAME)
    assert len(server.requests) == 7 and names(folder) == {f"{NAME}.sha256"}


@pytest.mark.faults
def test_a_short_body(server, folder):
    server.claimed = len(server.content) + 1000
    refused(server.url, "broke off 4 times", folder / NAME)
    server.claimed, server.cuts = "", [len(server.content) // 2]
    refused(server.url, "deleted", "cannot be read")
    assert names(folder) == set()


@pytest.mark.faults
def test_a_file_is_held_to_its_pin(server, folder):
    """A download where there is a pin already, a file that changed, and one that was put there by hand."""
    folder.mkdir()
    pin, good = folder / f"{NAME}.sha256", server.content
    digest = hashlib.sha256(good).hexdigest()
    pin.write_text(f"{digest}  {NAME}\n")
    server.content = good[:1000] + b"x" + good[1001:]
    refused(server.url, "deleted", "SHA-256", digest[:16], pin)
    assert names(folder) == {pin.name}
    (folder / NAME).write_bytes(server.content)
    for source in ("d4rl", "auto"):
        refused(folder / NAME, "SHA-256", "delete it to fetch it again", source=source)
    (folder / NAME).unlink()
    server.content = good
    load()
    assert fetched(server, folder) and len(server.requests) == 2
    pin.unlink()
    load()
    assert names(folder) == {NAME}
    pin.write_bytes(subprocess.run(["sha256sum", NAME], cwd=folder, check=True, capture_output=True).stdout)
    load()
    pin.write_text("nothing\n")
    refused(pin, "sha256sum")
    (folder / NAME).unlink()
    refused(pin, "sha256sum")
    pin.unlink()
    pin.mkdir()
    refused(pin, "cannot be read (Is a directory); change its mode")
    assert len(server.requests) == 2  # nothing is fetched only to be deleted


def test_a_wrong_file_leaves_nothing(server, folder, tmp_path):
    wrong = image(tmp_path / "wrong.hdf5", lambda file: file.attrs.update(env_id="HalfCheetah-v2"))
    for server.content, reason in ((wrong, "HalfCheetah-v2"), (b"<html>Please log in</html>", "cannot be read")):
        assert ".part" not in refused(server.url, "deleted", reason)
        assert names(folder) == set()


def test_what_an_option_can_mend_is_kept(server, folder, tmp_path):
    def change(file):
        file["actions"][0] = 1.5
        del file["timeouts"]

    server.content = image(tmp_path / "odd.hdf5", change)
    refused("--clip-actions")
    assert fetched(server, folder)
    assert len(load(clip_actions=True, max_episode_steps=1000)) == 2 and len(server.requests) == 1


def test_offline_lists_the_ways_out(folder, monkeypatch):
    monkeypatch.setenv("D4RL_BASE_URL", "http://127.0.0.1:1")
    ways = ("cannot be reached", folder / NAME, "by hand", "D4RL_DATASET_DIR", "D4RL_BASE_URL", "an HDF5 file")
    assert "local" not in refused(*ways, source="auto")
    refused("--source local", name="hopper-medium")


@pytest.mark.faults
def test_a_disk_that_fills_up(server, folder, full_disk):
    with full_disk():
        refused(folder / NAME, "cannot be written", "free disk space", error=ResourcesError)
    assert len(server.requests) == 1 and names(folder) == set()
    load()
    assert fetched(server, folder)


def test_only_http(folder, monkeypatch):
    for base in ("http://127.0.0.1:1/{file}", "ftp://127.0.0.1", "file:///etc", "a:80", "http://a\nb", "http://[x"):
        monkeypatch.setenv("D4RL_BASE_URL", base)
        refused("http or https", "D4RL_BASE_URL", error=UsageError)
    assert not folder.exists()
