"""Recordings as people have them: what is no step is left out, with a note, and nothing is misread without a word."""

import shlex
from pathlib import Path
from typing import Any

import checks
import gymnasium as gym
import h5py
import numpy as np
import pandas as pd
import pytest
from small_run import ROOT

from aaren_rl import Episodes
from aaren_rl.datasets import main as datasets
from aaren_rl.envs import DataError, UsageError, load, load_episodes, load_task
from aaren_rl.envs.data.files import read_file
from aaren_rl.envs.load import default_name

N = 40
STEPS = checks.columns(N)
SEEN, ACTED, REWARDS = STEPS.values()
NUMBER = np.repeat([7, 8, 9, 10], [10, 5, 20, 5])
LENGTHS = [10, 5, 20, 5]
LAST = np.append(np.diff(NUMBER) != 0, True)
DEAD = LAST & (NUMBER == 8)
ARRAYS = Episodes.from_arrays


def npz(path: Path, **columns: Any) -> Path:
    given = STEPS | columns
    np.savez(path, **{name: column for name, column in given.items() if column is not None})
    return path


def same(episodes: Episodes, terminated: Any = DEAD[LAST]) -> Episodes:
    checks.holds(episodes, STEPS, LENGTHS, terminated)
    return episodes


STEP = np.concatenate([np.arange(length) for length in LENGTHS])
COUNTED: dict[str, dict[str, Any]] = {
    "numbers": {"episode_id": NUMBER},
    "LeRobot's numbers": {"episode_index": NUMBER.astype(np.float64), "frame_index": STEP},
    "steps": {"timestep": STEP},
    "steps from 1": {"step": STEP[:, None] + 1},
    "lengths": {"episode_lengths": np.array(LENGTHS)},
    "first rows": {"is_first": STEP == 0, "timeouts": LAST},
    "other names": {"episodeId": NUMBER, "Traj_Idx": NUMBER},
    "seconds": {"step": STEP * 0.05},
    "a column of lengths": {"lengths": np.array(LENGTHS, float)[:, None]},
    "one of two": {"episode": np.zeros(N), "ep_idx": NUMBER, "step": np.zeros(N)},
}


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_lengths_and_steps_tell_episodes_beside_terminations(name, tmp_path):
    episodes = same(read_file(npz(tmp_path / "set.npz", terminals=DEAD, **COUNTED[name])))
    assert name == "first rows" or "read ends of episodes from" in episodes.notes[0]


def test_of_several_files_without_ends_each_is_an_episode(tmp_path, capsys, monkeypatch):
    cuts = np.split(np.arange(N), np.flatnonzero(LAST)[:-1] + 1)
    paths = [
        npz(tmp_path / f"{i}.npz", **{key: column[rows] for key, column in STEPS.items()})
        for i, rows in enumerate(cuts)
    ]
    episodes = same(load_episodes("logs", source=str(tmp_path / "*.npz")), np.zeros(len(LENGTHS), bool))
    assert "0.npz and 3 others: no end is marked in it, so the file is one episode" in episodes.notes
    assert capsys.readouterr().err.count(" 1 episodes") == len(paths)
    monkeypatch.setattr(load, "SHOWN", 3)
    same(load_episodes("logs", source=paths), np.zeros(len(LENGTHS), bool))
    assert capsys.readouterr().err == "4 sources: 4 episodes, 40 steps\n"  # of many files, not a line each
    cut = load_episodes("logs", source=paths, max_episode_steps=8)
    assert cut.lengths.tolist() == [8, 2, 5, 8, 8, 4, 5]
    ends = np.arange(LENGTHS[2]) == LENGTHS[2] - 1
    npz(paths[2], **{key: column[cuts[2]] for key, column in STEPS.items()}, terminals=ends)  # the only one that failed
    same(load_episodes("logs", source=paths), np.array([False, False, True, False]))
    assert load_episodes("logs", source=str(tmp_path / "0*.npz")).lengths.tolist() == LENGTHS[:1]  # a pattern of one
    npz(paths[2], terminals=np.arange(N) % 9 == 8)  # so the others are not whole episodes, either
    with pytest.raises(DataError, match=r"0.npz: marks no end, and .*2.npz has the ends of 4 episodes"):
        load_episodes("logs", source=paths)
    with pytest.raises(DataError, match="or a file of each"):
        load_episodes("logs", source=paths[0])


