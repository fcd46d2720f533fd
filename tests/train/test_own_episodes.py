"""Trainings on episodes of the program, and on several files and Minari ids at once."""

import json
import re
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari_sets
import numpy as np
import pytest
import small_run
import yaml
from checks import Drawn, same
from small_run import ROOT, typed

import aaren_rl
from aaren_rl import Episodes, load_policy, train_policy
from aaren_rl.base.errors import AarenRLError
from aaren_rl.datasets import main as datasets
from aaren_rl.envs import DataError, UsageError, load_task
from aaren_rl.envs.data.files import read_file, write_hdf5
from aaren_rl.evaluate import main as evaluate
from aaren_rl.policies.held_out import all_episodes
from aaren_rl.train.config import main as train

SMALL = {**small_run.SMALL, "max_return_estimate": False}
TYPED = [*typed(small_run.SMALL), "--no-max-return-estimate"]


def made(seed: int = 0, episodes: int = 45, **labels: Any) -> Episodes:
    rng, trajectories = np.random.default_rng(seed), []
    for n in rng.integers(5, 30, episodes):
        observations, actions = rng.standard_normal((n + 1, 3)), rng.uniform(-2, 2, (n, 1))
        columns = {"observations": observations, "actions": actions, "rewards": -rng.random(n)}
        trajectories.append({**columns, "truncated": True})
    return Episodes.from_trajectories(trajectories, **labels)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def test_episodes_are_saved_beside_the_run_and_used_again(capsys):
    episodes = made()
    run = train_policy("swing", episodes=episodes, env_id="Pendulum-v1", **SMALL).folder
    (file,) = Path("runs/swing").glob("data-*.hdf5")
    assert run == Path("runs/swing/decision-aaren/seed0")
    same(read_file(file, action_low=-2, action_high=2), episodes)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["data"]["source"], config["data"]["env"]) == (str(file), "swing")
    same(all_episodes(run, load_policy(run).card), episodes)
    capsys.readouterr()
    assert evaluate([str(run), "--held-out", "--episodes", "1"]) == 0
    assert "over 8 episodes" in capsys.readouterr().out
    # The same data again are the same file, others are another one; a finished run goes on from either side.
    train_policy("swing", episodes=episodes, env_id="Pendulum-v1", seed=1, **SMALL)
    again = train_policy("swing", episodes=episodes, env_id="Pendulum-v1", resume=True, **{**SMALL, "updates": 3})
    assert again.metrics["train/loss"][-1][0] == 3
    longer = ["--env", "swing", "--resume", "--updates", "4", "--env-id", "Pendulum-v1", "--source", str(file)]
    assert train(longer) == 0
    assert list(Path("runs/swing").glob("data-*")) == [file]
    train_policy("swing", episodes=made(1), env_id="Pendulum-v1", seed=2, **SMALL)
    assert len(list(Path("runs/swing").glob("data-*"))) == 2
    with pytest.raises(AarenRLError, match="has changed since the run was started"):
        train_policy("swing", episodes=made(1), env_id="Pendulum-v1", resume=True, **{**SMALL, "updates": 5})


def test_few_episodes_are_all_trained_on_and_long_ones_have_time_steps(capsys):
    train_policy("few", episodes=made(episodes=10), **SMALL)
    assert "too few episodes to hold any out: imitation is not measured" in capsys.readouterr().out
    steps = {"observations": np.zeros((1100, 3)), "actions": np.zeros((1100, 1)), "rewards": np.ones(1100)}
    long = train_policy("long", episodes=Episodes.from_trajectories([steps]), **SMALL).policy
    assert long.model.config.max_timestep == 1100


def test_what_does_not_go_with_episodes():
    bad: list[tuple[dict[str, Any], str]] = [
        ({"episodes": [1, 2]}, "from_arrays"),
        ({"episodes": made(), "source": "x.hdf5"}, "without a source"),
        ({"episodes": made(), "env": "../x", "env_id": "Pendulum-v1"}, "letters, digits"),
        ({"episodes": made(), "env_id": "Pendulum-v1", "updates": 0}, "updates"),
    ]
    for given, part in bad:
        with pytest.raises(UsageError, match=part):
            train_policy(**{**SMALL, **given})
    with pytest.raises(DataError, match="3 columns, the environment has 11"):
        train_policy("x", episodes=made(), env_id="Hopper-v4", **SMALL)
    assert not any(Path().rglob("config.yaml")) and not any(Path().glob("*.hdf5"))


