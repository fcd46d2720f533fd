"""A video of one evaluated episode, MP4 or GIF."""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ResourcesError, SimulationError, UsageError, one_line
from ..base.files import write_whole
from ..cli import progress_bar
from ..envs.simulation import begin, take
from ..envs.tasks.environment import close_env, load_mujoco, make_env
from ..policies.card import return_words, target_words
from .scores import Score

MOST_FPS = 30  # a slow renderer draws 1 to 5 frames per second


class Video:
    """Films the first episode: notes the actions of the evaluation, then repeats them in an environment that renders.

    `seed` is that of the episode.

    Raises before the evaluation: UsageError if the file is neither MP4 nor GIF or the environment draws nothing,
    ResourcesError if no frame can be drawn or MP4 cannot be written.
    """

    def __init__(self, file: Path, env_id: str, env_kwargs: Mapping[str, Any], seed: int) -> None:
        if file.suffix.lower() not in (".mp4", ".gif"):
            raise UsageError(f"--video {file}: expected a file name that ends in .mp4 or .gif")
        if file.suffix.lower() == ".mp4":
            try:
                importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
            except (ImportError, RuntimeError) as error:
                way_out = "pip install 'aaren-rl[video]', or use a .gif"
                raise ResourcesError(f"MP4 needs ffmpeg ({one_line(error, 100)}): {way_out}") from error
        plain = make_env(env_id, **env_kwargs)
        close_env(plain)
        if "rgb_array" not in plain.metadata.get("render_modes", ()):
            raise UsageError(f"--video: {env_id} has no render mode rgb_array, so nothing can be drawn; leave it out")
        _choose_renderer(env_id)
        self.file, self._seed = file, seed
        self._env = make_env(env_id, **{**env_kwargs, "render_mode": "rgb_array"})
        _follow(self._env)
        begin(self._env, seed=seed)
        self._draw()
        self._noted: list[npt.NDArray[Any]] = []

    def close(self) -> None:
        close_env(self._env)

    def note(self, environments: npt.NDArray[np.int64], actions: npt.NDArray[Any]) -> None:
        """Record the actions of the episode. The `on_action` of a rollout."""
        self._noted.extend(action.copy() for action in actions[environments == 0])

    def write(self, score: Score) -> str:
        """Write the file. Returns a line about it. `score` is that of the recorded rollout.

        Raises SimulationError if the environment fails or does not repeat the episode, ResourcesError if the file
        cannot be written.
        """
        import imageio  # takes a while

        fps = float(self._env.metadata.get("render_fps") or MOST_FPS)
        stride = math.ceil(fps / MOST_FPS)
        frames = self._frames(score.returns[0], stride)
        mp4 = self.file.suffix.lower() == ".mp4"
        how: dict[str, Any] = {"fps": fps / stride} if mp4 else {"duration": 1000 * stride / fps, "loop": 0}
        try:
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder) / self.file.name
                writer = imageio.get_writer(part, **how)
                with writer:
                    for frame in frames:
                        writer.append_data(frame)
                write_whole(self.file, part.read_bytes())
        except OSError as error:
            raise ResourcesError(f"--video {self.file}: {one_line(error)}") from error
        return (
            f"video: {self.file}: seed {self._seed}, target return {target_words(score.target_return)}, "
            f"return {return_words(score.returns[0])}, {len(self._noted)} steps"
        )

    def _frames(self, expected: float, stride: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Every `stride`-th frame, and the last."""
        begin(self._env, seed=self._seed)
        yield self._draw()
        total, ended, actions = 0.0, False, self._noted
        bar = progress_bar(iterable=actions, desc="video", unit="step", leave=False)
        for step, action in enumerate(bar, start=1):
            _, reward, terminated, truncated, _ = take(self._env, action)
            total, ended = total + reward, terminated or truncated
            if step % stride == 0 or step == len(actions):
                yield self._draw()
        if total != expected or not ended:
            raise SimulationError(
                f"no video: the environment does not repeat an episode (return {expected:g}, then {total:g} with the "
                "same seed and actions); its randomness must come from the seed of reset() alone"
            )

    def _draw(self) -> npt.NDArray[np.uint8]:
        try:
            with warnings.catch_warnings(action="ignore"):  # of GLFW, beside the error
                frame = np.asarray(self._env.render(), dtype=np.uint8)
            if frame.ndim != 3 or frame.shape[2] != 3:
                raise ValueError("render() returns no picture in the render_mode rgb_array")
            return frame
        except Exception as error:  # the user's code, or a graphics driver
            raise ResourcesError(f"--video: cannot draw ({one_line(error)}); leave it out, or {_WAY_OUT}") from error


_WAY_OUT = "install libegl1 or libosmesa6 and set MUJOCO_GL to egl or osmesa"


def _choose_renderer(env_id: str) -> None:
    """Sets MUJOCO_GL where there is no display; ResourcesError: what it names cannot draw."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
    if chosen := os.environ.get("MUJOCO_GL"):
        load_mujoco()
        try:
            importlib.import_module(f"mujoco.{chosen}").GLContext(8, 8).free()
        except Exception as error:  # a driver may raise any error
            what = f"--video: MUJOCO_GL is {chosen}, which cannot draw {env_id} here ({one_line(error, 100)})"
            raise ResourcesError(f"{what}; {_WAY_OUT}") from error


def _follow(env: Any) -> None:  # noqa: ANN401  any environment
    """Draws a MuJoCo model through its camera that goes along with the robot, with cheap shadows."""
    mujoco, model = load_mujoco(), getattr(env.unwrapped, "model", None)
    if not isinstance(model, mujoco.MjModel):
        return
    # A renderer without a GPU spends most of its time on these: 0.21 s per frame without them, 0.74 s with them.
    model.vis.quality.shadowsize, model.vis.quality.offsamples = 1024, 0
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if camera >= 0 and renderer is not None and getattr(renderer, "camera_id", None) == -1:
        renderer.camera_id = camera
