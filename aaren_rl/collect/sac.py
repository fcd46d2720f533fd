"""Behaviour policies trained with stable-baselines3's SAC: in pieces, with everything a resume needs as plain tensors.

Importing this module imports stable-baselines3, which takes seconds.
"""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from ..envs.files import write_whole
from ..envs.simulation.answers import begin, take
from ..envs.tasks.environment import make_env
from .replay import Replay
from .target import SacSettings

_HIDDEN = 256  # two layers of it: what BehaviourPolicy reads, and D4RL's own policies had
_BATCH = 256


class _TrainingEnv(gym.Wrapper[npt.NDArray[np.float32], Any, Any, Any]):
    """Float32 observations, which the replay buffer then keeps as such, and one kind of error for every fault."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)

    def reset(self, **kwargs: Any) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:  # noqa: ANN401
        return begin(self.env, **kwargs)

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        if not np.isfinite(action).all():  # the environment would be blamed for what it makes of it
            raise FloatingPointError("the policy's action is not finite")
        return take(self.env, action)


class SacTrainer:
    """SAC with two ReLU layers of 256, batches of 256, and otherwise stable-baselines3's defaults.

    Nothing it has experienced is ever overwritten: the replay buffer has room for all steps.
    """

    def __init__(self, settings: SacSettings, steps: int, device: torch.device | str = "cpu") -> None:
        """Make the environments and the networks; `steps` is how many are to come altogether.

        Raises:
            SimulationError: the environment cannot be made.
        """
        self.settings = settings
        rows_per_update, updates = settings.rhythm
        self._envs = DummyVecEnv([self._make_env] * settings.envs)
        self.model = SAC(
            "MlpPolicy",
            self._envs,
            learning_rate=settings.learning_rate,
            # One row more than needed: at the last row the buffer would turn round to its first.
            buffer_size=(-(-steps // settings.unit) * rows_per_update + 1) * settings.envs,
            learning_starts=settings.random_steps,
            batch_size=_BATCH,
            train_freq=rows_per_update,
            gradient_steps=updates,
            policy_kwargs={"net_arch": [_HIDDEN, _HIDDEN]},
            replay_buffer_kwargs={"handle_timeout_termination": True},
            seed=settings.seed,
            device=device,
        )
        self.model.set_logger(Logger(None, []))

    def _make_env(self) -> gym.Env[Any, Any]:
        return Monitor(_TrainingEnv(make_env(self.settings.env_id, max_episode_steps=self.settings.horizon)))

    @property
    def steps(self) -> int:
        """Steps taken so far, of all environments together."""
        return self.model.num_timesteps

    @property
    def rows(self) -> int:
        """Rows of the replay buffer written so far."""
        return self.steps // self.settings.envs

    def learn(self, until: int) -> None:
        """Go on until `until` steps are taken, or up to one unit more.

        Raises:
            SimulationError: an environment failed.
        """
        if until > self.steps:
            # log_interval: episodes until the logger, which has no outputs, would forget what `losses` reads.
            self.model.learn(until - self.steps, reset_num_timesteps=False, log_interval=2**62)

    def losses(self) -> dict[str, float]:
        """Scalars of the last update and the mean return and length of the last 100 episodes, tag -> value."""
        values = {tag: float(value) for tag, value in self.model.logger.name_to_value.items() if tag[:6] == "train/"}
        if episodes := self.model.ep_info_buffer:
            values["train/return_mean"] = float(np.mean([episode["r"] for episode in episodes]))
            values["train/length_mean"] = float(np.mean([episode["l"] for episode in episodes]))
        return values

    def is_finite(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(parameter.isfinite().all()) for parameter in self.model.policy.parameters())

    def actor(self) -> dict[str, npt.NDArray[np.float32]]:
        """The actor's weights under the names that `BehaviourPolicy` reads, kernels (in, out)."""
        theirs = {"hidden_0": "latent_pi.0", "hidden_1": "latent_pi.2", "mean": "mu", "log_std": "log_std"}
        state = {name: tensor.cpu().numpy() for name, tensor in self.model.actor.state_dict().items()}
        kernels = {f"{our}.kernel": np.ascontiguousarray(state[f"{name}.weight"].T) for our, name in theirs.items()}
        return kernels | {f"{our}.bias": state[f"{name}.bias"].copy() for our, name in theirs.items()}

    def _buffers(self) -> tuple[npt.NDArray[np.float32], ...]:
        buffer = self.model.replay_buffer
        assert buffer is not None
        seen = buffer.observations, buffer.next_observations, buffer.actions
        return *seen, buffer.rewards, buffer.dones, buffer.timeouts

    def replay(self) -> Replay:
        """The replay buffer's rows; all but `done` and `timeout` are views."""
        seen, after, actions, rewards, done, timeout = (array[: self.rows] for array in self._buffers())
        return Replay(seen, after, actions, rewards, done != 0, timeout != 0)

    def state(self) -> dict[str, Any]:
        """Weights, optimisers, counters and random states: tensors and numbers in dictionaries."""
        model = self.model
        assert model.log_ent_coef is not None
        # Of the global generator, which the replay buffer draws batches with.
        _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
        return {
            "steps": self.steps,
            "updates": model._n_updates,
            "parameters": model.get_parameters(),
            "log_ent_coef": model.log_ent_coef.detach(),
            "torch": torch.get_rng_state(),
            "numpy": (torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)),
        }

    def restore(self, state: dict[str, Any], replay: Replay) -> None:
        """Go on from a state and all rows that belong to it.

        The environments cannot be stored: they start new episodes, from seeds that no earlier part of the run had. In
        `replay` the episodes that were under way end without `done`.

        Raises:
            KeyError, ValueError, RuntimeError: the state does not fit these settings.
        """
        model, buffer = self.model, self.model.replay_buffer
        state = copy.deepcopy(state)  # the optimisers would go on in the very tensors they are given
        assert buffer is not None and model.log_ent_coef is not None and model.ent_coef_optimizer is not None
        model.num_timesteps, model._n_updates = int(state["steps"]), int(state["updates"])
        if len(replay.rewards) != self.rows or self.rows >= buffer.buffer_size:
            raise ValueError(f"{len(replay.rewards)} rows of experience for {self.steps} steps")
        model.set_parameters(state["parameters"])
        with torch.no_grad():
            model.log_ent_coef.copy_(state["log_ent_coef"])
        for target, array in zip(self._buffers(), replay, strict=True):
            target[: self.rows] = array
        buffer.pos = self.rows
        seed = int(np.random.default_rng((self.settings.seed, self.steps)).integers(2**31))
        self._envs.seed(seed)
        model.action_space.seed(seed)
        torch.set_rng_state(state["torch"])
        keys, position, has_gauss, gauss = state["numpy"]
        np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))

    def close(self) -> None:
        """Close the training environments."""
        self._envs.close()


def write_actor(path: Path, tensors: dict[str, npt.NDArray[np.float32]], metadata: dict[str, str]) -> None:
    """Write an actor as `BehaviourPolicy` reads it, whole or not at all; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(tensors, metadata=metadata))