def test_numbers_that_contradict_flags_or_are_mixed(tmp_path):
    early, mixed, few = np.arange(N) == 3, np.arange(N) % 4, np.array([10, 5, 20, 4])
    for columns, part in (
        ({"terminals": early, "episode": NUMBER}, "step 3, within an episode by episode"),
        ({"episode": mixed}, "rows of episodes are mix"),
        ({"lengths": few}, "counts 39 steps, there are 40"),
        ({"lengths": np.array([10, 5, 20.5, 4.5])}, "counts 40.0 steps"),
        ({"lengths": np.array([10, 0, 25, 5])}, "counts 40 steps, there are 40; correct it, or rename it to infos_len"),
        ({"episode_id": NUMBER[1:]}, r"shape \(39,\); 40 rewards go with"),
        ({"episode_id": NUMBER, "step": np.arange(N) % 10}, "episode_id and step tell other ends"),
    ):
        with pytest.raises(DataError, match=part):
            read_file(npz(tmp_path / "set.npz", **columns))
    for odd in (
        STEP + 0.3 * np.sin(STEP),
        STEP + 3 * (NUMBER == 8),
    ):  # no count of steps
        assert len(read_file(npz(tmp_path / "set.npz", terminals=DEAD, t=odd))) == 1
    same(ARRAYS(**STEPS, terminals=DEAD, episode_ids=NUMBER))
    same(ARRAYS(**STEPS, terminals=DEAD, lengths=LENGTHS))


def padded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rows = np.zeros((len(LENGTHS), max(LENGTHS), *array.shape[1:]), array.dtype)
    for e, part in enumerate(np.split(array, np.cumsum(LENGTHS)[:-1])):
        rows[e, : len(part)] = part
    return rows


KEPT = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
PADDING: dict[str, Any] = {
    "mask": KEPT,
    "attention_mask": KEPT.astype(np.int64),
    "valid": KEPT[:, :, None],
    "is_pad": ~KEPT,
    "lengths": np.array(LENGTHS),
}


@pytest.mark.parametrize("name", PADDING)
def test_padding_is_no_step(name, tmp_path):
    rows = {key: padded(array) for key, array in {**STEPS, "terminals": DEAD}.items()} | {name: PADDING[name]}
    for episodes in (ARRAYS(**rows), read_file(npz(tmp_path / "a.npz", **rows))):
        assert f"left out rows of padding, by {name}" in same(episodes).notes
    each = [{key: value[e] for key, value in rows.items()} for e in range(len(LENGTHS))]
    same(Episodes.from_trajectories(each))
    other = "my_length" if name == "lengths" else "keep"
    for one in (rows, *each):
        one[other] = one.pop(name)
        del one["terminals"]
    for read, given in ((Episodes.from_trajectories, each), (read_file, npz(tmp_path / "a.npz", **rows))):
        with pytest.raises(DataError, match=rf"{other}.* may tell which rows are padding"):
            read(given)


def test_arrays_whose_first_axis_is_of_steps(tmp_path):
    rows = {key: np.stack([array, array], 1) for key, array in {**STEPS, "timeouts": LAST}.items()}
    with pytest.raises(DataError, match="are 40 episodes of 2 steps, some of which end before their last"):
        ARRAYS(**rows)
    turned = {key: np.swapaxes(array, 0, 1).reshape(-1, *array.shape[2:]) for key, array in rows.items()}
    assert ARRAYS(**turned).lengths.tolist() == 2 * LENGTHS  # as the error says
    del rows["timeouts"]
    assert "40 episodes of 2 steps" in ARRAYS(**rows, terminals=np.zeros((N, 2))).notes[0]
    assert "not used: camera, gain" in read_file(npz(tmp_path / "a.npz", timeouts=LAST, camera=LAST, gain=STEP)).notes


def test_a_folder_with_a_file_for_each_episode(tmp_path):
    for i in range(11):
        frame = pd.DataFrame({"obs_0": [i / 1, i / 1], "action": 0.5, "reward": 1.0, "episode_index": 0})
        frame.to_parquet(tmp_path / f"part.{i}.parquet")
    episodes = read_file(tmp_path)
    assert episodes.lengths.tolist() == [2] * 11 and episodes.observations[::2, 0].tolist() == [*range(11)]
    for name, ids in (("b-1", [1, 2]), ("a-2", [0, 1]), ("a-1", [0, 0])):  # cut within an episode
        (tmp_path / "cut").mkdir(exist_ok=True)
        frame.assign(episode_index=ids).to_parquet(tmp_path / "cut" / f"{name}.parquet")
    assert read_file(tmp_path / "cut").lengths.tolist() == [3, 2, 1]
    frame["episode_index"] = ["ep2", "ep10"]
    frame.to_csv(tmp_path / "log.csv")
    assert read_file(tmp_path / "log.csv").lengths.tolist() == [1, 1]