def test_several_sources_are_one_dataset(capsys):
    parts = [made(seed, 20) for seed in range(4)]
    for name, part in zip(("log-1", "log-2", "other"), parts, strict=False):
        write_hdf5(f"{name}.hdf5", part, {})
    with h5py.File("other.hdf5", "a") as file:
        columns = {key: file[key][()] for key in ("observations", "actions", "rewards", "timeouts")}
    np.savez("other.npz", **columns)
    write_hdf5("more.hdf5", parts[3], {})
    assert datasets("convert more.hdf5 minari:my/more-v0 --env-id Pendulum-v1".split()) == 0
    line = ["--env-id", "Pendulum-v1", "--source", "log-*.hdf5", "other.npz", *TYPED]
    assert train([*line, "--source", "minari:my/more-v0", "--updates", "2", "--env", "all"]) == 0
    said = capsys.readouterr().err
    for name, part in zip(("log-1.hdf5", "log-2.hdf5", "other.npz", "minari:my/more-v0"), parts, strict=True):
        assert f"{name}: {len(part)} episodes, {part.n_steps:,} steps\n" in said
    run = Path("runs/all/decision-aaren/seed0")
    sources = yaml.safe_load((run / "config.yaml").read_text())["data"]["source"]
    assert sources == ["log-1.hdf5", "log-2.hdf5", "other.npz", "minari:my/more-v0"]
    task, joined = load_task("all", sources, env_id="Pendulum-v1")
    assert np.array_equal(joined.lengths, np.concatenate([part.lengths for part in parts]))
    for key in ("observations", "actions", "rewards", "terminated"):
        np.testing.assert_array_equal(getattr(joined, key), np.concatenate([getattr(part, key) for part in parts]))
    assert task.target_returns == (float(max(part.returns.max() for part in parts)),)
    assert joined.source == "file" and joined.path.startswith("log-1.hdf5, log-2.hdf5, other.npz, ")
    # The run goes on, with its own sources or the same pattern.
    made_of = ["--source", *sources[:2], "other.npz", "minari:my/more-v0"]
    for updates, own in (("3", made_of), ("4", ["--source", "log-*.hdf5", "other.npz", "minari:my/more-v0"])):
        assert train([*line[:2], *own, "--env", "all", "--resume", "--updates", updates]) == 0
    assert evaluate([str(run), "--held-out", "--episodes", "1"]) == 0


def test_sources_of_two_environments():
    write_hdf5("a.hdf5", made(), {})
    wide = Episodes.from_arrays(np.zeros((40, 4)), np.zeros(40, int), np.ones(40), np.arange(40) % 4 == 3)
    write_hdf5("b.hdf5", wide, {})
    assert datasets("convert b.hdf5 minari:my/pole-v0 --env-id CartPole-v1".split()) == 0
    with pytest.raises(DataError, match=r"b\.hdf5:actions are int64"):
        load_task("x", ["a.hdf5", "b.hdf5"], env_id="Pendulum-v1")
    for sources, part in ((["a.hdf5", "a.hdf5"], "given twice"), ([], "there is none"), (["*.npz"], "no file matches")):
        with pytest.raises(UsageError, match=part):
            load_task("x", sources, env_id="Pendulum-v1")
    assert train(["--env-id", "Pendulum-v1", "--source", "a.hdf5", "./a.hdf5"]) == 2
    with pytest.raises(AarenRLError, match="actions are discrete, the environment's continuous"):
        load_task("x", ["a.hdf5", "minari:my/pole-v0"], env_id="Pendulum-v1")


@pytest.mark.parametrize("there", ["Pendulum-v0", "Swing-v3", "Hopper-v2"])
def test_the_environment_that_is_given_counts(there, capsys):
    write_hdf5("old.hdf5", made(), {"env_id": there})
    assert train(["--env-id", "Pendulum-v1", "--source", "old.hdf5", "--updates", "1", *TYPED]) == 0
    note = f"the file names the environment {there}; Pendulum-v1 is used, whose sizes and bounds fit"
    said = capsys.readouterr()
    assert note in said.out + said.err
    assert datasets(["info", "old.hdf5", "--env-id", "Pendulum-v1"]) == 0
    assert note in capsys.readouterr().out
    assert train(["--env-id", "Hopper-v2", "--source", "old.hdf5", "--env", "hop"]) == 5
    assert "use Hopper-v4, which has the same dynamics" in capsys.readouterr().err


