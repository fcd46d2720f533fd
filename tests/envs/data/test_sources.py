"""From a name and a source to episodes, and what is refused on the way."""

import checks
import numpy as np
import pytest

from aaren_rl.envs import DataError, UnknownTaskError, UsageError, load_episodes

pytestmark = pytest.mark.usefixtures("places")


def save(path, n=20, **attrs):
    ends = np.arange(1, n + 1) % (10 if n == 20 else n) == 0
    return checks.hdf5(path, {**checks.columns(n, 11, 3), "timeouts": ends}, **attrs)


def refused(error, *parts, name="hopper-medium", source="auto", **options):
    return checks.refused(lambda: load_episodes(name, source, **options), *parts, error=error)


@pytest.mark.faults
def test_did_you_mean():
    assert "walker2d" not in refused(UnknownTaskError, "hopper-random, hopper-medium,", name="hopper")
    assert len(refused(UnknownTaskError, "hopper-medium, ", "ant-expert", name="z" * 5000)) < 700
    refused(UnknownTaskError, "'hoper-medium'", "did you mean hopper-medium?", name="hoper-medium")
    refused(UnknownTaskError, "did you mean walker2d-medium-replay?", name="Walker2d_Medium_Replay")


def test_auto_is_d4rls_file_or_the_local_set_and_says_so(tmp_path, capsys):
    episodes = load_episodes("hopper-medium", progress=False)
    assert episodes.source == "local" and episodes.env_id == "Hopper-v4"
    assert episodes.path.startswith(str(tmp_path / "cache"))
    assert any("not the D4RL file" in note for note in episodes.notes)
    out, err = capsys.readouterr()
    assert out == "" and "local dataset" in err and "not D4RL's file" in err
    path = save(tmp_path / "d4rl" / "hopper_medium-v2.hdf5")
    episodes = load_episodes("hopper-medium")
    assert (episodes.source, episodes.path, episodes.dataset) == ("d4rl", str(path), "hopper-medium")
    assert capsys.readouterr() == ("", "")


def test_paths(tmp_path, capsys):
    path = save(tmp_path / "mine.hdf5")
    save(tmp_path / "bare")
    for source in (path, str(path), "mine.hdf5", "bare"):
        episodes = load_episodes("hopper-medium", source)
        assert (episodes.source, episodes.path, len(episodes)) == ("file", str(source), 2)
    refused(DataError, "gone.h5", "does not exist", source="gone.h5")
    refused(DataError, "no/such", "does not exist", source="no/such")
    refused(UsageError, "'d4lr'", "auto, d4rl, local", source="d4lr")
    for how in ({"source": "local"}, {"local_steps": 2000}):
        refused(DataError, "ant-full-replay: no behavior policy", "hopper-medium", name="ant-full-replay", **how)
    assert capsys.readouterr() == ("", "")  # where there is none, no local set is announced


def test_the_same_dynamics_under_another_number(tmp_path):
    path = save(tmp_path / "mine.hdf5", env_id="Hopper-v2")
    assert load_episodes("hopper-medium", path).env_id == "Hopper-v2"
    for env_id in ("Walker2d-v4", "Hopper-v45"):
        path = save(tmp_path / f"{env_id}.hdf5", env_id=env_id)
        refused(DataError, f"{path}:env_id", env_id, "Hopper-v4", source=path)


def test_episodes_longer_than_the_horizon(tmp_path):
    path = save(tmp_path / "mine.hdf5", n=1500)
    refused(DataError, path, "1,500", "--max-episode-steps 1000", source=path)
    assert load_episodes("hopper-medium", path, max_episode_steps=1000).lengths.tolist() == [1000, 500]
