"""D4RL's files that are not taken over: of other contents or origin, or with no room or right to keep them."""

import hashlib
import resource
import socket
import subprocess

import numpy as np
import pytest
from d4rl_server import NAME, TASK, fetched, image, names, refused

from aaren_rl.envs import UsageError, load_episodes
from aaren_rl.envs.data import download as download_module
from aaren_rl.envs.errors import ResourcesError


def bomb(file):
    for key, columns in (("observations", (17,)), ("actions", (6,)), ("rewards", ()), ("timeouts", ())):
        del file[key]
        file.create_dataset(key, (10**11, *columns), np.float32, chunks=(10**6, *columns), compression="gzip")


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


def test_a_wrong_file_leaves_nothing(server, folder, tmp_path):
    def not_finite(file):
        file["rewards"][7] = np.nan

    def of_another_environment(file):
        file.attrs["env_id"] = "HalfCheetah-v2"

    for content, parts in (
        (image(tmp_path / "wrong.hdf5", not_finite), ["rewards", "step 7"]),
        (image(tmp_path / "wrong.hdf5", of_another_environment), ["HalfCheetah-v2", "Walker2d-v4"]),
        (image(tmp_path / "wrong.hdf5", bomb), ["claims", "in a file of"]),
        (b"<html>Please log in</html>", ["not a readable HDF5 file"]),
    ):
        server.content = content
        assert ".part" not in refused(server.url, "deleted", *parts)
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


@pytest.mark.parametrize("claimed", ["", None])
def test_too_large(server, folder, monkeypatch, claimed):
    monkeypatch.setattr(download_module, "_MAX_BYTES", 1000)
    server.claimed = claimed
    refused(server.url, "sends more than 1,000 bytes")
    assert len(server.requests) == 1 and names(folder) == set()


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
    refused(server.url)
    assert names(folder) == set()
