"""The collecting job end to end, at a size that takes seconds: train, resume, levels, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import pickle
import shutil
import signal
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from torch.utils._pytree import tree_flatten

from aaren_rl.collect import checkpoint as collect_checkpoint
from aaren_rl.collect import levels as levels_module
from aaren_rl.collect import run as collect_training
from aaren_rl.collect.checkpoint import load_run
from aaren_rl.collect.command import main as collect
from aaren_rl.collect.command import make_parser, minari_id_of
from aaren_rl.collect.config import CollectConfig, Evaluation, read_config
from aaren_rl.collect.levels import LEVELS, Choice, Source, choose_checkpoints, split_experience
from aaren_rl.collect.run import CollectRun, TrainingEnv, rhythm, write_actor
from aaren_rl.envs import load_task
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.envs.data.minari.spec import check_minari_id
from aaren_rl.envs.local.policy import ActionUnits, BehaviorPolicy, WorkerPool

# An observation tells the time and the last action, so data can be checked line by line. Actions lie in [-2, 4]; one
# above 3.4 ends the episode.
MODULE = """
import gymnasium as gym
import numpy as np


class Echo(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-2.0, 4.0, (1,))

    def __init__(self, trouble=None):
        self.trouble = trouble
        if trouble == "flat":
            self.action_space = gym.spaces.Box(4.0, 4.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([0.0, self.np_random.random()])
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.state = np.array([self.state[0] + 1, action[0]])
        if self.trouble == "raise" and self.state[0] > 3:
            raise RuntimeError("out of paper")
        reward = np.nan if self.trouble == "nan" else float(action[0])
        return self.state.copy(), reward, bool(action[0] > 3.4), False, {}


for name, trouble in (("Echo", None), ("EchoRaises", "raise"), ("EchoNan", "nan"), ("EchoFlat", "flat")):
    gym.register(f"{name}-v0", Echo, kwargs={"trouble": trouble})
"""


ID = "collected/hopper-v4/medium-seed0-v0"


def arguments(out: Path, *more: str) -> list[str]:
    """Three checkpoints in 600 steps of Hopper, with few updates; later options win."""
    small = "--env-id Hopper-v4 --steps 600 --checkpoint-every 200 --random-steps 100 --updates-per-step 0.05"
    return [*small.split(), "--max-episode-steps", "20", "--dataset-steps", "300", "--out", str(out), *more]


def folder(out: Path) -> Path:
    return out / "Hopper-v4" / "seed0"


def records(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def dataset(run: Path, level: str) -> dict[str, np.ndarray]:
    name = run.parent.name
    with h5py.File(run / "datasets" / f"{'hopper' if name == 'Hopper-v4' else name}-{level}.hdf5") as file:
        return {key: file[key][()] for key in file} | dict(file.attrs)


@pytest.fixture(scope="module", autouse=True)
def one_worker():
    """A worker process takes seconds to start on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels_module, "core_count", lambda: 1)
        yield


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and Minari's root with its data in the folder minari."""
    out = tmp_path_factory.mktemp("collected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(out / "minari"))
        assert collect(arguments(out, "--minari")) == 0
    return out


@pytest.fixture
def copied(collected: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    shutil.copytree(collected, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in the registered environment, actions in [-2, 4]."""
    where = tmp_path_factory.mktemp("echo")
    (where / "echo_environment.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.syspath_prepend(str(where))
        run = arguments(where, "--env-id", "Echo-v0", "--register", "echo_environment", "--max-episode-steps", "15")
        assert collect([*run, "--levels", "random", "medium", "medium-replay"]) == 0
    return where / "Echo-v0" / "seed0"


def test_a_run_folder_has_all_its_parts(collected: Path) -> None:
    run = folder(collected)
    assert {p.name for p in (run / "datasets").iterdir()} == {f"hopper-{level}.hdf5" for level in LEVELS}
    evaluated = [r for r in records(run) if "eval/mean_return" in r]
    assert [r["step"] for r in evaluated] == [200, 400, 600]
    for record in evaluated:
        with safe_open(run / "actors" / f"{record['step']}.safetensors", "np") as weights:
            metadata = weights.metadata()
        assert (metadata["env_id"], metadata["algorithm"]) == ("Hopper-v4", "SAC")
    assert {"train/actor_loss", "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"} <= set(records(run)[-2])


def test_the_minari_id_of_an_environment_with_a_dot() -> None:
    assert minari_id_of(CollectConfig("Hopper-v4", 0, 9), "medium") == ID
    check_minari_id(minari_id_of(CollectConfig("space/my.Dot-v0", 0, 9), "random"))


def test_data_are_as_the_readers_want_them(collected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {level: dataset(folder(collected), level) for level in LEVELS}
    same = np.array_equal(data["medium"]["actions"], data["expert"]["actions"])  # no episode is written twice
    every = {"random": 1, "medium": 1, "expert": 1, "medium-expert": 2 - same, "medium-replay": 0}
    for level, policies in every.items():
        path = folder(collected) / "datasets" / f"hopper-{level}.hdf5"
        episodes = read_hdf5(path, observation_dim=11, action_dim=3)
        assert episodes.env_id == "Hopper-v4" and "not the D4RL file" in data[level]["origin"]
        assert data[level]["mean_return"] == pytest.approx(episodes.returns.mean())
        # The horizon cuts, a fall ends: an episode that is shorter than the horizon has fallen.
        assert episodes.lengths.max() <= 20 and not np.all(episodes.terminated)
        assert np.all(episodes.terminated[episodes.lengths < 20])
        if policies:
            assert 300 * policies <= episodes.n_steps < (300 + 20) * policies
    both = [data[level]["actions"] for level in (("medium",) if same else ("medium", "expert"))]
    np.testing.assert_array_equal(data["medium-expert"]["actions"], np.concatenate(both))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(collected / "minari"))
    _, from_file = load_task("mine", str(folder(collected) / "datasets" / "hopper-medium.hdf5"), env_id="Hopper-v4")
    task, from_minari = load_task("mine", f"minari:{ID}")
    assert task.env_id == "Hopper-v4" and task.horizon == 20
    for key in ("observations", "actions", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(from_minari, key), getattr(from_file, key))


def test_medium_replay_is_what_training_saw(collected: Path) -> None:
    run, data = folder(collected), dataset(folder(collected), "medium-replay")
    seen = {name: rows[: data["steps"] // 4] for name, rows in load_run(run).experience.items()}
    expected = split_experience(seen, ActionUnits(gym.spaces.Box(-1, 1, (3,))), "x", "X-v0")
    for name in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(data[name], getattr(expected, name))
    assert len(expected) == seen["dones"].sum() and "; ".join(expected.notes) == data["notes"]


def test_experience_is_split_at_the_end_of_episodes_and_where_a_run_was_resumed() -> None:
    rows, envs = 12, 2
    done, timeout = np.zeros((rows, envs), np.float32), np.zeros((rows, envs), np.float32)
    done[3, 0] = done[9, 0] = done[2, 1] = done[10, 1] = timeout[9, 0] = 1
    numbers = np.arange(rows * envs, dtype=np.float32).reshape(rows, envs)
    seen = {"observations": numbers[..., None], "actions": numbers[..., None] / 100}
    seen |= {"rewards": numbers, "dones": done, "timeouts": timeout}
    units = ActionUnits(gym.spaces.Box(-1, 1, (1,)))
    assert [len(e) for e in split_experience(seen, units, "x", "X-v0")] == [3, 4, 6, 8]
    # At row 6 all environments were reset: 4-5 of the first and 3-5 of the second belong to no whole episode.
    episodes = split_experience(seen, units, "x", "X-v0", [6])
    expected = [numbers[0:3, 1], numbers[0:4, 0], numbers[6:10, 0], numbers[6:11, 1]]
    assert [e.rewards.tolist() for e in episodes] == [e.tolist() for e in expected]
    assert episodes.terminated.tolist() == [True, True, False, True]
    assert episodes.notes == ("dropped 8 steps of unfinished episodes",)


@pytest.mark.parametrize(
    ("returns", "random", "fraction", "medium", "expert", "said"),
    [
        ((100, 400, 900, 1000, 800), 0, 1 / 3, 400, 1000, "mean returns: random actions 0.0"),
        ((100, 500, 900, 1000, 800), 0, 0.9, 900, 1000, ""),
        # What collapsed after the expert is no candidate, however near.
        ((100, 500, 1000, 333), 0, 1 / 3, 500, 1000, ""),
        # From random, not from zero: 1/3 of the way from -200 to 1000 is 200.
        ((210, 300, 1000), -200, 1 / 3, 210, 1000, ""),
        ((1000,), 0, 1 / 3, 1000, 1000, "the same checkpoint"),
        ((10, 20), 30, 1 / 3, 20, 20, "no better than random"),
    ],
)
def test_medium_is_nearest_to_a_share_of_the_way(
    returns: tuple[float, ...], random: float, fraction: float, medium: float, expert: float, said: str
) -> None:
    evaluations = [Evaluation(20 * (i + 1), value, 1.0, 10.0) for i, value in enumerate(returns)]
    choice = choose_checkpoints(evaluations, random, fraction)
    assert (choice.medium.return_mean, choice.expert.return_mean) == (medium, expert) and said in str(choice)
    assert len(choice.policies("medium-expert")) == (1 if medium == expert else 2)  # no episode twice


def test_the_actor_file_acts_as_the_trained_actor(tmp_path: Path) -> None:
    config = CollectConfig("Pendulum-v1", 0, 20, steps=400, envs=2, updates_per_step=0.1, random_steps=40)
    trained = CollectRun(config, tmp_path, None, torch.device("cpu"))
    trained.learn(100)
    assert trained.steps == 100 and trained.model._n_updates == (100 - 40) // 10
    write_actor(tmp_path / "actor.safetensors", trained.actor(), {})
    units, policy = ActionUnits(trained.model.action_space), BehaviorPolicy(tmp_path / "actor.safetensors")
    observations = np.random.default_rng(0).standard_normal((50, 3), np.float32)
    noise = np.random.default_rng(1).standard_normal((50, 1), np.float32)
    with torch.no_grad():
        mean, log_std, _ = trained.model.actor.get_action_dist_params(torch.from_numpy(observations))
    stochastic = torch.tanh(mean + log_std.exp() * torch.from_numpy(noise))
    atol = 2**-17 + 2e-6  # half a step of the grid on which the policy's actions in [-1, 1] are, and float32's rounding
    np.testing.assert_allclose(policy.act(observations, noise), stochastic, rtol=0, atol=atol)
    expected = trained.model.predict(observations, deterministic=True)[0]
    acted = units(policy.act(observations, np.zeros_like(noise)))
    np.testing.assert_allclose(acted, expected, rtol=0, atol=2 * atol)  # in [-2, 2]
    trained.close()


def test_updates_keep_the_asked_ratio() -> None:
    for envs, asked in ((1, 0.5), (4, 0.5), (3, 0.25), (2, 2.0), (4, 0.3)):
        rows, updates = rhythm(CollectConfig("X-v0", 0, 10, envs=envs, updates_per_step=asked))
        assert updates / (rows * envs) == pytest.approx(asked)


def test_actions_and_data_are_in_the_environments_units(echo: Path) -> None:
    for level in ("random", "medium", "medium-replay"):
        data = dataset(echo, level)
        actions, observations = data["actions"][:, 0], data["observations"]
        inside = ~(data["terminals"] | data["timeouts"])[:-1]
        # The environment shows the action it was given in the next observation.
        np.testing.assert_allclose(observations[1:, 1][inside], actions[:-1][inside], atol=1e-6)
        np.testing.assert_allclose(data["rewards"], actions, atol=1e-6)
        np.testing.assert_array_equal(data["terminals"], actions > 3.4)
        assert data["timeouts"].any() and np.all(observations[:, 0][data["timeouts"]] == 14)
        assert actions.min() >= -2.0 and actions.max() <= 4.0
    uniform = dataset(echo, "random")["actions"]
    assert uniform.min() < -1.9 and uniform.max() > 3.8 and abs(uniform.mean() - 1.0) < 0.4
    assert dataset(echo, "random")["env_id"] == "Echo-v0"


def test_resume_goes_on_where_it_was(copied: Path) -> None:
    run = folder(copied)
    before = load_run(run)
    logged = records(run)
    assert collect(arguments(copied, "--resume", "--steps", "800")) == 0
    after = load_run(run)
    assert after.steps == 800 and [e.steps for e in after.evaluations] == [200, 400, 600, 800]
    assert after.evaluations[:3] == before.evaluations and (before.resumed, after.resumed) == ([], [150])
    for name, rows in before.experience.items():
        np.testing.assert_array_equal(rows, after.experience[name][:150])
    assert after.trainer["updates"] == before.trainer["updates"] + 10
    assert not torch.equal(*(s.trainer["parameters"]["policy"]["actor.mu.weight"] for s in (after, before)))
    assert records(run)[: len(logged)] == logged and records(run)[-1]["step"] == 800
    # Every environment began again, elsewhere than at the run's beginning, and nothing was joined over that.
    assert after.experience["rewards"][150:].all()
    seen = after.experience["observations"]
    assert not np.isin(seen[150], seen[0]).all(axis=1).any()
    assert (seen[150] != after.experience["next_observations"][149]).any(axis=1).all()
    units = ActionUnits(gym.spaces.Box(-1, 1, (3,)))
    parts = [split_experience(after.experience, units, "x", "X-v0", resumed) for resumed in ([150], [])]
    assert parts[0].n_steps < parts[1].n_steps
    choice = Choice(0.0, after.evaluations[-1], after.evaluations[-1])
    source = Source(read_config(run / "config.yaml"), run, after, choice, 300, None)
    assert source.write("medium-replay", run / "replay.hdf5", {})["total_steps"] == parts[0].n_steps


def test_a_restored_run_is_the_saved_one(collected: Path) -> None:
    """Weights, optimizers and experience; and what it learns next is always the same."""
    run = folder(collected)
    saved = load_run(run)
    config = dataclasses.replace(read_config(run / "config.yaml"), steps=700)
    learned = []
    for _ in range(2):
        restored = CollectRun(config, run, saved, torch.device("cpu"))
        same(restored.saved().trainer, saved.trainer)
        for name, rows in restored.experience().items():
            np.testing.assert_array_equal(rows, saved.experience[name])
        restored.learn(700)
        learned.append(copy.deepcopy(restored.saved().trainer))
        restored.close()
    same(*learned)


def same(one: object, other: object) -> None:
    """Nested dictionaries and lists of tensors and numbers."""
    (leaves, shape), (others, other_shape) = tree_flatten(one), tree_flatten(other)
    assert shape == other_shape
    for a, b in zip(leaves, others, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_levels_of_a_run_that_is_there(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(copied / "minari"))
    run = folder(copied)
    times = {p: p.stat().st_mtime_ns for p in copied.rglob("*") if p.is_file() and p.name != ".lock"}
    (run / "datasets" / "hopper-medium-replay.hdf5").unlink()
    assert collect(arguments(copied, "--levels", "medium-replay", "random", "--minari")) == 0
    table, err = capsys.readouterr()
    assert "medium-replay" in table and "random" in table and "expert" not in table
    assert err.count("already exists and is kept") == 2
    changed = {p.name for p, when in times.items() if p.stat().st_mtime_ns != when}
    assert changed == {"hopper-medium-replay.hdf5"}  # the other was kept, and nothing was trained
    assert collect(arguments(copied, "--levels", "random", "--dataset-steps", "100")) == 0
    assert len(dataset(run, "random")["rewards"]) < 130  # another recipe is made again
    assert "hopper-random.hdf5: was made with steps 300; it is replaced" in capsys.readouterr().err


@pytest.mark.faults(20)
def test_resume_names_what_differs(collected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in collected.rglob("*") if p.is_file() and p.name != ".lock"}
    assert collect(arguments(collected, "--resume", "--envs", "2", "--random-steps", "7")) == 4
    message = capsys.readouterr().err
    assert "envs (run: 4, requested: 2)" in message and "random_steps (run: 100, requested: 7)" in message
    assert collect(arguments(collected)) == 2
    assert "already holds a run; --resume continues it" in capsys.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.mark.faults(45)
@pytest.mark.parametrize(
    ("more", "code", "said"), [("--resume", 4, "its checkpoints are gone"), ("", 2, "already holds")]
)
def test_experience_without_a_checkpoint_is_kept(
    copied: Path, capsys: pytest.CaptureFixture[str], more: str, code: int, said: str
) -> None:
    shutil.rmtree(folder(copied) / "checkpoints")
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*") if p.is_file() and p.name != ".lock"}
    assert collect(arguments(copied, *more.split())) == code
    assert said in capsys.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.mark.faults(15, 16)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Between two checkpoints; then it goes on."""
    learn = CollectRun.learn

    def learn_until(run: CollectRun, until: int) -> None:
        learn(run, until)
        if run.steps >= 300:
            signal.raise_signal(number)

    monkeypatch.setattr(collect_training, "LEARN_AT_ONCE", 100)
    with monkeypatch.context() as patch:
        patch.setattr(CollectRun, "learn", learn_until)
        assert collect(arguments(tmp_path)) == 128 + number
    assert "stopped at step 300; --resume continues from here" in capsys.readouterr().err
    saved = load_run(folder(tmp_path))
    assert saved.steps == 300 and len(saved.experience["rewards"]) * 4 == 300
    assert not (folder(tmp_path) / "datasets").exists()
    assert collect(arguments(tmp_path, "--resume", "--levels", "medium-replay")) == 0
    assert [e.steps for e in load_run(folder(tmp_path)).evaluations] == [200, 400, 600]


def test_a_signal_while_data_are_made(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder(copied) / "datasets")
    whole = WorkerPool.play

    def play(*given):
        for i, track in enumerate(whole(*given)):
            if i == 1:
                signal.raise_signal(signal.SIGINT)
            yield track

    monkeypatch.setattr(WorkerPool, "play", play)
    assert collect(arguments(copied, "--levels", "medium-replay", "random", "expert")) == 130
    # What is made of experience alone is made first; of those that are simulated none was whole.
    assert [file.name for file in (folder(copied) / "datasets").iterdir()] == ["hopper-medium-replay.hdf5"]
    monkeypatch.undo()


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


@pytest.mark.faults(33)
def test_a_pickle_is_not_executed(copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touched = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {touched}",)

    for checkpoint in (folder(copied) / "checkpoints").iterdir():
        torch.save({"progress": "{}", "states": {"steps": Evil()}}, checkpoint)
    assert collect(arguments(copied, "--resume", "--steps", "800")) == 4
    assert "nothing was executed" in capsys.readouterr().err and not touched.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert touched.exists()  # it would have been


@pytest.mark.faults(23)
@pytest.mark.parametrize("damage", ["file", "chunk", "kill"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(copied: Path, damage: str) -> None:
    run, last = folder(copied), max((folder(copied) / "replay").iterdir())
    file = newest(run)
    if damage == "chunk":
        middle, content = last.stat().st_size // 2, bytearray(last.read_bytes())
        content[middle] ^= 1
        last.write_bytes(content)
    elif damage == "kill":  # while one is written
        file.rename(run / "checkpoints" / ".00000600.pt.1.tmp")
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert load_run(run).steps == 400


@pytest.mark.faults(17)
def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, calls = collect_checkpoint.write_whole, []

    def write(*given):
        calls.append(given)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(*given)

    monkeypatch.setattr(collect_checkpoint, "write_whole", write)
    assert collect(arguments(tmp_path)) == 7
    assert "No space left on device" in capsys.readouterr().err
    assert load_run(folder(tmp_path)).steps == 200


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--env-id", "../Hopper-v4"], 2, "not an environment id"),
        (["--env-id", "os:Hopper-v4"], 2, "not an environment id"),
        (["--env-id", "Hoper-v4"], 2, "Did you mean"),
        (["--env-kwargs", "{"], 2, "--env-kwargs is not JSON"),
        (["--env-kwargs", "[1]"], 2, "--env-kwargs is a list; give a JSON object"),
        (["--env-kwargs", '{"xml_file": "a"}'], 2, "names files or modules"),
        (["--env-kwargs", '{"nothing": 1}'], 5, "unexpected keyword argument 'nothing'"),
        (["--max-episode-steps", "5000"], 2, "a time limit of 1000 steps"),
        (["--env-id", "Pendulum-v1", "--stop-at-score", "50"], 2, "--stop-at-return"),
        (["--updates-per-step", "0"], 2, "--updates-per-step: must be at least 0.001"),
        (["--learning-rate", "nan"], 2, "--learning-rate: must be finite"),
        (["--register", "no_such_module"], 2, "no_such_module"),
        (["--device", "tpu"], 2, "--device 'tpu'"),
        (["--resume"], 2, "no run to resume"),
        (["--learning-rate", "1e30"], 6, "not finite after step"),
    ],
)
def test_bad_input_is_one_line_and_a_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], change: list[str], code: int, message: str
) -> None:
    out = tmp_path / "out"
    try:
        assert collect(arguments(out, *change)) == code
    except SystemExit as left:  # of the parser
        assert left.code == code
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert sorted(p.name for p in tmp_path.iterdir()) in ([], ["out"])
    if code == 2 and change != ["--resume"]:
        assert not out.exists()


@pytest.mark.faults(24)
@pytest.mark.filterwarnings("ignore:.*(NaN|values are equal):UserWarning")  # Gymnasium's
@pytest.mark.parametrize(
    ("name", "more", "code", "message"),
    [
        ("Echo-v0", [], 2, "give --max-episode-steps"),
        ("EchoFlat-v0", ["--max-episode-steps", "15"], 2, "equal bounds"),
        ("EchoRaises-v0", ["--max-episode-steps", "15"], 5, "out of paper"),
        ("EchoNan-v0", ["--max-episode-steps", "15"], 5, "a reward that is not finite"),
    ],
)
def test_faults_of_an_environment(
    echo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, more: list[str], code: int, message: str
) -> None:
    assert collect(["--env-id", name, "--steps", "100", "--out", str(tmp_path), *more]) == code
    assert message in capsys.readouterr().err


def test_an_action_that_is_not_finite_is_not_the_environments_fault() -> None:
    env = TrainingEnv(gym.make("Pendulum-v1"))
    env.reset(seed=0)
    with pytest.raises(FloatingPointError, match="the policy's action is not finite"):
        env.step(np.array([np.nan], np.float32))


def test_training_stops_at_a_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect_training, "evaluate_actor", lambda c, path, steps, _: Evaluation(steps, steps, 0, 1))
    assert collect(arguments(tmp_path, "--stop-at-return", "400", "--levels", "medium-replay")) == 0
    assert load_run(folder(tmp_path)).steps == 400
    assert collect(arguments(tmp_path, "--resume", "--levels", "medium-replay")) == 0
    assert "is reached; a higher one trains on" in capsys.readouterr().err
    # A Hopper that returns 600 has a D4RL score of 19.1.
    more = ["--resume", "--stop-at-return", "1e9", "--stop-at-score", "19.0", "--levels", "medium-replay"]
    assert collect(arguments(tmp_path, *more)) == 0
    assert load_run(folder(tmp_path)).steps == 600
    assert load_file(folder(tmp_path) / "actors" / "600.safetensors")


def test_steps_are_integers(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--steps", "--envs", "--checkpoint-every", "--random-steps"):
        with pytest.raises(SystemExit):
            make_parser().parse_args(["--env-id", "Hopper-v4", option, "2.5"])
        assert f"argument {option}: must be an integer, not '2.5'" in capsys.readouterr().err
