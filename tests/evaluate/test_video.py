"""The video of an evaluation: it shows the very episode that was scored, or fails before anything is played."""

import json
import re
import sys
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from checks import fails
from gymnasium.envs.registration import EnvSpec
from PIL import Image
from synthetic import make_score

from aaren_rl.base.errors import ResourcesError
from aaren_rl.envs import SimulationError, UsageError
from aaren_rl.envs.simulation import rollout
from aaren_rl.evaluate import main as evaluate
from aaren_rl.evaluate.video import Video
from aaren_rl.policies.card import return_words


@pytest.fixture(scope="module")
def renderer() -> None:
    try:
        Video(Path("a.gif"), "Hopper-v4", {}, 0).close()
    except ResourcesError as error:
        pytest.skip(f"no renderer: {error}")


def told_return(text: str) -> str:
    return re.findall(r", return ([-\d.e+]+), \d+ steps", text)[0]


@pytest.mark.usefixtures("renderer")
def test_a_gif_shows_the_scored_episode(trained_run, tmp_path, capsys):
    file, scores = tmp_path / "episode.gif", tmp_path / "scores.json"
    asked = ["--episodes", "3", "--eval-seed", "7", "--target-return", "3600", "1800"]
    assert evaluate([str(trained_run), *asked, "--video", str(file), "--json", str(scores)]) == 0
    with Image.open(file) as gif:
        assert gif.n_frames > 2 and gif.size == (480, 480) and gif.info["duration"] == 40
        first = np.asarray(gif.convert("RGB"))
        gif.seek(gif.n_frames - 1)
        assert first.std() > 10 and not np.array_equal(first, np.asarray(gif.convert("RGB")))
    said = capsys.readouterr().out
    assert told_return(said) == return_words(json.loads(scores.read_text())[0]["returns"][0])
    assert "target return 3600" in said and "seed 7" in said


def test_without_a_renderer_nothing_is_played_or_written(trained_run, tmp_path, monkeypatch, capsys):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    for chosen in ("osmesa", "nonsense"):
        monkeypatch.setenv("MUJOCO_GL", chosen)
        monkeypatch.setitem(sys.modules, "mujoco.osmesa", None)
        assert evaluate([str(trained_run), "--video", str(tmp_path / "episode.gif")]) == 7
        said = capsys.readouterr()
        (error,) = said.err.splitlines()
        assert error.startswith(f"error: --video: MUJOCO_GL is {chosen}, which cannot draw Hopper-v4 here (")
        assert said.out == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("episode.avi", 2, "ends in .mp4 or .gif"),
        ("nowhere/episode.gif", 2, "folder does not exist"),
        ("episode.mp4", 7, "pip install 'aaren-rl[video]'"),  # ffmpeg is not there
    ],
)
def test_a_file_that_cannot_be(trained_run, tmp_path, monkeypatch, capsys, file, code, message):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    words = [str(trained_run), "--video", str(tmp_path / file)]
    assert message in fails(capsys, evaluate, words, code) and list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="nothing can be drawn"):
        Video(tmp_path / "a.gif", "aaren_rl/TMaze-v0", {}, 0)


class Drawn(gym.Env):
    """Five steps, at random or by the seed."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012  Gymnasium's

    def __init__(self, render_mode=None, seeded=True):
        self.render_mode, self.seeded = render_mode, seeded

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        chance = (self.np_random if self.seeded else np.random.default_rng()).random()
        return np.zeros(2, np.float32), float(action[0]) + chance, self.steps == 5, False, {}

    def render(self):
        return np.full((8, 10, 3), 40 * self.steps, np.uint8)


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setitem(gym.registry, "Drawn-v0", EnvSpec("Drawn-v0", Drawn))
    return "Drawn-v0"


class Growing:
    """A policy whose actions grow."""

    def initial_state(self, batch_size, target_return):
        return 0

    def act(self, observation, reward, state):
        return np.full((len(observation), 1), state / 10, np.float32), state + 1


def film(video: Video, **changes) -> tuple[np.ndarray, str]:
    """The returns of some episodes, and what was told of the film of one."""
    played = rollout(Growing(), "Drawn-v0", target_return=1.0, seed=1, on_action=video.note, **changes)
    scored = make_score(returns=played.returns.tolist(), seed=1)
    return played.returns, video.write(scored)


def test_an_environment_that_does_not_repeat_is_not_filmed(drawn, tmp_path):
    kwargs = {"seeded": False}
    with closing(Video(tmp_path / "a.mp4", drawn, kwargs, 1)) as video:
        with pytest.raises(SimulationError, match="does not repeat an episode"):
            film(video, env_kwargs=kwargs, episodes=1)
    assert not list(tmp_path.glob("*.mp4"))


def test_the_first_of_several_episodes(drawn, tmp_path):
    """`write` refuses to show an episode whose return is another than the one that was scored."""
    with closing(Video(tmp_path / "a.gif", drawn, {}, 1)) as video:
        returns, said = film(video, episodes=10)
    assert len(set(returns)) == 10
    assert told_return(said) == return_words(returns[0]) and "seed 1," in said and "5 steps" in said
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 4 and gif.size == (10, 8)
