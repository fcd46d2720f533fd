"""Pictures of an episode: a separate process repeats its actions and draws the steps.

The process is separate because MuJoCo's renderer is chosen once per process, by MUJOCO_GL before mujoco is imported,
and because a failing graphics driver may crash its process.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ...base.errors import ResourcesError, SimulationError, one_line
from ...base.processes import Worker, serve
from ..tasks.environment import load_mujoco, make_env, told
from .stepping import begin, pickled, take, unpickled

Picture = npt.NDArray[np.uint8]  # (height, width, 3)

# Parts of errors that no other renderer would fix.
_NOT_THE_RENDERER = ("raised DependencyNotInstalled(", "cannot make the environment", "its render()")
_MARGIN = 1.2  # of the camera's distance: a robot stretches while it moves
DEFAULT_FPS = 30.0  # for an environment without its own rate


class Renderer:
    """Draws one episode of an environment, step by step, in a process of its own.

    `backend` is the renderer as MUJOCO_GL names it, `fps` pictures per second of simulated time, `first` the picture
    after the reset.
    """

    def __init__(self, env_id: str, made: bytes, seed: int, backend: str) -> None:
        """Resets the environment with `seed` and draws it; `made` is what `pickled` gives.

        SimulationError: `backend` cannot draw here.
        """
        self.backend = backend
        self._worker = Worker(__name__, f"draws {env_id}", {"MUJOCO_GL": backend} if backend else {}, quiet=True)
        try:
            self._worker.send((made, seed))
            self.fps: float
            self.first: Picture
            self.fps, self.first = self._worker.receive()
        except BaseException:
            self.close()
            raise

    def step(self, action: npt.NDArray[np.float32], *, draw: bool) -> tuple[float, bool, Picture | None]:
        """Takes an action (A,); returns the reward, whether the episode ended, and the picture if wanted."""
        self._worker.send((action, draw))
        answer: tuple[float, bool, Picture | None] = self._worker.receive()
        return answer

    def close(self) -> None:
        self._worker.close()


def open_renderer(env_id: str, env_kwargs: Mapping[str, Any], seed: int) -> Renderer:
    """The first renderer that draws `env_id` here: that of MUJOCO_GL if set, else EGL, OSMesa, a window system.

    Raises:
        ResourcesError: no renderer works; the message has the reason of each.
        SimulationError: Gymnasium does not know `env_id`.
    """
    if env_id not in gym.registry:
        raise SimulationError(
            f"environment {env_id!r} is not registered; --register imports the module that registers it"
        )
    made = pickled(env_id, env_kwargs)
    if made is None:
        raise ResourcesError(
            f"another process, which draws {env_id}, cannot make it; register it as module:Class, with arguments that "
            "can be pickled"
        )
    reasons: dict[str, str] = {}
    for backend in _backends():
        try:
            return Renderer(env_id, made, seed, backend)
        except SimulationError as error:
            reasons[one_line(error)] = backend
    # A reason that all share does not depend on the renderer.
    why = "; ".join(f"{backend}: {reason}" if len(reasons) > 1 else reason for reason, backend in reasons.items())
    way_out = "install libegl1 or libosmesa6"
    if any(sign in why for sign in _NOT_THE_RENDERER):
        way_out = "its render() must return pictures in the render_mode rgb_array; install what it needs, or leave "
        way_out += "--video out"
    elif "MUJOCO_GL" in os.environ:
        way_out = f"MUJOCO_GL is {os.environ['MUJOCO_GL']}: unset it to try egl and osmesa"
    raise ResourcesError(f"no renderer here can draw {env_id} ({why}); {way_out}")


def _backends() -> list[str]:
    if chosen := os.environ.get("MUJOCO_GL"):
        return [chosen]
    if sys.platform != "linux":
        return [""]  # there is but one
    windows = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return ["egl", "osmesa", "glfw"] if windows else ["egl", "osmesa"]


def serve_requests() -> None:
    """Body of the process: the first request makes, resets and draws the environment, each further one is a step."""
    env: gym.Env[Any, Any] | None = None

    def answer(request: Any) -> Any:  # noqa: ANN401  either kind of request
        nonlocal env
        if env is None:
            made, seed = request
            env = _make(*unpickled(made))
            begin(env, seed=seed)
            return float(env.metadata.get("render_fps") or DEFAULT_FPS), _draw(env)
        action, draw = request
        _, reward, terminated, truncated, _ = take(env, action)
        return reward, terminated or truncated, _draw(env) if draw else None

    serve(answer)


def _make(env_id: str, env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    env = make_env(env_id, **{**env_kwargs, "render_mode": "rgb_array"})
    mujoco, model = load_mujoco(), getattr(env.unwrapped, "model", None)
    if isinstance(model, mujoco.MjModel):
        # A renderer without a GPU spends most of its time on these: 0.21 s per picture without them, 0.74 s with them.
        # They only smooth edges.
        model.vis.quality.shadowsize, model.vis.quality.offsamples = 1024, 0
        _follow(env, mujoco, model)
        _extend_floor(mujoco, model)
    return env


def _follow(env: gym.Env[Any, Any], mujoco: Any, model: Any) -> None:  # noqa: ANN401  a module, and its model
    """Draws through the model's camera that goes along, all of the robot in view; not if the user chose one."""
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if camera < 0 or getattr(renderer, "camera_id", None) != -1:
        return
    renderer.camera_id = camera  # type: ignore[union-attr]
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    body = model.cam_bodyid[camera]
    own = model.body_rootid[model.geom_bodyid] == model.body_rootid[body]
    reach = (np.linalg.norm(data.geom_xpos[own] - data.subtree_com[body], axis=1) + model.geom_rbound[own]).max()
    offset = model.cam_poscom0[camera]
    fits = reach / np.sin(np.radians(model.cam_fovy[camera]) / 2)  # a ball around the robot as it stands at first
    offset *= max(1.0, _MARGIN * fits / np.linalg.norm(offset))


def _extend_floor(mujoco: Any, model: Any) -> None:  # noqa: ANN401
    """Draws planes without an end, as collisions have them; their pattern keeps its size in meters."""
    for plane in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        size, material = model.geom_size[plane, :2], model.geom_matid[plane]
        if material >= 0 and size.all() and not model.mat_texuniform[material]:
            model.mat_texuniform[material] = True
            model.mat_texrepeat[material] /= 2 * size
        size[:] = 0.0


def _draw(env: gym.Env[Any, Any]) -> Picture:
    try:
        picture = env.render()
    except Exception as error:
        if hasattr(env.unwrapped, "mujoco_renderer"):
            raise
        raise ResourcesError(f"its render() raised {told(error)}") from error
    if not (isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3):
        raise ResourcesError("its render() returns no picture in render_mode rgb_array")
    return np.ascontiguousarray(picture, dtype=np.uint8)
