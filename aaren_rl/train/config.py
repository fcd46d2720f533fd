"""Configuration: one frozen dataclass per concern."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any

from ..agents import ROLLOUTS, ModelConfig
from ..policies.names import AGENTS, AUTO, UNCONDITIONED
from .batches import CONTEXTS


def _help(default: Any, text: str) -> Any:  # noqa: ANN401  a dataclass field takes any default
    return field(default=default, metadata={"help": text})


def _choice(name: str, value: str, allowed: typing.Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")


def _at_least(low: float, **values: float) -> None:
    for name, value in values.items():
        if value < low:
            raise ValueError(f"{name}: must be at least {low}, not {value}")


@dataclass(frozen=True)
class DataConfig:
    """Which steps the agent is trained on, and how they are cut into contexts."""

    env: str = _help("hopper-medium", "task: {halfcheetah,hopper,walker2d,ant}-{random,medium,...}")
    source: str = _help("auto", "auto, d4rl, local, minari, minari:ID, or an HDF5 file in D4RL's layout")
    env_id: str | None = _help(None, "your own Gymnasium environment, with --source FILE; --env then names the data")
    ref_min_score: float | None = _help(None, "return that scores 0, with --env-id")
    ref_max_score: float | None = _help(None, "return that scores 100, with --env-id")
    context: str = _help("mixed", "training contexts: window, episode or mixed")
    context_length: int = _help(20, "steps of a training window")
    steps_per_update: int = _help(1280, "environment steps an update (64 windows of 20)")
    return_scale: float = _help(1000.0, "returns-to-go are divided by this")
    clip_actions: bool = _help(False, "clip the data's actions to [-1, 1] instead of refusing them")
    max_episode_steps: int | None = _help(None, "cut episodes here where the file marks no timeouts")
    local_steps: int | None = _help(None, "steps of a local set (default: as the recipe, 200,000)")
    held_out: float = _help(0.0, "share of the episodes kept from training, whose actions measure imitation")
    best_fraction: float = _help(1.0, "train on this share of the episodes, the best by return (0.1: 10 percent BC)")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _choice("context", self.context, CONTEXTS)
        _at_least(2, context_length=self.context_length)
        _at_least(1, steps_per_update=self.steps_per_update, max_episode_steps=self.max_episode_steps or 1)
        if not 0 <= self.held_out <= 0.5:
            raise ValueError(f"held_out: must be in [0, 0.5], not {self.held_out}")
        if not 0 < self.best_fraction <= 1:
            raise ValueError(f"best_fraction: must be above 0 and at most 1, not {self.best_fraction}")
        if self.return_scale <= 0:
            raise ValueError(f"return_scale: must be above 0, not {self.return_scale}")
        if (self.ref_min_score is None) != (self.ref_max_score is None):
            raise ValueError("ref_min_score, ref_max_score: give both or none")


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of the model, the same for every agent."""

    width: int = _help(128, "channels of a token")
    layers: int = _help(3, "number of blocks")
    heads: int = _help(4, "heads of a mixer")
    dropout: float = _help(0.1, "dropout probability")
    rem_counts: str = _help(
        "auto", "of the -rsa agents: heads with each recurrence encoding, k1,...,k6 (RSA, section 3)"
    )
    rem_dilation: int = _help(3, "dilation of k4 to k6, in tokens; a step is three")
    rem_max_power: int | None = _help(None, "mask larger powers; 0: none (default: 200 for decision-rsa, else 0)")
    rem_gate: float = _help(0.0, "mu before training; sigmoid(mu) is the encoding's share")
    timestep_embedding: bool = _help(True, "tell the model the time step")
    timestep_std: float = _help(0.02, "deviation of the time steps' embedding before training")
    best_return: bool = _help(False, "learn the best return in reach beside, for --target-return auto")
    tree_budget: float = _help(0.5, "E of decision-transformer-tree: l^E terms for l tokens at rollout; 1 is exact")
    tree_sampler: str = _help("edh", "how its tree chooses what to look at closer, as evaluate's --sampler")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        self.model(1, 1, "aaren", 1)

    def model(
        self, observation_dim: int, action_dim: int, mixer: str, max_timestep: int, *, return_conditioned: bool = True
    ) -> ModelConfig:
        """The model's configuration for an environment."""
        return ModelConfig(
            observation_dim,
            action_dim,
            mixer,
            self.width,
            self.layers,
            self.heads,
            self.dropout,
            max_timestep,
            self.rem_counts,
            self.rem_dilation,
            self.rem_max_power,
            self.rem_gate,
            timestep_embedding=self.timestep_embedding,
            timestep_std=self.timestep_std,
            return_conditioned=return_conditioned,
            best_return=self.best_return and return_conditioned,
            tree_budget=self.tree_budget,
            tree_sampler=self.tree_sampler,
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, or Muon for the trunk's matrices and AdamW for the rest; warm-up; a moving average of the weights.

    What is not given is as runs of version 0.1.0 had it, so that they can be resumed; presets say what is recommended.
    """

    updates: int = _help(1500, "training updates")
    optimizer: str = _help("adamw", "adamw, or muon: Muon for the matrices of the trunk, AdamW for the rest")
    learning_rate: float = _help(1e-3, "peak learning rate of AdamW")
    matrix_learning_rate: float = _help(1e-2, "peak learning rate of Muon; its steps are of AdamW's size")
    schedule: str = _help("constant", "after the warm-up: constant or cosine (to zero)")
    warmup_updates: int = _help(500, "updates of linear warm-up")
    weight_decay: float = _help(1e-4, "AdamW weight decay")
    clip_norm: float = _help(0.25, "largest norm of the gradient")
    average_decay: float = _help(0.999, "decay of the moving average of the weights, per update")
    precision: str = _help("auto", "auto (bfloat16 where the processor has it), bfloat16 or float32")
    non_finite: str = _help("stop", "update with a loss or gradient that is not finite: stop, or skip and count it")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _choice("optimizer", self.optimizer, ("adamw", "muon"))
        _choice("schedule", self.schedule, ("cosine", "constant"))
        _choice("precision", self.precision, ("auto", "bfloat16", "float32"))
        _choice("non_finite", self.non_finite, ("stop", "skip"))
        _at_least(1, updates=self.updates)
        _at_least(0, warmup_updates=self.warmup_updates, weight_decay=self.weight_decay)
        for name in ("learning_rate", "matrix_learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)}")
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay: must be in [0, 1), not {self.average_decay}")


@dataclass(frozen=True)
class EvaluationConfig:
    """How the agent is rolled out."""

    rollout: str = _help("carry", "carry (one state), rolling (two staggered states) or window (recompute)")
    rollout_context: int = _help(20, "K of rolling and window, in steps (trained on windows: their length)")
    target_return: float | str | None = _help(
        None, "return asked for, or auto: at every step the best in reach (default: the task's)"
    )
    eval_every: int = _help(500, "updates between evaluations")
    eval_episodes: int = _help(10, "episodes of an evaluation during training")
    final_episodes: int = _help(20, "episodes of the last evaluation")
    eval_seed: int = _help(1000, "environment i is reset with this seed + i")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _choice("rollout", self.rollout, ROLLOUTS)
        if isinstance(self.target_return, str):
            _choice("target_return", self.target_return, (AUTO,))
        _at_least(2, rollout_context=self.rollout_context)
        _at_least(1, eval_every=self.eval_every, eval_episodes=self.eval_episodes, final_episodes=self.final_episodes)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result. Where it is written and on which device is not part of it."""

    agent: str = _help("decision-aaren", "a name in AGENTS")
    seed: int = _help(0, "seed of weights, batches and dropout")
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _choice("agent", self.agent, AGENTS)
        _at_least(0, seed=self.seed)
        if self.evaluation.target_return == AUTO and not (self.network.best_return and self.agent not in UNCONDITIONED):
            raise ValueError("target_return: auto needs best_return, and an agent that sees returns")

    def model(self, observation_dim: int, action_dim: int, horizon: int) -> ModelConfig:
        """The configuration of the agent's model for an environment."""
        conditioned = self.agent not in UNCONDITIONED
        return self.network.model(observation_dim, action_dim, self.mixer, horizon, return_conditioned=conditioned)

    @property
    def mixer(self) -> str:
        """The agent's token mixer."""
        return AGENTS[self.agent]


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "optimizer": OptimizerConfig,
    "evaluation": EvaluationConfig,
}
