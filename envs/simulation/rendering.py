"""Pictures of an episode: its actions are taken again in a process of their own, which draws the steps.

A process of its own, because a program has one chance to choose MuJoCo's renderer, by MUJOCO_GL before mujoco is
imported, and because a graphics driver that fails may take its process down with it.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ..errors import ResourcesError, SimulationError, one_line
from ..processes import Worker, serve
from ..tasks.environment import load_mujoco, make_env
from .stepping import registered

Picture = npt.NDArray[np.uint8]  # (height, width, 3)

# What an environment raises that no other renderer would mend; in front, a worker's words for an error of ours.
_NOT_THE_RENDERER = ("DependencyNotInstalled:", "SimulationError: cannot make", "ResourcesError: its render()")
_MARGIN = 1.2  # of the camera's distance: on its way a robot stretches
DEFAULT_FPS = 30.0  # of an environment that does not say its own


class Renderer:
    """Draws one episode of an environment, step by step.

    Attributes:
        backend: the renderer, as MUJOCO_GL names it.
        fps: pictures a second of simulated time.
        first: the picture after the reset.
    """

    def __init__(self, env_id: str, spec: bytes, env_kwargs: Mapping[str, Any], seed: int, backend: str) -> None:
        """Starts the process, resets the environment with `seed` and draws it; `spec` is what `registered` gives.

        Raises:
            ResourcesError: `backend` cannot draw here; the message is the reason alone.
        """
        self.backend = backend
        self._errors = tempfile.TemporaryFile()
        variables = {"MUJOCO_GL": backend} if backend else {}
        self._worker = Worker(__name__, f"draws {env_id}", variables, self._errors)
        try:
            self._worker.send((spec, dict(env_kwargs), seed))
            answer = self._worker.receive()
        except SimulationError as error:
            reason = self._last_words() or str(error)
            self.close()
            raise ResourcesError(reason) from error
        except BaseException:
            self.close()
            raise
        if isinstance(answer, str):
            self.close()
            raise ResourcesError(answer)
        self.fps: float = answer[0]
        self.first: Picture = answer[1]

    def __enter__(self) -> "Renderer":
        """The renderer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process."""
        self.close()

    def step(self, action: npt.NDArray[np.float32], *, draw: bool) -> tuple[float, bool, Picture | None]:
        """Takes an action (A,): the reward, whether the episode has ended, and the picture where it was asked for.

        Raises:
            SimulationError: the environment raised, or the process died.
        """
        self._worker.send((action, draw))
        answer = self._worker.receive()
        if isinstance(answer, str):
            raise SimulationError(answer)
        reward, ended, picture = answer
        return reward, ended, picture

    def close(self) -> None:
        """Ends the process."""
        self._worker.kill()
        self._worker.close()
        self._errors.close()

    def _last_words(self) -> str:
        """The last line that the process wrote to its standard error: of a traceback, the error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def open_renderer(env_id: str, env_kwargs: Mapping[str, Any], seed: int) -> Renderer:
    """The first renderer that draws `env_id` here: MUJOCO_GL's where it is set, else EGL, OSMesa, a window system.

    Raises:
        ResourcesError: none does; the message has each one's reason.
        SimulationError: Gymnasium does not know `env_id`.
    """
    if env_id not in gym.registry:
        raise SimulationError(f"environment {env_id!r} is not registered; --register imports the module that does it")
    spec = registered(env_id)
    if spec is None:
        raise ResourcesError(
            f"{env_id} cannot be drawn: it is registered with a class; register it with its name, 'module:Class'"
        )
    reasons: dict[str, str] = {}
    for backend in _backends():
        try:
            return Renderer(env_id, spec, env_kwargs, seed, backend)
        except ResourcesError as error:
            reasons[backend] = one_line(error, 160)
    if len(set(reasons.values())) == 1:  # no matter of the renderer
        told = next(iter(reasons.values()))
    else:
        told = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
    way_out = "install libegl1 or libosmesa6"
    if told.startswith(_NOT_THE_RENDERER):
        way_out = "its render() must give pictures in the render_mode rgb_array; install what it asks for"
    elif "MUJOCO_GL" in os.environ:
        way_out = f"MUJOCO_GL is {os.environ['MUJOCO_GL']}: unset it to have egl and osmesa tried"
    raise ResourcesError(f"nothing here draws {env_id} ({told}); {way_out}")


def _backends() -> list[str]:
    if chosen := os.environ.get("MUJOCO_GL"):
        return [chosen]
    if sys.platform != "linux":
        return [""]  # there is but one
    windows = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return ["egl", "osmesa", *(["glfw"] if windows else [])]


def serve_requests() -> None:
    """Body of the process: the first request makes, resets and draws the environment, each further one is a step."""
    env: gym.Env[Any, Any] | None = None

    def answer(request: Any) -> Any:  # noqa: ANN401  either kind of request
        nonlocal env
        try:
            if env is None:
                env, picture = _begin(*request)
                return float(env.metadata.get("render_fps") or DEFAULT_FPS), picture
            action, draw = request
            _, reward, terminated, truncated, _ = env.step(action)
            return float(reward), bool(terminated or truncated), _draw(env) if draw else None
        # The environment is the user's code, and so may be the renderer: either may raise anything.
        except Exception as error:
            return f"{type(error).__name__}: {one_line(error)}"

    serve(answer)


def _begin(spec: Any, env_kwargs: dict[str, Any], seed: int) -> tuple[gym.Env[Any, Any], Picture]:  # noqa: ANN401
    spec = pickle.loads(spec)
    gym.registry[spec.id] = spec
    env = make_env(spec.id, **{**env_kwargs, "render_mode": "rgb_array"})
    mujoco, model = load_mujoco(), getattr(env.unwrapped, "model", None)
    if isinstance(model, mujoco.MjModel):
        # A renderer without a GPU spends most of its time on these: 0.21 s a picture in place of 0.74 s. They change
        # nothing but the smoothness of edges.
        model.vis.quality.shadowsize, model.vis.quality.offsamples = 1024, 0
        _follow(env, mujoco, model)
        _extend_floor(mujoco, model)
    env.reset(seed=seed)
    return env, _draw(env)


def _follow(env: gym.Env[Any, Any], mujoco: Any, model: Any) -> None:  # noqa: ANN401  a module, and its model
    """Draws through a camera of the model's that goes along with the robot: Gymnasium's own stands still.

    It is moved back to where all of the robot fits. Nothing is changed where the model has none, or a camera was chosen
    in the environment's arguments.
    """
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
    """Draws planes without an end, as collisions have them; their pattern keeps its size in metres."""
    for plane in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        size, material = model.geom_size[plane, :2], model.geom_matid[plane]
        if material >= 0 and size.all() and not model.mat_texuniform[material]:
            model.mat_texuniform[material] = True
            model.mat_texrepeat[material] /= 2 * size
        size[:] = 0.0


def _draw(env: gym.Env[Any, Any]) -> Picture:
    picture = env.render()
    if not (isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3):
        raise ResourcesError("its render() gives no picture in the mode rgb_array")
    return np.ascontiguousarray(picture, dtype=np.uint8)
