"""The configuration of a run. Defaults are the recipe of Decision-Aaren; `Agent.settings` and presets.yaml differ."""

import typing
from dataclasses import dataclass, field, fields, replace
from functools import partial

from ..agents.model.config import ModelConfig
from ..base.ranges import (
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
    check_limits,
    setting,
)
from ..envs.tasks.arguments import env_kwargs
from ..policies.names import AGENTS, AUTO, CONTEXTS, DRAWN, ROLLOUTS


def _check(section: object, **choices: typing.Iterable[str]) -> None:
    check_limits(section)
    for name, allowed in choices.items():
        if (value := getattr(section, name)) not in allowed:
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")


@dataclass(frozen=True)
class DataConfig:
    """The training data and how it is cut into contexts."""

    env: str = setting("hopper-medium", "task: {halfcheetah,hopper,walker2d,ant}-{random,medium,...}, tmaze, ...")
    source: str | list[str] = setting(  # noqa: RUF009  the default is a text
        "auto", "auto, d4rl, local, minari, minari:ID, HDF5, .npz, CSV or parquet files; several: one dataset"
    )
    env_id: str | None = setting(None, "your own Gymnasium environment, for --source; --env then names the data")
    env_kwargs: str | None = setting(None, "arguments of your own environment, as a JSON object")
    ref_min_score: float | None = setting(None, "return that scores 0, with --env-id", RETURN)
    ref_max_score: float | None = setting(None, "return that scores 100, with --env-id", RETURN)
    context: str = setting("auto", "training contexts: auto, window, episode, mixed or tbptt")
    context_length: int = setting(20, "steps of a training window", CONTEXT)
    tbptt_length: int = setting(40, "steps per segment of a gradient step, with truncated BPTT", CONTEXT)
    tbptt_windows: float = setting(
        0.5, "with truncated BPTT, the share of the segments that begin anywhere, with a fresh state", BELOW_1
    )
    steps_per_update: int = setting(1280, "environment steps per gradient step (64 windows of 20)", COUNT)
    return_scale: float | None = setting(
        None, "return-to-go scale (divisor); default: 1000 for D4RL's tasks, else chosen from the data", RETURN_SCALE
    )
    clip_actions: bool = setting(False, "clip actions of the data to the environment's bounds, instead of an error")
    max_episode_steps: int | None = setting(None, "end the episodes of a file, and of --env-id, after N steps", COUNT)
    actions: str | None = setting(None, "discrete or continuous, where a file's actions do not tell")
    columns: str | list[str] = setting(  # noqa: RUF009  the default is a text
        "", "entries of a file with names of your own: observations=x,y actions=u"
    )
    local_steps: int | None = setting(None, "steps of a local dataset (default: 200,000)", COUNT)
    held_out: float = setting(0.05, "fraction of episodes held out to measure the action error", HALF)
    start_from: str | None = setting(None, "initial weights and normalization: a run or policy folder")
    draws: str = setting(
        "return", "episodes trained on: return (the higher its return, the more often), best (only those), or uniform"
    )
    draw_share: float = setting(
        0.2, "effective share of the episodes that --draws return or best trains on (best 0.1: 10 percent BC)", SOME
    )

    def __post_init__(self) -> None:
        _check(self, context=(AUTO, *CONTEXTS), draws=DRAWN)
        if (self.ref_min_score is None) != (self.ref_max_score is None):
            raise ValueError("ref_min_score, ref_max_score: give both or none")
        try:
            env_kwargs(self.env_kwargs)
        except ValueError as error:
            raise ValueError(f"env_kwargs {error}") from error


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, or Muon for the trunk matrices and AdamW for the rest; warm-up; EMA weights."""

    updates: int = setting(1600, "gradient steps", COUNT)
    optimizer: str = setting("muon", "adamw, or muon: Muon for the matrices of the trunk, AdamW for the rest")
    learning_rate: float = setting(3e-3, "peak learning rate of AdamW", POSITIVE)
    muon_learning_rate: float = setting(1e-2, "peak learning rate of Muon; step size scaled to match AdamW", POSITIVE)
    lr_schedule: str = setting("cosine", "learning rate after the warm-up: constant, or cosine decay to zero")
    warmup_updates: int = setting(100, "gradient steps of linear warm-up", COUNT_FROM_0)
    weight_decay: float = setting(1e-4, "AdamW weight decay", FROM_0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", POSITIVE)
    ema_decay: float = setting(0.999, "decay of the EMA weights per gradient step", BELOW_1)
    precision: str = setting("auto", "auto (bfloat16 where the processor has it), bfloat16 or float32")

    def __post_init__(self) -> None:
        either = {"optimizer": ("adamw", "muon"), "lr_schedule": ("cosine", "constant")}
        _check(self, precision=("auto", "bfloat16", "float32"), **either)


@dataclass(frozen=True)
class EvaluationConfig:
    """How the agent is rolled out."""

    rollout: str = setting("recurrent", "recurrent (one state), staggered (two states) or window (recompute)")
    rollout_context: int = setting(40, "K of staggered and window, in steps (after windows: their length)", CONTEXT)
    target_return: float | str | None = setting(
        None, "target return, or auto: the maximum achievable return at every step (default: the task's)", RETURN
    )
    eval_every: int = setting(500, "gradient steps between evaluations", COUNT)
    eval_episodes: int = setting(10, "episodes per evaluation during training", COUNT)
    final_episodes: int = setting(20, "episodes of the last evaluation", COUNT)
    eval_seed: int = setting(1000, "environment i is reset with this seed + i", SEED)

    def __post_init__(self) -> None:
        _check(self, rollout=ROLLOUTS, **({"target_return": (AUTO,)} if isinstance(self.target_return, str) else {}))


# The dataset sets the observation and action sizes; they are 1 until it is read.
_network = partial(
    ModelConfig,
    1,
    1,
    dropout=0.1,
    forget_gate=True,
    timestep_embedding=False,
    max_return_estimate=True,
)


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the result of a run. The output folder and the device are not part of it."""

    agent: str = "decision-aaren"
    seed: int = field(default=0, metadata={"limits": SEED})
    data: DataConfig = field(default_factory=DataConfig)
    network: ModelConfig = field(default_factory=_network)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        _check(self, agent=AGENTS)
        able = self.network.max_return_estimate and AGENTS[self.agent].conditioned
        if self.evaluation.target_return == AUTO and not able:
            raise ValueError("target_return: auto needs max_return_estimate and an agent conditioned on returns")
        if self.data.context == "tbptt" and not self.constant_state:
            problem = "is not one with --rem-max-power" if self.keeps_values else "is not one"
            raise ValueError(f"context: tbptt requires a recurrent agent; {self.agent} {problem}; use window")

    def model(self, observation_dim: int, action_dim: int, horizon: int, *, discrete: bool = False) -> ModelConfig:
        """The model configuration for an environment."""
        data: dict[str, typing.Any] = {"observation_dim": observation_dim, "action_dim": action_dim}
        data |= {"max_timestep": horizon, "discrete": discrete}
        network = replace(self.network, mixer=self.mixer, **data)
        if AGENTS[self.agent].conditioned:
            return network
        return replace(network, return_conditioned=False, max_return_estimate=False)

    @property
    def mixer(self) -> str:
        return AGENTS[self.agent].mixer

    @property
    def constant_state(self) -> bool:
        """Whether the state of the mixer has a constant size, which truncated BPTT can carry."""
        from ..agents import MIXERS

        return MIXERS[self.mixer].constant_state and not self.keeps_values

    @property
    def keeps_values(self) -> bool:
        """Whether powers of the recurrence encoding keep the values of as many tokens."""
        return self.mixer == "aaren-rsa" and bool(self.network.rem_max_power)


SECTIONS = {"data": DataConfig, "network": ModelConfig, "optimizer": OptimizerConfig, "evaluation": EvaluationConfig}
RUN = ("agent", "seed")  # settings outside the sections
# Every setting by its name, which is unique across sections: its section and its field.
SETTINGS = {
    item.name: (section, item) for section, cls in SECTIONS.items() for item in fields(cls) if "help" in item.metadata
}