def test_left_padding_and_a_gap():
    rows = {name: column[:6] for name, column in STEPS.items()}
    episodes = Episodes.from_trajectories([{**rows, "mask": [0, 0, 1, 1, 1, 1]}])
    np.testing.assert_array_equal(episodes.rewards, REWARDS[2:6])
    with pytest.raises(DataError, match="a gap within the episode"):
        Episodes.from_trajectories([{**rows, "mask": [1, 0, 1, 1, 1, 1]}])
    with pytest.raises(DataError, match="there are 6 steps"):
        Episodes.from_trajectories([{**rows, "length": 9}])


def test_rlds_last_rows_hold_an_observation_alone(tmp_path):
    rows = np.sort(np.concatenate([np.arange(N), np.flatnonzero(LAST) + 0.5]))
    behind, index = rows % 1 > 0, rows.astype(int)
    actions, rewards = ACTED[index], REWARDS[index]
    actions[behind], rewards[behind] = np.nan, np.nan
    flags = {"is_last": behind, "is_terminal": behind & DEAD[index], "is_first": np.append(True, behind[:-1])}
    path = npz(tmp_path / "set.npz", observations=SEEN[index], actions=actions, rewards=rewards, **flags)
    assert any("is_last" in note for note in same(read_file(path)).notes)


@pytest.mark.parametrize("name", ["terminals", "timeouts", "dones", "ends"])
def test_the_first_of_marks_that_stay_ends_an_episode(name, tmp_path):
    done = np.zeros(60, bool)
    for end in (20, 40, 60):
        done[end - 5 : end] = True
    rows = {"observations": np.arange(60.0)[:, None], "actions": np.zeros((60, 1)), "rewards": np.ones(60)}
    episodes = read_file(npz(tmp_path / "set.npz", **rows, **{name: done}))
    assert episodes.lengths.tolist() == [16] * 3 and episodes.observations[16, 0] == 20
    assert any("stays marked" in note for note in episodes.notes)
    with h5py.File(tmp_path / "traj.h5", "w") as file:  # ManiSkill's
        for e in range(3):
            for key, value in {**rows, name: done}.items():
                file[f"traj_{e}/{key}"] = value[:20]
    assert read_file(tmp_path / "traj.h5").lengths.tolist() == [16] * 3


def test_episodes_of_one_step_stay():
    ends = LAST | np.append(LAST[1:], False)
    episodes = ARRAYS(SEEN, ACTED, REWARDS, ends & ((NUMBER == 8) | LAST))
    assert episodes.lengths.tolist() == [10, 4, 1, 20, 5]
    assert len(ARRAYS(SEEN, ACTED, REWARDS, np.ones(N))) == N
    assert len(ARRAYS(SEEN, ACTED, REWARDS, np.arange(N) % 4 < 3)) == 30  # games of one or two moves
    assert ARRAYS(SEEN, ACTED, REWARDS, np.arange(N) % 10 > 2).lengths.tolist() == [4] * 4  # most of each is held


def recorded(mode: Any) -> list[np.ndarray[Any, Any]]:
    envs = gym.make_vec("Pendulum-v1", num_envs=2, max_episode_steps=20, vector_kwargs={"autoreset_mode": mode})
    envs.action_space.seed(0)
    observation, rows = envs.reset(seed=0)[0], []
    for _ in range(20 + 5 * (21 if mode == gym.vector.AutoresetMode.NEXT_STEP else 20)):
        action = envs.action_space.sample()
        after, reward, terminated, truncated, _ = envs.step(action)
        rows.append((observation, action, reward, terminated, truncated))
        observation = after
    envs.close()
    columns = [np.swapaxes(np.array(column), 0, 1) for column in zip(*rows, strict=True)]
    return [column.reshape(-1, *column.shape[2:]) for column in columns]


def test_resets_of_vector_environments_are_no_steps():
    columns = recorded(gym.vector.AutoresetMode.NEXT_STEP)
    ends = np.flatnonzero(columns[3] | columns[4])[:-1] + 1
    names = "observations", "actions", "rewards", "terminated", "truncated"
    each = zip(*(np.split(column, ends) for column in columns), strict=True)
    apart = Episodes.from_trajectories([dict(zip(names, episode, strict=True)) for episode in each])
    for episodes in (ARRAYS(*columns), apart):
        assert episodes.lengths.tolist() == [20] * 12 and "NEXT_STEP" in episodes.notes[0]
    assert ARRAYS(*recorded(gym.vector.AutoresetMode.SAME_STEP)).notes == ()


