"""OGBench's single-task sets, from a server on this machine; a small package stands in for OGBench's."""

import importlib
import io
import sys

import gymnasium as gym
import numpy as np
import pytest
from d4rl_server import Server

from aaren_rl.datasets.command import main
from aaren_rl.envs import AarenRLError, DataError, SimulationError, UsageError, load_episodes, load_task
from aaren_rl.envs.data import download
from aaren_rl.envs.data.ogbench import load_ogbench, ogbench_names
from aaren_rl.envs.load.sources import default_name, resolve

SET = "pointmaze-medium-navigate-singletask-v0"
FILE = "pointmaze-medium-navigate-v0.npz"
ENV = "pointmaze-medium-singletask-v0"

# The goal is where x >= 3. The functions have the names, arguments and results of OGBench's.
PACKAGE = {
    "__init__.py": """
import gymnasium as gym
import numpy as np

class Maze(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    _reward_task_id = 1
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = 3.0
        return np.zeros(2), {}
    def step(self, action):
        return np.zeros(2), -1.0, False, False, {}

gym.register("pointmaze-medium-singletask-v0", Maze, max_episode_steps=6)
""",
    "utils.py": "DATASET_URL = 'http://127.0.0.1:1/ogbench'",
    "relabel_utils.py": """
import numpy as np

def relabel_dataset(env_name, env, dataset):
    assert env.unwrapped._reward_task_id is not None
    env.reset()
    reached = (dataset["qpos"][:, :2][:, 0] >= env.unwrapped.goal).astype(np.float32)
    dataset["rewards"], dataset["masks"] = reached - 1.0, 1.0 - reached
""",
}
# Trajectories by x, of which the last observation has no action.
ROWS = [[3, 3, 2, 3, 1], [0, 1, 2, 3, 3, 3, 2, 1, 0], [0] * 9]


def columns(**changes):
    x = np.concatenate(ROWS).astype(np.float64)
    rows = {
        "observations": np.stack([x, np.arange(len(x))], 1).astype(np.float32),
        "actions": np.linspace(-1, 1, 2 * len(x), dtype=np.float32).reshape(-1, 2),
        "terminals": np.concatenate([np.arange(len(row)) == len(row) - 1 for row in ROWS]),
        "qpos": np.stack([x, x, x], 1),
        "qvel": np.zeros((len(x), 3)),
    }
    return {key: value for key, value in {**rows, **changes}.items() if value is not None}


def packed(arrays):
    np.savez_compressed(image := io.BytesIO(), **arrays)
    return image.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("OGBENCH_DATASET_DIR", str(folder))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_PAUSE_S", 0.001)
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    place = tmp_path / "packages" / "ogbench"
    place.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (place / name).write_text(text)
    monkeypatch.syspath_prepend(str(place.parent))
    before = {*gym.registry}
    yield
    for env_id in {*gym.registry} - before:
        del gym.registry[env_id]
    for name in [name for name in sys.modules if name.split(".")[0] == "ogbench"]:
        del sys.modules[name]


@pytest.fixture
def server(folder, package, monkeypatch):
    with Server(packed(columns())) as server, server.serving():
        server.at = FILE
        monkeypatch.setenv("OGBENCH_BASE_URL", server.base)
        yield server


def refused(*parts, error=DataError, name=SET, **options):
    with pytest.raises(error) as caught:
        load_ogbench("mine", name, progress=False, **options)
    message = str(caught.value)
    assert "\n" not in message and all(str(part) in message for part in parts), message


def test_names():
    assert ogbench_names(SET) == (ENV, FILE)
    assert ogbench_names("antmaze-large-stitch-singletask-task3-v0") == (
        *("antmaze-large-singletask-task3-v0", "antmaze-large-stitch-v0.npz"),
    )
    assert ogbench_names("puzzle-3x3-play-singletask-v0").file == "puzzle-3x3-play-v0.npz"
    assert (
        resolve("any", f"ogbench:{SET}") == ("ogbench", SET) and str(resolve("", f"ogbench:{SET}")) == f"ogbench:{SET}"
    )
    assert default_name(f"ogbench:{SET}") == SET


