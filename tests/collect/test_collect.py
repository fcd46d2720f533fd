"""`collect`: what it records of policies that Stable-Baselines3 trained, and of those that it trains itself."""

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from checks import fails
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from aaren_rl.base.errors import DataError, UsageError
from aaren_rl.collect import algorithm_of, controller, load_model, load_normalize
from aaren_rl.collect import main as collect
from aaren_rl.envs import Episodes, make_env
from aaren_rl.envs.data.files import read_file

# An observation tells the time and the last action, so data can be checked line by line. Actions lie in [-2, 4]; one
# above 3.4 ends the episode.
ECHO = """
import gymnasium as gym
import numpy as np


class Echo(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-2.0, 4.0, (1,), np.float64)

    def __init__(self, trouble=None):
        self.trouble = trouble

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([0.0, self.np_random.random()])
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action) and action.dtype == np.float32  # as it is stored
        self.state = np.array([self.state[0] + 1, action[0]])
        if self.trouble == "raise" and self.state[0] > 3:
            raise RuntimeError("out of paper")
        reward = np.nan if self.trouble == "nan" else float(action[0])
        return self.state.copy(), reward, bool(action[0] > 3.4), False, {}


gym.register("Echo-v0", Echo)
"""
ENV = ["--env-id", "Echo-v0", "--register", "echo_env", "--max-episode-steps", "20"]


def small() -> dict[str, Any]:
    """Arguments of a model; Stable-Baselines3 changes the inner dict."""
    return {"policy_kwargs": {"net_arch": [8]}, "device": "cpu", "seed": 0}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "echo_env.py").write_text(ECHO)
    return tmp_path


def is_echo(file: Path) -> Episodes:
    """The data of a file, checked against the environment's rules."""
    data = read_file(file, action_low=(-2.0,), action_high=(4.0,))
    assert data.actions.min() >= -2 and data.actions.max() <= 4
    for episode in data:
        time, last = episode.observations.T
        np.testing.assert_array_equal(time, np.arange(len(episode)))
        np.testing.assert_array_equal(last[1:], episode.actions[:-1, 0])
        np.testing.assert_array_equal(episode.rewards, episode.actions[:, 0])
        assert episode.terminated == (episode.actions[-1, 0] > np.float32(3.4)) and len(episode) <= 20
        assert episode.terminated or len(episode) == 20
    return data


def test_several_policies_act_in_turn_with_noise(folder, capsys):
    __import__("echo_env")
    for name, algorithm in (("a", SAC), ("b", TD3)):
        algorithm("MlpPolicy", gym.make("Echo-v0"), **small()).save(folder / name)
    asked = [*ENV, "--policy", "random", "a.zip", "b.zip", "--steps", "100"]
    assert collect([*asked, "--out", "plain.hdf5", "--deterministic"]) == 0
    assert "mean return" in capsys.readouterr().out
    assert collect([*asked, "--out", "noisy.hdf5", "--deterministic", "--noise", "0.2"]) == 0
    plain, noisy = is_echo(folder / "plain.hdf5"), is_echo(folder / "noisy.hdf5")
    assert 300 <= plain.n_steps < 360 and 300 <= noisy.n_steps < 360
    # Noise of 0.2 is 0.6 of these units, on what the same policy does first in an episode. Random ones come first.
    firsts = [data.actions[data.offsets[-6:-1], 0] for data in (plain, noisy)]
    assert firsts[0].std() < 0.1 and 0.2 < firsts[1].std() < 1.2
    random = plain.actions[:100, 0]
    assert random.min() < -1.5 and random.max() > 3
    assert collect([*asked, "--out", "plain.hdf5"]) == 2


def test_data_of_a_normalized_policy_are_raw(folder):
    """The policy acts on scaled observations; the file has those of the environment, and its rewards."""
    normal = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = PPO("MlpPolicy", normal, n_steps=64, batch_size=64, **small())
    model.learn(128)
    model.save("model")
    normal.save("normal.pkl")
    asked = ["--policy", "model.zip", "--vec-normalize", "normal.pkl", "--steps", "300", "--deterministic"]
    assert collect(["--env-id", "Pendulum-v1", *asked, "--seed", "5", "--out", "raw.hdf5"]) == 0
    bounds = {"action_low": (-2.0,), "action_high": (2.0,)}
    data, env = read_file(folder / "raw.hdf5", **bounds), make_env("Pendulum-v1")
    normal.training = False
    for i, episode in enumerate(data):
        observation, _ = env.reset(seed=5 + i)
        for t in range(0, len(episode)):
            np.testing.assert_array_equal(episode.observations[t], observation)
            wanted, _ = model.predict(normal.normalize_obs(observation), deterministic=True)
            np.testing.assert_allclose(episode.actions[t], wanted, rtol=1e-4, atol=1e-4)
            observation, reward, *_ = env.step(episode.actions[t])
            assert episode.rewards[t] == pytest.approx(reward)
    assert data.n_steps == 400  # the last episode is whole


@pytest.mark.parametrize("algorithm", [A2C, DQN, PPO, SAC, TD3])
def test_a_file_tells_its_algorithm(algorithm, folder):
    env = gym.make("CartPole-v1" if algorithm is DQN else "Pendulum-v1")
    algorithm("MlpPolicy", env, **small()).save("model")
    assert algorithm_of(Path("model.zip")) == algorithm.__name__
    model = load_model(Path("model.zip"), torch.device("cpu"))
    action = controller(model, env.action_space, 0)(np.zeros(env.observation_space.shape))
    assert isinstance(model, algorithm) and env.action_space.contains(action[()])


def test_what_is_no_model(folder):
    Path("text.zip").write_text("no archive")
    with zipfile.ZipFile("foreign.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": "sb3_contrib.tqc.policies"}}))
    with zipfile.ZipFile("damaged.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": "stable_baselines3.sac.policies"}}))
    with pytest.raises(DataError, match="not a model"):
        algorithm_of(Path("text.zip"))
    with pytest.raises(UsageError, match=r"sb3_contrib.*known are A2C"):
        algorithm_of(Path("foreign.zip"))
    with pytest.raises(DataError, match="SAC cannot load it"):
        load_model(Path("damaged.zip"), torch.device("cpu"))
    with pytest.raises(DataError, match="not a VecNormalize"):
        load_normalize(Path("text.zip"))


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:.*NaN:UserWarning")  # Gymnasium's
@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--env-kwargs", '{"trouble": "raise"}'], 5, "RuntimeError(out of paper)"),
        (["--env-kwargs", '{"trouble": "nan"}'], 5, "a reward that is not finite"),
        (["--env-kwargs", "{"], 2, "is not JSON"),
        (["--policy", "nowhere.zip"], 3, "not a model"),
        (["--out", "nowhere/a.hdf5"], 2, "folder does not exist"),
        (["--env-id", "Pendulum-v1", "--policy", "sac.zip"], 2, "its observations are"),
    ],
)
def test_what_goes_wrong_is_one_line(more, code, message, capsys):
    if "sac.zip" in more:
        SAC("MlpPolicy", gym.make("MountainCarContinuous-v0"), **small()).save("sac")
    asked = {"--policy": ["random"], "--out": ["a.hdf5"], "--env-id": ["Echo-v0"]}
    asked |= {more[i]: [more[i + 1]] for i in range(0, len(more), 2)}
    words = (word for name, value in asked.items() for word in (name, *value))
    assert message in fails(capsys, collect, [*ENV[2:], "--steps", "100", *words], code)
    assert not Path("a.hdf5").exists()
