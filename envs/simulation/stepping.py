"""Steps environments together, here or in worker processes; the caller works between send and receive.

Step outputs are checked here, because environments are the user's code. An error names the environment and the step.

Shape suffixes: E environments, n of them, O observation, A action.
"""

import math
import pickle
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ...base.errors import SimulationError, one_line
from ...base.processes import Worker, serve
from ...base.system import core_count
from ..tasks.environment import RAISED, close_env, make_env, told

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_LARGEST = float(np.finfo(np.float32).max)


def begin(env: gym.Env[Any, Any], where: str = "", **options: Any) -> tuple[Floats, dict[str, Any]]:  # noqa: ANN401
    """Resets an environment and returns the first observation (O,), and `info`.

    `where` names the environment and its step for messages ("reset with seed 1003, step 3"); `options` are passed to
    `gymnasium.Env.reset`.

    SimulationError: it raised, or the observation is not a finite vector of its observation space's shape.
    """
    try:
        observation, info = env.reset(**options)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", "") from error
    return _observation(env, where, observation), info


def take(
    env: gym.Env[Any, Any], action: npt.NDArray[Any] | int, where: str = ""
) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
    """Takes a step with an action, (A,) or an integer.

    Returns the observation (O,), the reward, whether the episode terminated, whether it was truncated, and `info`. The
    other arguments are those of `begin`.

    SimulationError: as in `begin`, or the reward is not a finite number, or a flag is neither true nor false.
    """
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", "") from error
    ended, cut = _number(terminated), _number(truncated)
    for name, value, flag in (("terminated", terminated, ended), ("truncated", truncated, cut)):
        if flag is None:
            kind = one_line(type(value).__name__)
            raise _fault(env, where, f"returned {kind} as {name}, which is neither true nor false")
    if (number := _number(reward)) is None:
        raise _fault(env, where, f"returned the reward {one_line(repr(reward), 60)}, which is not a number")
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise _fault(
            env, where, f"returned a reward that is not finite{' in float32' * math.isfinite(number)}: {number}"
        )
    return _observation(env, where, observation), number, bool(ended), bool(cut), info


def _number(value: Any) -> float | None:  # noqa: ANN401  whatever it returned
    """A number, a truth value or a 0-d array of one as a float; None for anything else."""
    if type(value) in (bool, float):
        return float(value)
    try:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None
    except Exception:  # an object that is not a number may raise any error here
        return None


def _observation(env: gym.Env[Any, Any], where: str, observation: Any) -> Floats:  # noqa: ANN401  whatever it returned
    try:
        with np.errstate(over="ignore"):  # reported below
            array = np.asarray(observation)
            if array.dtype.kind not in "biufO":  # numpy would parse text and drop an imaginary part
                raise TypeError(str(array.dtype))
            # Wider numbers are kept: a policy may subtract their mean first.
            array = array.astype(np.float32 if np.can_cast(array.dtype, np.float32) else np.float64, copy=False)
            finite = np.isfinite(array.astype(np.float32, copy=False))
    except Exception as error:  # likewise
        kind = type(observation).__name__
        raise _fault(env, where, f"returned an observation that is a {kind}, not a vector of numbers") from error
    if array.shape != (wanted := env.observation_space.shape):
        shapes = f"{array.shape}, but its observation space has {wanted}"
        raise _fault(env, where, f"returned an observation of shape {shapes}")
    if not finite.all():
        column = int(np.argmin(finite))
        value = np.asarray(observation).ravel()[column]
        raise _fault(env, where, f"returned an observation that is not finite: column {column} is {value}")
    return array


def _fault(env: gym.Env[Any, Any], where: str, what: str, way_out: str = "; fix the environment") -> SimulationError:
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    return SimulationError(f"the environment {name} {what}{where and f' ({where})'}{way_out}")


class Steps(NamedTuple):
    """Step outputs of n environments, (n, O) and (n,); `terminated` is false if a time limit ended the episode."""

    observations: Floats
    rewards: npt.NDArray[np.float64]
    ended: npt.NDArray[np.bool_]
    terminated: npt.NDArray[np.bool_]