def test_choices_that_are_stored_as_floats(tmp_path):
    choices = np.arange(N) % 3
    path = npz(tmp_path / "set.npz", actions=choices.astype(np.float64), timeouts=LAST)
    assert not (read := read_file(path, action_high=9)).discrete and "whole numbers, 0 to 2" in read.notes[1]
    for episodes in (
        load_episodes("mine", path, actions="discrete"),
        ARRAYS(SEEN, choices / 1.0, REWARDS, timeouts=LAST, kind="discrete"),
        read_file(path, n_actions=3),
    ):
        assert episodes.discrete and episodes.actions.tolist() == choices.tolist()
    kept = ARRAYS(SEEN, choices, REWARDS, timeouts=LAST, kind="continuous")
    assert not kept.discrete and kept.actions[:, 0].tolist() == choices.tolist()
    assert "2 columns of integers" in ARRAYS(SEEN, np.c_[choices, choices], REWARDS, timeouts=LAST).notes[1]
    with pytest.raises(DataError, match=r"0\.5 at step 4.*kind='discrete' takes integers"):
        ARRAYS(SEEN, np.where(np.arange(N) == 4, 0.5, choices), REWARDS, timeouts=LAST, kind="discrete")
    with pytest.raises(UsageError, match="discrete or continuous"):
        load_episodes("mine", path, actions="both")
    npz(path, actions=np.where(choices == 2, 2**40, choices), timeouts=LAST)
    with pytest.raises(DataError, match="number those that there are from 0 on"):
        load_task("mine", path)


def test_what_is_masked_is_missing():
    rewards = np.ma.masked_equal(np.where(np.arange(N) == 5, -999.0, REWARDS), -999.0)
    with pytest.raises(DataError, match="rewards: is masked at step 5"):
        ARRAYS(SEEN, ACTED, rewards, LAST)
    with pytest.raises(DataError, match="observations: is masked at step 2, column 1"):
        ARRAYS(np.ma.masked_array(SEEN, (np.arange(N) == 2)[:, None] & (np.arange(3) == 1)), ACTED, REWARDS, LAST)


def test_packed_columns_are_unpacked(tmp_path):
    with h5py.File(tmp_path / "building.nc", "w") as file:
        file["observations"] = np.rint(SEEN * 1000).astype(np.int16)
        file["observations"].attrs.update(scale_factor=0.001, add_offset=20.0, _FillValue=np.int16(-32768))
        file["actions"], file["rewards"], file["timeouts"] = ACTED, REWARDS, LAST
    np.testing.assert_allclose(read_file(tmp_path / "building.nc").observations, SEEN + 20, atol=1e-3)
    with h5py.File(tmp_path / "building.nc", "a") as file:
        file["observations"][3, 1] = -32768
        file["observations"].attrs["_FillValue"] = -32768.0  # of another type than the column
    with pytest.raises(DataError, match="step 3, column 1"):
        read_file(tmp_path / "building.nc")


def test_two_names_for_one_thing(tmp_path):
    same(read_file(npz(tmp_path / "set.npz", obs=SEEN, terminals=DEAD, timeouts=LAST)))
    path = npz(tmp_path / "set.npz", obs=SEEN + 1, timeouts=LAST)
    with pytest.raises(DataError, match="observations and obs both are observations, and differ"):
        read_file(path)
    np.testing.assert_array_equal(load_episodes("mine", path, columns="observations=obs").observations, SEEN + 1)


def test_tuples_of_steps_and_mixed_frames():
    rows = [(SEEN[i, :3], ACTED[i], REWARDS[i]) for i in range(3)]  # as many steps as numbers
    observations, actions, rewards = zip(*rows, strict=True)
    episodes = Episodes.from_trajectories([{"observations": observations, "actions": actions, "rewards": rewards}])
    np.testing.assert_array_equal(episodes.observations, SEEN[:3])
    frame = pd.DataFrame({"speed": SEEN[:, 0], "contact": NUMBER > 8, "end": LAST})
    frame["gear"] = pd.array(NUMBER, "Int64")
    read = ARRAYS(frame[["speed", "contact", "gear"]], ACTED, REWARDS, timeouts=frame["end"])
    np.testing.assert_array_equal(read.observations, np.c_[SEEN[:, 0], NUMBER > 8, NUMBER].astype(np.float32))
    frame.loc[4, "gear"] = pd.NA
    with pytest.raises(DataError, match="step 4, column 2"):
        ARRAYS(frame[["speed", "contact", "gear"]], ACTED, REWARDS, timeouts=frame["end"])


