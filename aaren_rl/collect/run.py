"""The training of `collect` in pieces, its evaluations, and the files in its folder.

It is Stable-Baselines3's SAC, or DQN for discrete actions. Importing this module imports it, which takes seconds.
"""

from __future__ import annotations

import copy
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from tqdm import tqdm

from ..base.errors import CheckpointError, NumericsError, one_line
from ..base.files import write_whole
from ..cli import StopRequest, progress_bar
from ..envs import normalized_score
from ..envs.local.policy import EXPLORATION
from ..envs.simulation.stepping import begin, take
from ..envs.tasks.environment import make_env
from ..policies.names import return_words
from ..runs.metrics import Metrics
from .checkpoint import ARRAYS, Experience, Saved, save_run, saving
from .config import CollectConfig, Evaluation, evaluate_actor

LEARN_AT_ONCE = 400  # steps between checks of the signals: a second or two
LOG_EVERY = 2000  # steps
_HIDDEN = 256  # width of both layers, as BehaviorPolicy reads them and as in D4RL's own policies
_BATCH = 256
_LAYERS = {"hidden_0": "latent_pi.0", "hidden_1": "latent_pi.2", "mean": "mu", "log_std": "log_std"}
_DQN_LAYERS = {"hidden_0": "q_net.0", "hidden_1": "q_net.2", "values": "q_net.4"}
# No exploration schedule, because training runs in pieces. The target network is updated every _TARGET_STEPS.
_DQN: dict[str, Any] = {"exploration_initial_eps": EXPLORATION, "exploration_final_eps": EXPLORATION}
_TARGET_STEPS = 256