@pytest.mark.parametrize(
    "name",
    [
        *("", "antmaze-large-navigate-v0", "visual-antmaze-large-navigate-singletask-v0", "singletask-v0", SET[:-3]),
        *(f"../{SET}", f"{SET}\n", SET.upper(), f"a/{SET}", "antmaze-large-navigate-oraclerep-v0", "a" * 99 + SET),
        *("antmaze-large-navigate-singletask-task0-v0", "antmaze-large-navigate-singletask-task12-v0", f"{SET}.npz"),
    ],
)
def test_names_that_are_none(name, folder):
    with pytest.raises(UsageError, match="is not a single-task set of OGBench's"):
        resolve("any", f"ogbench:{name}")
    assert not folder.exists()


def test_a_set_is_fetched_relabeled_and_cut_where_the_environment_ends(server, folder, capsys):
    server.cuts = [100]
    task, episodes = load_task("mine", f"ogbench:{SET}", progress=False)
    assert (task.name, task.env_id, task.horizon, task.target_returns) == ("mine", ENV, 6, (-1.0,))
    assert server.range_headers == [None, "bytes=100-"] and (folder / f"{FILE}.sha256").is_file()
    assert f"downloading OGBench's file from {server.url}" in capsys.readouterr().err
    # x: 2 3; 0 1 2 3 | 2 1; 0 * 6 | 0 0; the last row of a trajectory has no action
    np.testing.assert_array_equal(episodes.offsets, [0, 2, 6, 8, 14, 16])
    np.testing.assert_array_equal(episodes.terminated, [True, True, False, False, False])
    np.testing.assert_array_equal(episodes.rewards, [-1, 0, -1, -1, -1, 0, -1, -1, *[-1] * 8])
    np.testing.assert_array_equal(episodes.observations[:8, 0], [2, 3, 0, 1, 2, 3, 2, 1])
    assert (episodes.source, episodes.env_id, episodes.dataset) == ("ogbench", ENV, SET)
    assert "left out 4 steps that start or stay in the goal" in episodes.notes[-1]
    assert load_task("mine", f"ogbench:{SET}", max_episode_steps=3)[1].lengths.max() == 3
    assert len(server.requests) == 2


def test_the_commands_about_datasets(server, folder, capsys):
    name = f"ogbench:{SET}"
    assert main(["verify", name]) == 3
    assert f"aaren-rl datasets download {name}" in capsys.readouterr().err
    assert main(["download", name]) == 0 and "5 episodes, 16 steps" in capsys.readouterr().out
    assert main(["verify", name]) == 0 and "SHA-256 as pinned" in capsys.readouterr().out
    assert main(["info", name]) == 0 and ENV in capsys.readouterr().out
    for command, code in ((["info", name, "--env-id", "Hopper-v4"], 2), (["convert", name, "minari:my/x-v0"], 2)):
        assert main(command) == code and capsys.readouterr().err.count("\n") == 1


