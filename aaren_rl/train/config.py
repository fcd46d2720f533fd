"""Configuration: one frozen dataclass per concern."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..policies.names import AGENTS, AUTO, CONTEXTS, ROLLOUTS, UNCONDITIONED
from ..ranges import (
    BELOW_1,
    CONTEXT,
    COUNT,
    COUNT_FROM_0,
    FROM_0,
    HALF,
    POSITIVE,
    RETURN,
    RETURN_SCALE,
    SEED,
    SOME,
    Range,
)

if TYPE_CHECKING:
    from ..agents import ModelConfig


def _help(default: Any, text: str, limits: Range | None = None) -> Any:  # noqa: ANN401  a field takes any default
    return field(default=default, metadata={"help": text, "limits": limits})


def _choice(name: str, value: str, allowed: typing.Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")


def _check_limits(config: Any) -> None:  # noqa: ANN401  any of the dataclasses below
    for item in fields(config):
        limits, value = item.metadata.get("limits"), getattr(config, item.name)
        if limits is not None and isinstance(value, int | float) and (problem := limits.problem(value)):
            raise ValueError(f"{item.name}: {problem}")


@dataclass(frozen=True)
class DataConfig:
    """Which steps the agent is trained on, and how they are cut into contexts."""

    env: str = _help("hopper-medium", "task: {halfcheetah,hopper,walker2d,ant}-{random,medium,...}")
    source: str = _help("auto", "auto, d4rl, local, minari, minari:ID, or an HDF5 file in D4RL's layout")
    env_id: str | None = _help(None, "your own Gymnasium environment, with --source FILE; --env then names the data")
    ref_min_score: float | None = _help(None, "return that scores 0, with --env-id", RETURN)
    ref_max_score: float | None = _help(None, "return that scores 100, with --env-id", RETURN)
    context: str = _help("mixed", "training contexts: auto, window, episode, mixed or stream")
    context_length: int = _help(20, "steps of a training window", CONTEXT)
    stream_length: int = _help(40, "steps an update of a row of a stream", CONTEXT)
    steps_per_update: int = _help(1280, "environment steps an update (64 windows of 20)", COUNT)
    return_scale: float = _help(1000.0, "returns-to-go are divided by this", RETURN_SCALE)
    clip_actions: bool = _help(False, "clip the data's actions to [-1, 1] instead of refusing them")
    max_episode_steps: int | None = _help(None, "cut episodes here where the file marks no timeouts", COUNT)
    local_steps: int | None = _help(None, "steps of a local set (default: as the recipe, 200,000)", COUNT)
    held_out: float = _help(0.0, "share of the episodes kept from training, whose actions measure imitation", HALF)
    start_from: str | None = _help(None, "start from a policy's weights and its normalisation: a run or policy folder")
    best_fraction: float = _help(1.0, "train on this share of the episodes, the best ones (0.1: 10 percent BC)", SOME)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _check_limits(self)
        _choice("context", self.context, (AUTO, *CONTEXTS))
        if (self.ref_min_score is None) != (self.ref_max_score is None):
            raise ValueError("ref_min_score, ref_max_score: give both or none")


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of the model, the same for every agent."""

    width: int = _help(128, "channels of a token", COUNT)
    layers: int = _help(3, "number of blocks", COUNT)
    heads: int = _help(4, "heads of a mixer", COUNT)
    dropout: float = _help(0.1, "dropout probability", BELOW_1)
    tokens_per_step: int = _help(1, "1, or 3: return-to-go, observation and action apart (Decision Transformer)")
    rem_counts: str = _help(
        "auto", "of the -rsa agents: heads with each recurrence encoding, k1,...,k6 (RSA, section 3)"
    )
    rem_dilation: int = _help(2, "dilation of k4 to k6, in environment steps", COUNT)
    rem_max_power: int | None = _help(
        None, "mask larger powers; 0: none (default: 200 for decision-rsa, else 0)", COUNT_FROM_0
    )
    rem_gate: float = _help(0.0, "mu before training; sigmoid(mu) is the encoding's share", RETURN)
    timestep_embedding: bool = _help(True, "tell the model the time step")
    timestep_std: float = _help(0.02, "deviation of the time steps' embedding before training", FROM_0)
    best_return: bool = _help(False, "learn the best return in reach beside, for --target-return auto")
    typical_return: bool = _help(False, "learn the return to expect beside, for evaluate --guidance")
    tree_budget: float = _help(0.5, "E of decision-transformer-tree: l^E terms for l tokens; 1 is exact", RETURN)
    tree_sampler: str = _help("edh", "how its tree chooses what to look at closer, as evaluate's --sampler")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _check_limits(self)
        self.model(1, 1, "aaren", 1)

    def model(
        self, observation_dim: int, action_dim: int, mixer: str, max_timestep: int, *, return_conditioned: bool = True
    ) -> ModelConfig:
        """The model's configuration for an environment."""
        from ..agents import ModelConfig  # with torch, which takes seconds to import

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
            typical_return=self.typical_return and return_conditioned,
            tree_budget=self.tree_budget,
            tree_sampler=self.tree_sampler,
            tokens_per_step=self.tokens_per_step,
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, or Muon for the trunk's matrices and AdamW for the rest; warm-up; a moving average of the weights.

    What is not given is as runs of version 0.1.0 had it, so that they can be resumed; presets say what is recommended.
    """

    updates: int = _help(1500, "training updates", COUNT)
    optimizer: str = _help("adamw", "adamw, or muon: Muon for the matrices of the trunk, AdamW for the rest")
    learning_rate: float = _help(1e-3, "peak learning rate of AdamW", POSITIVE)
    matrix_learning_rate: float = _help(1e-2, "peak learning rate of Muon; its steps are of AdamW's size", POSITIVE)
    schedule: str = _help("constant", "after the warm-up: constant or cosine (to zero)")
    warmup_updates: int = _help(500, "updates of linear warm-up", COUNT_FROM_0)
    weight_decay: float = _help(1e-4, "AdamW weight decay", FROM_0)
    clip_norm: float = _help(0.25, "largest norm of the gradient", POSITIVE)
    average_decay: float = _help(0.999, "decay of the moving average of the weights, per update", BELOW_1)
    precision: str = _help("auto", "auto (bfloat16 where the processor has it), bfloat16 or float32")
    non_finite: str = _help("stop", "update with a loss or gradient that is not finite: stop, or skip and count it")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _check_limits(self)
        _choice("optimizer", self.optimizer, ("adamw", "muon"))
        _choice("schedule", self.schedule, ("cosine", "constant"))
        _choice("precision", self.precision, ("auto", "bfloat16", "float32"))
        _choice("non_finite", self.non_finite, ("stop", "skip"))


@dataclass(frozen=True)
class EvaluationConfig:
    """How the agent is rolled out."""

    rollout: str = _help("carry", "carry (one state), rolling (two staggered states) or window (recompute)")
    rollout_context: int = _help(20, "K of rolling and window, in steps (trained on windows: their length)", CONTEXT)
    target_return: float | str | None = _help(
        None, "return asked for, or auto: at every step the best in reach (default: the task's)", RETURN
    )
    eval_every: int = _help(500, "updates between evaluations", COUNT)
    eval_episodes: int = _help(10, "episodes of an evaluation during training", COUNT)
    final_episodes: int = _help(20, "episodes of the last evaluation", COUNT)
    eval_seed: int = _help(1000, "environment i is reset with this seed + i", SEED)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _check_limits(self)
        _choice("rollout", self.rollout, ROLLOUTS)
        if isinstance(self.target_return, str):
            _choice("target_return", self.target_return, (AUTO,))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result. Where it is written and on which device is not part of it."""

    agent: str = _help("decision-aaren", "a name in AGENTS")
    seed: int = _help(0, "seed of weights, batches and dropout", SEED)
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        _check_limits(self)
        _choice("agent", self.agent, AGENTS)
        if self.evaluation.target_return == AUTO and not (self.network.best_return and self.agent not in UNCONDITIONED):
            raise ValueError("target_return: auto needs best_return, and an agent that sees returns")
        if self.data.context == "stream" and not self.constant_state:
            raise ValueError(f"context: stream needs a state of one size, which {self.agent} has not; use window")

    def model(self, observation_dim: int, action_dim: int, horizon: int) -> ModelConfig:
        """The configuration of the agent's model for an environment."""
        conditioned = self.agent not in UNCONDITIONED
        return self.network.model(observation_dim, action_dim, self.mixer, horizon, return_conditioned=conditioned)

    @property
    def mixer(self) -> str:
        """The agent's token mixer."""
        return AGENTS[self.agent]

    @property
    def constant_state(self) -> bool:
        """Whether that mixer's state is of one size, however long the episode."""
        from ..agents import CONSTANT, MIXERS

        return MIXERS[self.mixer].state_size == CONSTANT


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "optimizer": OptimizerConfig,
    "evaluation": EvaluationConfig,
}