def test_the_code_on_the_front_page_runs(monkeypatch):
    """As pasted, with a small model."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^    import numpy.*?(?=\n\n\S)", text, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(aaren_rl, "train_policy", partial(train_policy, **SMALL), raising=False)
    found: dict[str, Any] = {}
    exec(textwrap.dedent(code), found)
    assert found["action"].shape == (1, 2) and np.isfinite(found["action"]).all()


# A Dict of keyword arguments keeps their order, and Gymnasium flattens by it; a dict's keys are sorted.
SEEN = gym.spaces.Dict(joint=gym.spaces.Box(-9, 9, (3,)), gps=gym.spaces.Box(-9, 9, (2,)))
OTHER = gym.spaces.Dict(wrist=gym.spaces.Box(-9, 9, (3,)), gps=gym.spaces.Box(-9, 9, (2,)))
for name, space in (("KeywordArm-v0", SEEN), ("Hand-v0", OTHER)):
    gym.register(name, partial(Drawn, space, gym.spaces.Box(-1, 1, (1,))), max_episode_steps=10)


def of_the_arm() -> Episodes:
    rng, rows = np.random.default_rng(0), 500
    parts = {"gps": 5 + rng.normal(size=(rows, 2)), "joint": rng.normal(size=(rows, 3))}
    return Episodes.from_arrays(parts, rng.uniform(-1, 1, (rows, 1)), np.ones(rows), ends=np.arange(rows) % 10 == 9)


def test_parts_of_observations_are_in_the_order_of_the_environment(capsys):
    policy = train_policy("arm", episodes=of_the_arm(), env_id="KeywordArm-v0", **SMALL).policy
    assert list(policy.card.observation_space["subspaces"]) == ["joint", "gps"]
    assert np.round(policy.card.observation_mean).tolist() == [0, 0, 0, 5, 5]
    assert "observations are in the order of KeywordArm-v0: joint, gps" in "".join(capsys.readouterr())
    state = policy.initial_state(1)
    by_name, _ = policy.act([{"gps": [5.0, 6.0], "joint": [1.0, 0.0, -1.0]}], [0.0], state)
    np.testing.assert_array_equal(by_name, policy.act([[1.0, 0.0, -1.0, 5.0, 6.0]], [0.0], state)[0])


def test_without_an_environment_the_parts_of_the_data_are_kept(capsys):
    run = train_policy("logs", episodes=of_the_arm(), **SMALL)
    policy, state = run.policy, run.policy.initial_state(1)
    assert list(policy.card.observation_space["subspaces"]) == ["gps", "joint"]
    with pytest.raises(ValueError, match="'joint' is missing"):
        policy.act([{"gps": [5.0, 6.0], "arm": [1.0, 0.0, -1.0]}], [0.0], state)
    assert evaluate([str(run.folder), "--env-id", "KeywordArm-v0", "--episodes", "1"]) == 4
    said = "trained on observations of gps (2), joint (3), KeywordArm-v0 flattens joint (3), gps (2)"
    assert said in capsys.readouterr().err
    (file,) = Path("runs/logs").glob("data-*.hdf5")
    with h5py.File(file, "r+") as data:
        data.attrs["observation_space"] = '{"type": "Box", "shape": [4]}'
    with pytest.raises(DataError, match="describes 4 columns"):
        read_file(file)


def test_other_parts_and_other_arguments_are_refused():
    with pytest.raises(DataError, match=r"have the parts gps \(2\), joint \(3\), not wrist \(3\), gps \(2\)"):
        train_policy("hand", episodes=of_the_arm(), env_id="Hand-v0", **SMALL)
    with pytest.raises(UsageError, match="end_flags: is no argument"):
        Episodes.from_arrays([[0.0]], [[0.0]], [0.0], end_flags=[1])


def test_parts_are_in_order_by_way_of_minari(tmp_path):
    """Converted in the order of the environment; and read into another order, of an environment named later."""
    write_hdf5("arm.hdf5", of_the_arm(), {})
    assert datasets("convert arm.hdf5 minari:my/arm-v0 --env-id KeywordArm-v0".split()) == 0
    means = [np.round(load_task("arm", "minari:my/arm-v0")[1].observations.mean(axis=0)).tolist()]
    data = tmp_path / "minari" / "my" / "arm-v0" / "data"
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        for group in file.values():
            flat = group["observations"][()]
            del group["observations"]
            group["observations/joint"], group["observations/gps"] = flat[:, :3], flat[:, 3:]
    boxes = {name: {"type": "Box", "shape": [size], "dtype": "float32"} for name, size in (("gps", 2), ("joint", 3))}
    with minari_sets.metadata(data) as values:
        values["observation_space"] = json.dumps({"type": "Dict", "subspaces": boxes})
    (data / "main_data.hdf5.sha256").unlink(missing_ok=True)
    task, episodes = load_task("arm", "minari:my/arm-v0", env_id="KeywordArm-v0")
    means.append(np.round(episodes.observations.mean(axis=0)).tolist())
    assert list(task.layout["subspaces"]) == ["joint", "gps"] and means == [[0, 0, 0, 5, 5]] * 2
