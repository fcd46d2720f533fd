"""The command `datasets`: what it shows is in the data, what it converts stays the same, what it refuses it says."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
from checks import columns, same
from minari_sets import small

from aaren_rl.datasets import describe, format_description, main
from aaren_rl.envs import Episodes, normalized_score
from aaren_rl.envs.data.files import read_file, write_hdf5, write_pin
from aaren_rl.envs.data.minari import minari_data_dir, read_minari, write_minari

D4RL = "d4rl/hopper_medium-v2.hdf5"


@pytest.fixture(autouse=True)
def folder(places):
    return places


def episodes(scale=1.0):
    made = small(lengths=(30, 1, 9, 60))
    made.observations[:, 5] = 2.5
    np.multiply(made.actions, scale, out=made.actions)
    return replace(made, terminated=np.array([True, True, False, True]))


def refused(capsys, code, words, part=""):
    capsys.readouterr()
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "; " in err and part in err


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_list(folder, capsys):
    assert main(["list"]) == 0
    empty = capsys.readouterr().out
    assert empty.count("can be fetched") == empty.count("not fetched") == 24 and files(folder) == set()
    write_hdf5(folder / D4RL, episodes(), {})
    write_pin(folder / D4RL, "0" * 64)
    write_hdf5(folder / "d4rl" / "ant_expert-v2.hdf5", episodes(), {})
    write_minari("mujoco/hopper/medium-v0", episodes(), env_id="Hopper-v5")
    (folder / "minari" / "mujoco" / "hopper" / ".medium-v1.part" / "data").mkdir(parents=True)
    assert main(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    size = f"{(folder / D4RL).stat().st_size / 1000:.1f}kB"
    assert f"{size}, pinned" in rows["hopper-medium"] and "can be made" in rows["hopper-medium"]
    assert rows["hopper-medium"].endswith("kB") and rows["hopper-expert"].endswith("not fetched")
    assert "no pin" in rows["ant-expert"] and rows["ant-full-replay"].endswith("-               not fetched")
    assert not any("medium-v1" in line for line in rows)


def test_info_numbers(folder, capsys):
    data = episodes()
    write_hdf5(folder / D4RL, data, {"env_id": "Hopper-v2"})
    assert main(["info", "hopper-medium", "--json", "numbers.json"]) == 0
    out = capsys.readouterr().out
    values = json.loads((folder / "numbers.json").read_text())
    digest = hashlib.sha256((folder / D4RL).read_bytes()).hexdigest()
    assert values["sha256"] == digest and digest in out
    assert (values["episodes"], values["steps"], values["terminated_share"]) == (4, 100, 0.75)
    assert (values["source"], values["env_id"], values["constant_columns"]) == ("d4rl", "Hopper-v2", [5])
    returns = [float(data.rewards[a:b].sum(dtype=np.float64)) for a, b in ((0, 30), (30, 31), (31, 40), (40, 100))]
    assert values["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert values["returns"]["min"] == pytest.approx(min(returns)) and values["returns"]["q50"] == np.median(returns)
    assert list(values["lengths"]) == ["mean", "min", "q5", "q25", "q50", "q75", "q95", "max"]
    assert values["lengths"]["q25"] == 7 and values["lengths"]["max"] == 60  # 1, 9, 30, 60
    assert values["score_mean"] == pytest.approx(normalized_score("hopper", np.mean(returns)))
    assert values["action_range"] == [data.actions.min(), data.actions.max()]
    for shown in ("D4RL's file", "terminated (75.0%)", "constant: 5", "D4RL v2", "Hopper-v2"):
        assert shown in out
    (lengths,) = (line.split() for line in out.splitlines() if line.startswith("length"))
    assert lengths == ["length", "1", "2.2", "7", "19.5", "37.5", "55.5", "60", "25"]


def test_info_of_columns_with_own_names(folder, capsys):
    table = {name: np.arange(20) % 4 / 3 for name in ("x", "y", "torque", "paid")} | {"episode": np.arange(20) // 5}
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    (folder / "a\x1b[31mb.csv").write_text("\n".join(lines))
    named = ["observations=x,y", "actions=torque", "rewards=paid"]
    assert main(["info", "a\x1b[31mb.csv", "--columns", *named, "--json", "n.json"]) == 0
    out = capsys.readouterr().out
    assert "observations  2 columns" in out and "\x1b" not in out and r"a\x1b[31mb.csv" in out
    assert json.loads((folder / "n.json").read_text())["episodes"] == 4
    assert main(["info", "a\x1b[31mb.csv", "--columns", *named[:2]]) == 3 and "rewards" in capsys.readouterr().err


def test_info_of_every_source(folder, capsys):
    write_hdf5(folder / "mine.hdf5", episodes(scale=3.0), {})
    write_hdf5(folder / "fits.hdf5", episodes(), {})
    write_minari("my/set-v0", episodes(), env_id="Hopper-v5", reference_returns=(0, 10))
    write_minari("mujoco/hopper/medium-v0", episodes(), env_id="Hopper-v5")
    for command, *parts in (
        ("info fits.hdf5", "a file of yours"),
        ("info hopper-medium", "a local set, not D4RL's"),
        ("info minari:mujoco/hopper/medium", "mujoco/hopper/medium-v0, from Minari"),
        ("info minari:my/set-v0", f"{episodes().returns.mean() * 10:.1f} (Minari's reference returns)"),
        ("info mine.hdf5", "a file of yours", "mean score    -", "[-2.9", "environment   not named"),
        ("info tmaze", "(success in percent, chance is 50)"),
        ("info fits.hdf5 --env-id Hopper-v5", "environment   Hopper-v5"),
    ):
        assert main(command.split()) == 0
        out = capsys.readouterr().out
        assert all(part in out for part in parts)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a:b", "", "hoper-medium", "minari:../x", "minari:/x-v0"])
def test_names_that_are_none(folder, name, capsys):
    for words in (
        ["info", name],
        ["verify", "hopper-medium", name],
        ["download", "minari:my/set-v0", name],
        ["convert", name, "minari:my/set-v0"],
        ["convert", "mine.hdf5", name],
    ):
        refused(capsys, 2, words)
    assert files(folder) == set() and not (folder / "minari").exists()


REFUSED = {
    "info hopper-medium --json numbers": (2, "--json numbers: is a folder"),
    "info hopper-medium --json no/such.json": (2, "folder does not exist"),
    "info hopper-medium --env-id Hopper-v4": (2, "simulated on Hopper-v4"),
    "download minari:my/set-v0 mine.hdf5": (2, "unknown task 'mine.hdf5'"),
    "download my/set-v0": (2, "a Minari dataset is minari:my/set-v0"),
    "download tmaze --source minari": (2, "Minari has no such data"),
    "info minari:my/set-v0 --env-id Hopper-v4": (2, "--env-id Hopper-v4: a Minari data set names its own"),
    "info minari:my/bare-v0 --max-episode-steps 9": (2, "--max-episode-steps"),
    "info mine.hdf5 --clip-actions": (2, "--clip-actions: without an environment"),
    "convert minari:my/bare-v0 new.hdf5 --max-episode-steps 9": (2, "--max-episode-steps"),
    "convert mine.hdf5 minari:my/set-v0": (2, "already exists"),
    "convert minari:my/set-v0 mine.hdf5": (2, "already exists"),
    "convert mine.hdf5 other.npz": (2, "only HDF5 and minari:ID"),
    "convert minari:my/set-v0 no/such.hdf5": (2, "folder does not exist"),
    "convert mine.hdf5 minari:my/new-v0 --env-id Walker2d-v4": (3, "11 columns"),
}


def test_what_is_refused_leaves_everything_as_it_was(folder, capsys):
    (folder / "numbers").mkdir()
    write_hdf5(folder / "mine.hdf5", episodes(), {})
    write_minari("my/set-v0", episodes(), env_id="Hopper-v4")
    write_minari("my/bare-v0", episodes(), env_id=None)
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    for command, (code, part) in REFUSED.items():
        refused(capsys, code, command.split(), part)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_verify(folder, capsys):
    for path in (D4RL, "good.hdf5", "bad.hdf5"):
        write_hdf5(folder / path, episodes(), {})
    write_pin(folder / D4RL, hashlib.sha256((folder / D4RL).read_bytes()).hexdigest())
    write_minari("mujoco/hopper/medium-v0", episodes(), env_id="Hopper-v5")
    assert main(["verify", "hopper-medium", "good.hdf5", "minari:mujoco/hopper/medium-v0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["ok"] * 4
    assert "100 steps, SHA-256 as pinned" in lines[0] and D4RL in lines[0] and "not pinned" in lines[1]
    write_pin(folder / "good.hdf5", "0" * 64)
    refused(capsys, 3, ["verify", "good.hdf5"], "good.hdf5: SHA-256")
    (folder / "good.hdf5.sha256").unlink()
    with h5py.File(folder / "bad.hdf5", "a") as file:
        file["rewards"][3] = np.nan
    with open(folder / D4RL, "ab") as stream:
        stream.write(b"x")
    assert main(["verify", "hopper-medium", "bad.hdf5", "none.hdf5", "hopper-expert", "good.hdf5", "minari:a-v0"]) == 3
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and "medium-v0" in out and "good.hdf5" in out
    errors = err.splitlines()
    assert len(errors) == 5
    parts = ("SHA-256", "NaN", "none.hdf5: does not exist", "not on this", "not on")
    for line, part in zip(errors, parts, strict=True):
        assert line.startswith("error: ") and part in line


def test_verify_of_several_files_without_ends_is_as_training(folder, capsys):
    for name in ("a.npz", "b.npz"):
        np.savez(folder / name, **columns(9))
    assert main(["verify", "a.npz", "b.npz"]) == 0
    assert capsys.readouterr().out.count("1 episodes, 9 steps") == 2


def test_there_and_back_is_the_same_bit_for_bit(folder, capsys):
    data = episodes()
    data.rewards[:3] = np.float32([1e-42, -0.0, 3e38])
    write_hdf5(folder / "first.hdf5", data, {"env_id": "Hopper-v4", "origin": "by hand"})
    assert main(["convert", "first.hdf5", "minari:my/set-v0"]) == 0
    assert main(["convert", "minari:my/set-v0", "second.hdf5"]) == 0
    again = read_file("second.hdf5")
    same(again, data)
    assert again.env_id == "Hopper-v4" and again.rewards.tobytes() == data.rewards.tobytes()
    assert "converted from minari:my/set-v0" in again.notes[0]
    assert "converted from first.hdf5; origin: by hand" in read_minari("my/set-v0").episodes.notes[0]
    write_hdf5(folder / D4RL, data, {})
    assert main(["convert", "hopper-medium", "minari:my/medium-v0"]) == 0
    read = read_minari("my/medium-v0")
    assert read.episodes.env_id == "Hopper-v4" and read.spec.reference[1:] == (-20.272305, 3234.3)
    assert read.episodes.notes[0].endswith("converted from hopper_medium-v2.hdf5")


def test_a_reader_that_has_seen_enough(folder):
    """And neither importing the package's data side nor listing waits for minari or matplotlib."""
    slow = ("minari", "matplotlib", "stable_baselines3")
    code = (
        "import sys; from aaren_rl.datasets import main; code = main(['list']);"
        f"print([name for name in {slow} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    command = f"{sys.executable} -c {json.dumps(code)!s} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and done.stdout.strip() == "141"


@pytest.mark.slow
def test_a_built_in_task_is_converted_with_the_environment_of_its_data(folder):
    """The data of tmaze-50 are those of tmaze, whose corridors are longer."""
    assert main("convert tmaze-50 minari:my/maze-v0".split()) == 0
    metadata = json.loads((minari_data_dir("my/maze-v0") / "metadata.json").read_text())
    spec = json.loads(metadata["env_spec"])
    assert (spec["id"], spec["max_episode_steps"], spec["kwargs"]) == ("aaren_rl/TMaze-v0", 200, {})


def test_columns_have_their_ranges_their_outliers_and_their_digits(tmp_path):
    rng, steps = np.random.default_rng(0), 2000
    seen = rng.normal(size=(steps, 4))
    seen[:, 0] = 48.8566 + 1e-5 * seen[:, 0]  # degrees
    seen[:, 1] = 7.25
    seen[[5, 70, 900], 2] = 1e4
    zeros = np.zeros((steps, 1), np.float32)
    ends = np.arange(0, steps + 1, 20), np.arange(100) % 4 == 0
    episodes = Episodes(seen, zeros, np.full(steps, 1e-6, np.float32), *ends)
    path = tmp_path / "own.hdf5"
    write_hdf5(path, episodes, {})
    numbers = describe(read_file(path), None)
    columns = numbers["observation_columns"]
    assert columns["outliers"] == [0, 0, 3, 0] and columns["max"][2] == 1e4
    assert columns["mean"][0] == pytest.approx(48.8566, abs=1e-6)
    assert columns["std"][0] == pytest.approx(1e-5, rel=0.1)
    assert numbers["constant_columns"] == [1] and numbers["ends"] == {"terminated": 25, "truncated": 75}
    text = format_description(numbers)
    assert "48.8566" in text and " 2e-05" in text and "25 terminated (25.0%), 75 cut by a time limit" in text
    (line,) = (line for line in text.splitlines() if line.startswith("observation 1 "))
    assert line.split()[2:] == ["7.25", "7.25", "7.25", "0", "0", "constant"]
