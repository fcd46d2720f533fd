"""The video of an evaluation: it shows the very episode that was scored, or fails before anything is played."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence
from synthetic import make_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl.base.errors import ResourcesError
from aaren_rl.envs import SimulationError, make_env
from aaren_rl.envs.simulation.rendering import open_renderer
from aaren_rl.envs.simulation.rollout import rollout
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.evaluate.video import Gif, Video, _labeled


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: a video is written into the run's folder, too."""
    return shutil.copytree(trained_run, tmp_path_factory.mktemp("video") / "run")


@pytest.fixture(scope="module")
def renderer() -> None:
    try:
        open_renderer("Hopper-v4", {}, 0).close()
    except ResourcesError as error:
        pytest.skip(f"no renderer: {error}")


def scored_return(file: Path) -> float:
    return float(json.loads(file.read_text())[0]["returns"][0])


def told_return(text: str) -> float:
    return float(re.findall(r", return ([-\d.e+]+), \d+ steps", text)[0])


@pytest.mark.usefixtures("renderer")
def test_a_gif_shows_the_scored_episode(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, scores = tmp_path / "episode.gif", tmp_path / "scores.json"
    asked = ["--episodes", "3", "--eval-seed", "7", "--target-return", "3600", "1800"]
    assert evaluate([str(run), *asked, "--video", str(file), "--json", str(scores)]) == 0
    with Image.open(file) as gif:
        assert told_return(gif.info["comment"].decode()) == scored_return(scores)
        assert gif.n_frames > 2 and gif.size == (480, 480)
        first = np.asarray(gif.convert("RGB"))
        gif.seek(gif.n_frames - 1)
        assert first.std() > 10 and not np.array_equal(first, np.asarray(gif.convert("RGB")))
    said = capsys.readouterr().out
    assert told_return(said) == scored_return(scores) and "target return 3600" in said and "seed 7" in said
    (event,) = EventAccumulator(str(run)).Reload().Images("episode")
    assert event.step == json.loads(scores.read_text())[0]["updates"] > 0
    assert event.encoded_image_string.startswith(b"GIF89a") and (event.width, event.height) == (240, 240)


@pytest.mark.usefixtures("renderer")
def test_a_video_that_fails_leaves_the_scores(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SimulationError("the environment does not repeat an episode")

    monkeypatch.setattr(Video, "write", fail)
    video, scores = tmp_path / "episode.gif", tmp_path / "scores.json"
    assert evaluate([str(run), "--episodes", "1", "--video", str(video), "--json", str(scores)]) == 5
    assert json.loads(scores.read_text())[0]["episodes"] == 1


@pytest.mark.usefixtures("renderer")
def test_an_mp4_has_every_step_at_the_environments_rate(run: Path, tmp_path: Path) -> None:
    file, scores = tmp_path / "episode.mp4", tmp_path / "scores.json"
    policy = str(run / "policy_best")
    assert evaluate([policy, "--episodes", "1", "--video", str(file), "--json", str(scores)]) == 0
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(file))
    assert frames == json.loads(scores.read_text())[0]["length_mean"] + 1
    about = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", file], capture_output=True, text=True).stderr
    assert "h264" in about and "480x480" in about and "125 fps" in about
    assert told_return(about) == scored_return(scores)
    assert {p.name for p in tmp_path.iterdir()} == {"episode.mp4", "scores.json"}
    assert len(EventAccumulator(str(run)).Reload().Images("episode")) == 1  # of this evaluation alone


@pytest.mark.usefixtures("renderer")
@pytest.mark.parametrize("env_id", ["Hopper-v4", "HalfCheetah-v4"])
def test_the_camera_follows_the_robot_from_where_all_of_it_fits(env_id: str) -> None:
    """Reset meters away from the origin, which Gymnasium's own camera looks at."""
    far = {"reset_noise_scale": 6.0}
    env = make_env(env_id, **far)
    seed = next(seed for seed in range(50) if env.reset(seed=seed) and env.unwrapped.data.qpos[0] > 4)
    env.close()
    with closing(open_renderer(env_id, far, seed)) as drawing:
        red, _, blue = np.moveaxis(drawing.first.astype(int), 2, 0)
    places = np.stack(np.nonzero(red > blue + 40))  # of the robot, the one thing that is brown
    assert places.shape[1] > 500 and 160 < np.median(places[1]) < 320
    assert places.min() > 5 and places.max() < 475


def test_a_picture_says_the_step_and_the_return() -> None:
    plain = np.full((480, 480, 3), 128, np.uint8)
    pictures = [_labeled(plain, step, total) for step, total in ((7, 3.5), (8, 3.5), (7, 3.6))]
    assert all((picture != plain).any() and (picture[40:] == plain[40:]).all() for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 3


def test_without_a_renderer_nothing_is_played_or_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    for chosen in ("glfw", "nonsense"):  # the first fails when it draws, the second when the process imports mujoco
        monkeypatch.setenv("MUJOCO_GL", chosen)
        assert evaluate([str(run), "--video", str(tmp_path / "episode.gif")]) == 7
        said = capsys.readouterr()
        (error,) = said.err.splitlines()
        assert error.startswith("error: no renderer here can draw Hopper-v4 (") and f"MUJOCO_GL is {chosen}" in error
        assert said.out == "" and list(tmp_path.iterdir()) == []


def test_a_missing_package_is_no_matter_of_the_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pygame.py").write_text("raise ImportError('none here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ResourcesError, match=r"pygame is not installed.*render_mode rgb_array"):
        open_renderer("Pendulum-v1", {}, 0)


def test_an_environment_that_no_other_process_can_make_is_not_drawn() -> None:
    with pytest.raises(ResourcesError, match=r"draws Pendulum-v1, cannot make it; .* arguments that can be pickled"):
        open_renderer("Pendulum-v1", {"g": lambda: 9.8}, 0)


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("episode.avi", 2, "ends in .mp4 or .gif"),
        ("nowhere/episode.gif", 2, "folder does not exist"),
        ("episode.mp4", 7, "pip install 'aaren-rl[video]'"),  # ffmpeg is not there
    ],
)
def test_a_file_that_cannot_be(
    run: Path, tmp_path: Path, monkeypatch, capsys, file: str, code: int, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert evaluate([str(run), "--video", str(tmp_path / file)]) == code
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error and list(tmp_path.iterdir()) == []


DRAWN = """
import gymnasium as gym
import numpy as np

class Drawn(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

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
"""


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "drawn_env.py").write_text(DRAWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    gym.register("Drawn-v0", "drawn_env:Drawn")
    yield "Drawn-v0"
    gym.registry.pop("Drawn-v0")


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
    return played.returns, video.write(scored, video.file.parent)


def test_an_environment_that_does_not_repeat_is_not_filmed(drawn: str, tmp_path: Path) -> None:
    kwargs = {"seeded": False}
    with closing(Video(tmp_path / "a.mp4", drawn, kwargs, 1)) as video:
        with pytest.raises(SimulationError, match="does not repeat an episode"):
            film(video, env_kwargs=kwargs, episodes=1)
    assert not list(tmp_path.glob("*.mp4"))


@pytest.mark.parametrize(("which", "pick"), [("first", lambda _: 0), ("best", np.argmax), ("worst", np.argmin)])
def test_the_best_and_the_worst_episode(which: str, pick, drawn: str, tmp_path: Path) -> None:
    """`write` refuses to show an episode whose return is another than the one that was scored."""
    (tmp_path / "config.yaml").write_text("")  # of another project: this is no run
    with closing(Video(tmp_path / "a.gif", drawn, {}, 1, which)) as video:
        returns, said = film(video, episodes=40, workers=2)
    assert "TensorBoard" not in said
    index = int(pick(returns))
    assert (index > 0) == (which != "first") and len(set(returns)) == 40
    assert told_return(said) == returns[index] and f"from seed {1 + index}," in said and "5 steps" in said
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 6 and gif.size == (10, 8)


def test_a_gif_keeps_the_episodes_speed() -> None:
    gif = Gif(fps=125, limit=50)
    for step in range(0, 101, gif.stride):
        gif.add(np.full((4, 4, 3), step, np.uint8))
    with Image.open(io.BytesIO(gif.encode("said"))) as image:
        pauses = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert gif.stride == 3 and len(pauses) == 34
    assert min(pauses) >= 20 and sum(pauses[:-1]) == pytest.approx(99 / 125 * 1000, abs=5)