class LocalStepper:
    """Environments of `seeds` in this process. Every method raises SimulationError if an environment fails."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], seeds: list[int]) -> None:
        self._envs = [make_env(env_id, **env_kwargs) for _ in seeds]
        self._seeds, self._steps = seeds, [0] * len(seeds)
        self._answers: list[Steps] = []

    def reset(self) -> Floats:
        """Returns the first observations (E, O); called once."""
        return np.stack([begin(env, self._where(e), seed=self._seeds[e])[0] for e, env in enumerate(self._envs)])

    def send(self, which: Indices, actions: npt.NDArray[Any]) -> None:
        """Steps the environments `which` (n,), in rising order, with actions (n, A), or (n,)."""
        steps = []
        for e, action in zip(which.tolist(), actions.copy(), strict=True):  # which an environment may write into
            self._steps[e] += 1
            observation, reward, terminated, truncated, _ = take(self._envs[e], action, self._where(e))
            steps.append((observation, reward, terminated or truncated, terminated))
        self._answers.append(Steps(*map(np.array, zip(*steps, strict=True))))

    def _where(self, e: int) -> str:
        """An environment by its seed, which identifies it in any process, and the step of its episode."""
        return f"reset with seed {self._seeds[e]}, step {self._steps[e]}"

    def receive(self) -> Steps:
        """Returns the outputs of the oldest pending step."""
        return self._answers.pop(0)

    def close(self) -> None:
        for env in self._envs:
            close_env(env)


class ProcessStepper:
    """As LocalStepper, spread over `workers` processes, neighbors together; `made` is what `pickled` gives."""

    def __init__(self, env_id: str, made: bytes, seeds: list[int], workers: int) -> None:
        self._bounds = np.linspace(0, len(seeds), workers + 1).astype(np.int64)
        self._workers: list[Worker] = []
        self._asked: list[list[int]] = []  # the workers of each pending step
        try:
            for first, last in zip(self._bounds[:-1], self._bounds[1:], strict=True):
                self._workers.append(Worker(__name__, f"simulates {env_id}"))
                self._workers[-1].send((made, seeds[first:last], len(self._workers) > 1))
        except BaseException:
            self.close()
            raise

    def reset(self) -> Floats:
        return np.concatenate([worker.receive() for worker in self._workers])

    def send(self, which: Indices, actions: npt.NDArray[Any]) -> None:
        """Sends each worker its part of the step."""
        cuts = np.searchsorted(which, self._bounds)
        asked = [w for w in range(len(self._workers)) if cuts[w] < cuts[w + 1]]
        for w in asked:
            part = slice(cuts[w], cuts[w + 1])
            self._workers[w].send((which[part] - self._bounds[w], actions[part]))
        self._asked.append(asked)

    def receive(self) -> Steps:
        parts = [self._workers[w].receive() for w in self._asked.pop(0)]
        return Steps(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


Stepper: TypeAlias = LocalStepper | ProcessStepper


def make_stepper(env_id: str, env_kwargs: Mapping[str, Any], seeds: list[int], workers: int | None) -> Stepper:
    """Environments to be reset with `seeds` (E).

    `workers` is the number of processes, 0 for this one. None: one per core, but this one for fewer than 32
    environments, which finish before processes have started, or if no other process can make the environment.

    SimulationError: the environment is unknown or cannot be made, or other processes cannot make it.
    """
    made = pickled(env_id, env_kwargs)
    if workers is None:
        workers = 0 if made is None or len(seeds) < 32 else core_count()
    if workers == 0:
        return LocalStepper(env_id, env_kwargs, seeds)
    if made is None:
        raise SimulationError(
            f"other processes cannot make {env_id}; register it as module:Class, with arguments that can be pickled"
        )
    return ProcessStepper(env_id, made, seeds, min(workers, len(seeds)))


def pickled(env_id: str, env_kwargs: Mapping[str, Any]) -> bytes | None:
    """A registered environment and its arguments, for `unpickled`; None if only this process can make it."""
    spec = gym.registry.get(env_id)
    if spec is None or not isinstance(spec.entry_point, str) or spec.entry_point.startswith("__main__:"):
        return None
    try:
        return pickle.dumps((spec, dict(env_kwargs)))
    except (pickle.PicklingError, TypeError, AttributeError):  # an argument such as a lambda
        return None


def unpickled(made: bytes) -> tuple[str, dict[str, Any]]:
    """What `pickled` returned in the parent: the environment id, now registered in this process, and its arguments."""
    spec, env_kwargs = pickle.loads(made)
    gym.registry[spec.id] = spec
    return str(spec.id), env_kwargs


def serve_requests() -> None:
    """Body of a worker: the first request makes and resets the environments, each further one is a step."""
    stepper: LocalStepper | None = None

    def answer(request: Any) -> Any:  # noqa: ANN401  either kind of request
        nonlocal stepper
        if stepper is None:
            made, seeds, quiet = request
            if quiet:  # another worker gives the same warnings
                warnings.simplefilter("ignore")
            stepper = LocalStepper(*unpickled(made), seeds)
            return stepper.reset()
        stepper.send(*request)
        return tuple(stepper.receive())

    serve(answer)