n = sum(map(len, ROWS))
BAD = {
    "no qpos": ({"qpos": None}, "missing qpos"),
    "no observations": ({"observations": None, "actions": None}, "missing observations, actions"),
    "other columns": ({"observations": np.zeros((n, 3), np.float32)}, "3"),
    "other actions": ({"actions": np.zeros((n, 1), np.float32)}, "1"),
    "a short column": ({"actions": np.zeros((n - 1, 2), np.float32)}, "actions of shape"),
    "a long column": ({"qpos": np.zeros((n + 1, 3))}, "qpos of shape"),
    "flat qpos": ({"qpos": np.zeros(n)}, "OGBench cannot compute the rewards"),
    "NaN in qpos": ({"qpos": np.full((n, 3), np.nan)}, "finite numbers"),
    "NaN in observations": ({"observations": np.full((n, 2), np.nan, np.float32)}, "finite numbers"),
    "infinite actions": ({"actions": np.full((n, 2), np.inf, np.float32)}, "finite numbers"),
    "actions out of bounds": ({"actions": np.full((n, 2), 1.5, np.float32)}, "--clip-actions"),
    "flags of 2": ({"terminals": np.full(n, 2)}, "values other than 0 and 1"),
    "no ends": ({"terminals": np.zeros(n, bool), "qpos": np.zeros((n, 3)), "observations": np.zeros((n, 2))}, None),
    "all ends": ({"terminals": np.ones(n, bool)}, ""),
    "nothing": ({key: np.zeros((0, 2)) for key in columns()}, ""),
    "objects": ({"observations": np.array([{}] * n)}, "Python objects"),
    "texts": ({"qpos": np.array(["a"] * n)}, "missing qpos"),
    "other buttons": ({"button_states": np.zeros((n - 2, 9))}, "button_states of shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_do_not_fit(folder, package, case):
    changes, told = BAD[case]
    folder.mkdir()
    (folder / FILE).write_bytes(packed(columns(**changes)))
    if told is None:  # cut at the time limit
        assert load_ogbench("mine", SET)[1].lengths.max() == 6
    else:
        refused(told, FILE)


def test_damaged_files_and_lying_servers(server, folder):
    good = server.content
    for content in (
        b"",
        b"<html>",
        good[:500],
        good[:-30],
        b"PK\x03\x04" + b"\0" * 99,
        good[:200] + b"x" * 50 + good[250:],
    ):
        server.content = content
        refused("OGBENCH_DATASET_DIR", "OGBENCH_BASE_URL", FILE)
    server.content = good
    for status in (403, 404, 500):
        server.status = status
        refused(f"status {status}", "OGBENCH_BASE_URL")
    server.status, server.location = 200, "file:///etc/passwd"
    refused(server.url)
    server.location, server.claimed, server.etag = None, len(good) + 5, None
    refused("broke off 6 times")
    assert not [path for path in folder.iterdir() if not path.name.startswith(".")]
    server.claimed = None
    load_ogbench("mine", SET, progress=False)
    (folder / FILE).write_bytes(packed(columns(qvel=None)))
    refused("SHA-256")


@pytest.mark.parametrize("base", ["ftp://x/{file}", "http://x/{name}", "http://x/{file}{family}", "nonsense"])
def test_a_mirror_that_is_none(folder, package, monkeypatch, base):
    monkeypatch.setenv("OGBENCH_BASE_URL", base)
    refused("OGBENCH_BASE_URL", error=UsageError)


def test_without_the_package(folder):
    if importlib.util.find_spec("ogbench"):
        pytest.skip("OGBench is installed")
    refused("pip install 'aaren-rl[ogbench]'", error=SimulationError)
    assert not folder.exists()


def test_what_does_not_go_with_it(folder, package):
    refused("leave --env-id out", error=UsageError, env_id="Hopper-v4")
    refused("correct the name", error=SimulationError, name="pointmaze-medum-navigate-singletask-v0")
    with pytest.raises(UsageError, match="datasets convert ogbench:ID"):
        load_task("mine", f"ogbench:{SET}", memory_map=True)
    with pytest.raises(AarenRLError, match="local"):
        load_task("mine", f"ogbench:{SET}", local_steps=5000)
    with pytest.raises(UsageError, match="a name of their own"):
        load_task("hopper-medium", f"ogbench:{SET}")


def test_the_rewards_are_those_of_the_package_itself(folder):
    """With OGBench installed: its own loader has the same transitions, but for those after the goal."""
    ogbench = pytest.importorskip("ogbench")
    env = gym.make(ENV)
    env.reset(seed=0)
    rng, goal = np.random.default_rng(0), env.unwrapped.cur_goal_xy
    x = (goal + 2 * rng.standard_normal((400, 2))).astype(np.float32)
    data = {"observations": x, "qpos": x, "qvel": 0 * x, "actions": rng.uniform(-1, 1, x.shape).astype(np.float32)}
    folder.mkdir()
    for file in (FILE, FILE.replace(".npz", "-val.npz")):
        np.savez(folder / file, **data, terminals=np.arange(1, 401) % 100 == 0)
    episodes = load_ogbench("mine", SET)[1]
    theirs = ogbench.make_env_and_datasets(SET, dataset_path=str(folder / FILE), dataset_only=True, cur_env=env)[0]
    ours = {tuple(row): reward for row, reward in zip(episodes.observations, episodes.rewards, strict=True)}
    rows = zip(theirs["observations"], theirs["rewards"], theirs["masks"], strict=True)
    assert all(ours[tuple(row)] == reward if tuple(row) in ours else not mask for row, reward, mask in rows)
    assert 0 < episodes.terminated.sum() < len(episodes) <= len(ours) < 396


def test_a_task_of_d4rl_does_not_take_the_data_of_another():
    for source in (f"ogbench:{SET}", "minari:pointmaze/medium-v0"):
        with pytest.raises(UsageError, match="its data belong to another task; load them with load_task"):
            load_episodes("hopper-medium", source)
