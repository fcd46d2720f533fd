"""Fetching Minari datasets by minari's own client, from a folder in the place of Hugging Face."""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from minari_sets import ID, refused

from aaren_rl.envs.data.minari import read_minari


@pytest.fixture
def hub(minari_recorded, tmp_path, monkeypatch):
    """What is on the hub, the error that it answers with, and what it was asked for."""
    hub = SimpleNamespace(files=tmp_path / "remote", error=None, asked=[])
    shutil.copytree(minari_recorded / "test", hub.files)

    def snapshot_download(_, repo_id, allow_patterns, repo_type, local_dir):
        hub.asked.append((repo_type, repo_id, allow_patterns))
        if hub.error:
            raise RuntimeError("advice") from hub.error
        shutil.copytree(hub.files, local_dir, dirs_exist_ok=True)

    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", snapshot_download)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return hub


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "datasets"


def names(folder):
    """The files of the dataset, and whatever else lies about."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_is_fetched_once_checked_and_pinned(hub, folder, capfd):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: read_minari(ID, progress=False), range(2))
    out, err = capfd.readouterr()
    line = f"{ID}: downloading from Hugging Face to {folder / ID}"
    waiting = f"{folder / ID}: another process is downloading it; waiting"
    assert out == "" and err.replace("\n", "") in (line + waiting, waiting + line)
    assert first.episodes.n_steps == second.episodes.n_steps > 20
    data = folder / ID / "data"
    assert names(data) == ["main_data.hdf5", "main_data.hdf5.sha256", "metadata.json"] and len(names(folder)) == 4
    digest = hashlib.sha256((data / "main_data.hdf5").read_bytes()).hexdigest()
    assert (data / "main_data.hdf5.sha256").read_text() == f"{digest}  main_data.hdf5\n"
    read_minari(ID)
    assert hub.asked == [("dataset", "farama-minari/test", "hopper/random-v0/*")] and capfd.readouterr() == ("", "")


@pytest.mark.faults
def test_41_what_fails_the_checks_is_deleted_and_not_imported(hub, folder, tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    (tmp_path / "evil_module.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = hub.files / "hopper/random-v0/data/metadata.json"
    metadata = json.loads(path.read_text())
    metadata["env_spec"] = metadata["env_spec"].replace("Hopper-v5", "evil_module:Hopper-v5")
    del metadata["observation_space"], metadata["action_space"]
    path.write_text(json.dumps(metadata))
    refused("dataset was deleted", "random-v0/data/metadata.json:env_spec", "evil_module", "not imported")
    assert names(folder) == ["test/hopper/.random-v0.lock"] and not trace.exists()


def test_what_cannot_be_fetched(hub, folder):
    hub.error = ConnectionError("403 Forbidden")
    refused(
        "minari could not download it (ConnectionError: 403 Forbidden)", "check the id", "MINARI_REMOTE", folder / ID
    )
    hub.error = None
    shutil.rmtree(hub.files / "hopper")
    refused("minari could not download it (the remote has no such dataset)")
    assert not (folder / ID).exists()