class TrainingEnv(gym.Wrapper[npt.NDArray[np.float32], Any, Any, Any]):
    """Gives float32 observations, which the replay buffer keeps, and one kind of error for every fault.

    Discrete actions start at 0, as Stable-Baselines3 expects.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
        self._start = 0
        if isinstance(env.action_space, gym.spaces.Discrete):
            self._start, self.action_space = int(env.action_space.start), gym.spaces.Discrete(int(env.action_space.n))

    def reset(self, **kwargs: Any) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:  # noqa: ANN401
        observation, info = begin(self.env, **kwargs)
        return observation.astype(np.float32), info

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        if not np.isfinite(action).all():  # otherwise the environment would seem to be at fault
            raise FloatingPointError("the policy's action is not finite")
        answer = take(self.env, action + self._start if self._start else action)
        return answer[0].astype(np.float32), *answer[1:]


def rhythm(config: CollectConfig) -> tuple[int, int]:
    """Rows of steps and gradient steps that alternate: the smallest integers of the ratio in the settings."""
    updates_per_row = config.envs * Fraction(config.updates_per_step).limit_denominator(1000)
    return updates_per_row.denominator, updates_per_row.numerator


class CollectRun:
    """A training run in its folder: SAC with two ReLU layers of 256, batches of 256, and Stable-Baselines3's defaults.

    Discrete actions use DQN, which also has a replay buffer, unlike PPO.

    Files: config.yaml, metrics.jsonl, TensorBoard events, actors/, replay/, checkpoints/. Experience is never
    overwritten: the replay buffer has room for all steps.
    """

    def __init__(self, config: CollectConfig, path: Path, saved: Saved | None, device: torch.device) -> None:
        """Makes environments and networks; resumes from `saved` if given.

        Raises CheckpointError if `saved` does not fit, SimulationError if an environment cannot be made.
        """
        self.config, self.path, self.evaluations, self.resumed = config, path, list[Evaluation](), list[int]()
        rows_per_update, updates = rhythm(config)
        units = -(-max(config.steps, saved.steps if saved else 0) // (rows_per_update * config.envs))
        env = DummyVecEnv([lambda: Monitor(TrainingEnv(make_env(config.env_id, **config.made_with)))] * config.envs)
        discrete = isinstance(env.action_space, gym.spaces.Discrete)
        self._algorithm: type[SAC | DQN] = DQN if discrete else SAC
        self.model: SAC | DQN = self._algorithm(
            "MlpPolicy",
            env,
            learning_rate=config.learning_rate,
            # One extra row: the buffer wraps around after its last row.
            buffer_size=(units * rows_per_update + 1) * config.envs,
            learning_starts=config.random_steps,
            batch_size=_BATCH,
            train_freq=rows_per_update,
            gradient_steps=updates,
            policy_kwargs={"net_arch": [_HIDDEN, _HIDDEN]},
            replay_buffer_kwargs={"handle_timeout_termination": True},
            seed=config.seed,
            device=device,
            **({**_DQN, "target_update_interval": max(_TARGET_STEPS, config.envs)} if discrete else {}),
        )
        self.model.set_logger(Logger(None, []))
        if saved is not None:
            try:
                self._restore(saved)
            except (KeyError, ValueError, TypeError, RuntimeError) as error:
                raise CheckpointError(
                    f"{path}: its checkpoint does not fit: {one_line(error)}; give another --out"
                ) from error
        self._saved_rows = self.rows

    @property
    def steps(self) -> int:
        """Steps so far, of all environments together."""
        return self.model.num_timesteps

    @property
    def rows(self) -> int:
        """Rows of the replay buffer written so far."""
        return self.steps // self.config.envs

    def learn(self, until: int) -> None:
        """Trains until `until` steps, or up to one unit of `rhythm` more; SimulationError if an environment fails."""
        if until > self.steps:
            # log_interval: episodes until the logger, which has no outputs, clears the values that `_losses` reads.
            self.model.learn(until - self.steps, reset_num_timesteps=False, log_interval=2**62)

    def actor(self) -> dict[str, npt.NDArray[np.float32]]:
        """The actor's weights under the names of `BehaviorPolicy`, kernels (in, out)."""
        model = self.model
        network, layers = (model.actor, _LAYERS) if isinstance(model, SAC) else (model.q_net, _DQN_LAYERS)
        state = {name: tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
        kernels = {f"{our}.kernel": np.ascontiguousarray(state[f"{name}.weight"].T) for our, name in layers.items()}
        return kernels | {f"{our}.bias": state[f"{name}.bias"].copy() for our, name in layers.items()}

    def experience(self) -> Experience:
        """Views of the written rows of the replay buffer."""
        return {name: getattr(self.model.replay_buffer, name)[: self.rows] for name in ARRAYS}

    def saved(self) -> Saved:
        """The state as `load_run` reads it; the experience is views."""
        model = self.model
        state = {"updates": model._n_updates, "parameters": model.get_parameters()}
        if isinstance(model, SAC):
            assert model.log_ent_coef is not None
            state["log_ent_coef"] = model.log_ent_coef.detach()
        return Saved(self.steps, state, self.experience(), self.evaluations, self.resumed)

    def _restore(self, saved: Saved) -> None:
        # Environments cannot be stored: they start new episodes, with new seeds.
        model, buffer = self.model, self.model.replay_buffer
        state = copy.deepcopy(saved.trainer)  # the optimizers would change the given tensors in place
        assert buffer is not None
        model.num_timesteps, model._n_updates = saved.steps, int(state["updates"])
        if len(saved.experience["rewards"]) != self.rows or self.rows >= buffer.buffer_size:
            raise ValueError(f"{len(saved.experience['rewards'])} rows of experience for {self.steps} steps")
        model.set_parameters(state["parameters"])
        if isinstance(model, SAC):
            assert model.log_ent_coef is not None
            with torch.no_grad():
                model.log_ent_coef.copy_(state["log_ent_coef"])
        for name, rows in self.experience().items():
            rows[:] = saved.experience[name]
        buffer.pos = self.rows
        self.evaluations, self.resumed = list(saved.evaluations), [*saved.resumed, self.rows]
        model.set_random_seed(int(np.random.default_rng((self.config.seed, self.steps)).integers(2**31)))

    def play(self, stop: StopRequest) -> None:
        """Trains to the end, or until a signal, and saves.

        The last checkpoint is kept on errors: NumericsError if a weight or an action is not finite, SimulationError if
        an environment fails, DataError if the disk is full.
        """
        metrics = Metrics(self.path, self.steps, clock="step")
        bar = progress_bar(total=self.config.steps, initial=self.steps, desc=self.config.env_id, unit="step")
        try:
            while not self.evaluations or not (
                self.steps >= self.config.steps or self.config.reached(self.evaluations[-1].return_mean)
            ):
                due = self._learn(bar, metrics, stop)
                with saving(self.path):
                    if due:
                        self._evaluate(bar, metrics)
                    if due or self.rows > self._saved_rows:
                        save_run(self.path, self.saved(), self._saved_rows)
                self._saved_rows = self.rows
                if stop.signal is not None:
                    return
        finally:
            bar.close()
            metrics.close()
            self.close()

    def _learn(self, bar: tqdm[Any], metrics: Metrics, stop: StopRequest) -> bool:
        """Trains up to the next evaluation, or a signal; returns whether the evaluation is due."""
        every = self.config.checkpoint_every
        goal = min((self.steps // every + 1) * every, self.config.steps)
        began, logged = time.perf_counter(), self.steps
        while self.steps < goal and stop.signal is None:
            before = self.steps
            self._learn_some(min(goal, before + LEARN_AT_ONCE))
            bar.update(self.steps - before)
            if self.steps - logged >= LOG_EVERY or self.steps >= goal:
                values = self._losses()
                rate = (self.steps - logged) / (time.perf_counter() - began)
                metrics.log(self.steps, {**values, "time/fps": rate})
                evaluated = f"{self.evaluations[-1].return_mean:.0f}" if self.evaluations else "-"
                training = f"{values.get('rollout/ep_rew_mean', float('nan')):.0f}"
                bar.set_postfix_str(f"return {evaluated}, in training {training}", refresh=sys.stderr.isatty())
                began, logged = time.perf_counter(), self.steps
        return self.steps >= goal

    def _learn_some(self, until: int) -> None:
        problem: Exception | None = None
        try:
            self.learn(until)
        except (FloatingPointError, ValueError) as error:  # torch's distributions refuse NaN with a ValueError
            problem = error
        finite = all(bool(weights.isfinite().all()) for weights in self.model.policy.parameters())
        if isinstance(problem, ValueError) and finite:
            raise problem
        if problem is not None or not finite:
            raise NumericsError(
                f"a weight or action is not finite after step {self.steps}; the last good checkpoint is kept "
                f"in {self.path / 'checkpoints'}; start a new run with a lower --learning-rate"
            ) from problem

    def _losses(self) -> dict[str, float]:
        """The last update's losses, and means over the last 100 episodes, by Stable-Baselines3's tags."""
        values = {tag: float(value) for tag, value in self.model.logger.name_to_value.items() if tag[:6] == "train/"}
        if episodes := self.model.ep_info_buffer:
            values["rollout/ep_rew_mean"] = float(np.mean([episode["r"] for episode in episodes]))
            values["rollout/ep_len_mean"] = float(np.mean([episode["l"] for episode in episodes]))
        return values

    def _evaluate(self, bar: tqdm[Any], metrics: Metrics) -> None:
        steps, tensors = self.steps, self.actor()
        path = self.path / "actors" / f"{steps}.safetensors"
        metadata = {"env_id": self.config.env_id, "steps": str(steps), "algorithm": self._algorithm.__name__}
        write_actor(path, tensors, metadata)
        evaluation = evaluate_actor(self.config, path, steps, self._algorithm.__name__)
        self.evaluations.append(evaluation)
        values = evaluation.scalars()
        if self.config.family is not None:
            values["eval/normalized_score"] = normalized_score(self.config.family, evaluation.return_mean)
        metrics.log(steps, values)
        bar.write(f"step {steps:,}: mean return {return_words(evaluation.return_mean)}", file=sys.stderr)

    def close(self) -> None:
        self.model.get_env().close()  # type: ignore[union-attr]


def write_actor(path: Path, tensors: dict[str, npt.NDArray[np.float32]], metadata: dict[str, str]) -> None:
    """Writes an actor in the format of `BehaviorPolicy`, whole or not at all; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(tensors, metadata=metadata))