def test_the_page_gives_the_same_episodes_in_four_forms(tmp_path, monkeypatch):
    """docs/howto/own-data.md: HDF5 with names of its own, CSV, a LeRobot folder, a list of dicts."""
    monkeypatch.chdir(tmp_path)
    page, known = (ROOT / "docs" / "howto" / "own-data.md").read_text(), dict[str, Any]()
    exec(page.split("```python\n")[1].split("policy = ")[0], known)  # all but the training
    wanted = Episodes.from_trajectories(known["drives"])
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("aaren-rl train --source")][:3]
    for words in commands:
        columns = words[words.index("--columns") + 1 : words.index("--env")] if "--columns" in words else ()
        assert load_episodes("mine", words[3], columns=columns).sha256() == wanted.sha256()
    assert [words[3] for words in commands] == ["drive.hdf5", "drive.csv", "robot"]
    assert wanted.lengths.tolist() == [50] * 4


def test_tables(tmp_path):
    numbered = {f"obs_{i}": SEEN[:, i] for i in range(3)} | {f"action_{i}": ACTED[:, i] for i in range(2)}
    frame = pd.DataFrame({**numbered, "reward": REWARDS, "terminated": DEAD, "episode": NUMBER, "note": "text"})
    frame.to_parquet(tmp_path / "log.parquet")
    for episodes in (Episodes.from_frame(frame), load_episodes("mine", str(tmp_path / "log.parquet"))):
        same(episodes)
        assert any("left out columns that are no numbers: note" in note for note in episodes.notes)


def test_episodes_whose_flags_have_different_names():
    rows = {name: column[:5] for name, column in STEPS.items()}
    flags: list[dict[str, Any]] = [{"done": True}, {"terminated": False, "truncated": True}, {"dones": [0] * 5}, {}]
    for order in (flags, flags[::-1]):
        episodes = Episodes.from_trajectories([{**rows, **flag} for flag in order])
        assert episodes.terminated.tolist() == ["done" in flag for flag in order]
        assert "read done as terminations: no flag of truncations is there" in episodes.notes
        assert "episodes count as cut: no flag of terminations is there" in episodes.notes


def test_episodes_that_count_as_cut_are_told():
    for episodes in (
        ARRAYS(**STEPS, timeouts=LAST),
        ARRAYS(**STEPS, episode_ids=NUMBER),
        Episodes.from_trajectories([STEPS]),
    ):
        assert not episodes.terminated.any()
        assert any("episodes count as cut: no flag of terminations is there" in note for note in episodes.notes)
    assert ARRAYS(**STEPS, terminals=DEAD, timeouts=LAST).notes == ()


def test_names_of_the_users_own(tmp_path):
    """A name that is not there is an error, whatever it means; labels of a frame may be numbers."""
    path = npz(tmp_path / "set.npz", observations=None, seen=SEEN, ride=NUMBER)
    with pytest.raises(DataError, match=r"missing rid \(found: 'actions', 'rewards', 'ride', 'seen'\)"):
        load_episodes("mine", path, columns="observations=seen number=rid")
    assert len(load_episodes("mine", path, columns="observations=seen number=ride")) == 4
    for words, said in (("observations", "write MEANING=NAME"), ("sight=seen", "'sight' is no meaning")):
        with pytest.raises(UsageError, match=said):
            load_episodes("mine", path, columns=words)
    frame = pd.DataFrame(np.c_[SEEN, ACTED, REWARDS, NUMBER])
    names: dict[str, Any] = {"observations": range(3), "actions": [3, 4], "rewards": 5, "number": 6}
    same(Episodes.from_frame(frame, names=names), [False] * 4)


def test_a_folder_has_a_name_wherever_it_is_named_from(tmp_path, monkeypatch):
    frame = pd.DataFrame({"observation.state": [*SEEN], "action": [*ACTED], "next.reward": REWARDS, "episode": NUMBER})
    (tmp_path / "robot").mkdir()
    monkeypatch.chdir(tmp_path / "robot")
    frame.to_parquet("file-000.parquet")
    assert [default_name(source) for source in (".", "./", "../robot")] == ["robot"] * 3
    same(load_episodes("mine", "."), [False] * 4)
    assert datasets(["info", "."]) == 0 == datasets(["info", "../robot"])
