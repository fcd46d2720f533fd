"""Train an agent offline, on logs of your own or on a MuJoCo task, score it while
it trains, and save the policy.

  aaren-rl train --env hopper-medium                # a few minutes
  aaren-rl train --source mine.hdf5                 # your logs, no simulator
  aaren-rl train --env-id MyEnv-v0 --register my_package --source mine.hdf5
  aaren-rl train --env hopper-medium --agent decision-transformer
  aaren-rl train --env hopper-medium --resume --updates 2000
  tensorboard --logdir runs                         # compare all runs

The dataset is D4RL's file if it is in ~/.d4rl/datasets (or $D4RL_DATASET_DIR). Otherwise it is a local dataset, made
on first use. The policy is saved in <out>/<env>/<agent>/seed<N>/ for aaren-rl evaluate. Exit codes: 2 usage,
3 data, 4 checkpoint, 5 environment, 6 numerics, 7 resources, 130 or 143 after Ctrl-C or SIGTERM, which save first.
"""

# What a run is: a tree of frozen dataclasses, whose settings have a name each. The command line and config.yaml are
# built from the settings; `train_policy` and a sweep ask for runs by the same `Request`. Defaults are the recipe of
# Decision-Aaren; `Agent.settings` and presets.yaml differ.

import argparse
import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import yaml

from ..agents.model.config import ModelConfig
from ..base import fields
from ..base.errors import UsageError, did_you_mean, one_line
from ..base.fields import AUTO, CONTEXT, COUNT, RETURN, RETURN_SCALE, SEED, Range, read, setting
from ..base.files import read_small
from ..cli import Parser, import_registering, run, target_return
from ..envs.load import default_name, expand, is_own, task_name
from ..envs.tasks.table import env_kwargs, find_task
from ..policies.card import DRAWN, ROLLOUTS
from ..policies.table import AGENTS

CONTEXTS = ("window", "episode", "mixed", "tbptt")  # of training
OnLog = Callable[[int, dict[str, float]], object]  # arguments: gradient step, logged values by tag
Texts = str | list[str]  # one or several
D4RL_SCALE = 1000.0  # of returns-to-go, as in Decision Transformer


def _check(section: object, **choices: typing.Iterable[str]) -> None:
    fields.check_limits(section)
    for name, allowed in choices.items():
        if (value := getattr(section, name)) not in allowed:
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")


@dataclass(frozen=True)
class DataConfig:
    """The training data and how it is cut into contexts."""

    env: str = setting("hopper-medium", "task: {halfcheetah,hopper,walker2d,ant}-{random,medium,...}, tmaze, ...")
    source: Texts = setting("auto", "auto, d4rl, local, minari[:ID], HDF5, .npz, CSV, parquet files; several: one set")
    env_id: str | None = setting(None, "your own Gymnasium environment, for --source; --env then names the data")
    env_kwargs: str | None = setting(None, "arguments of your own environment, as a JSON object")
    ref_min_score: float | None = setting(None, "return that scores 0, with --env-id", RETURN)
    ref_max_score: float | None = setting(None, "return that scores 100, with --env-id", RETURN)
    context: str = setting("auto", "training contexts: auto, window, episode, mixed or tbptt")
    context_length: int = setting(20, "steps of a training window", CONTEXT)
    tbptt_length: int = setting(40, "steps per segment of a gradient step, with truncated BPTT", CONTEXT)
    tbptt_windows: float = setting(0.5, "with truncated BPTT: share of segments that begin anywhere", fields.BELOW_1)
    steps_per_update: int = setting(1280, "environment steps per gradient step (64 windows of 20)", COUNT)
    return_scale: float | None = setting(None, "divisor of returns-to-go (default: 1000, or by own data)", RETURN_SCALE)
    clip_actions: bool = setting(False, "clip actions of the data to the environment's bounds, instead of an error")
    max_episode_steps: int | None = setting(None, "end the episodes of a file, and of --env-id, after N steps", COUNT)
    actions: str | None = setting(None, "discrete or continuous, where a file's actions do not tell")
    columns: Texts = setting("", "entries of a file with names of your own: observations=x,y actions=u")
    observation_keys: Texts = setting("", "parts of observations that are dicts to use, in data and environment")
    local_steps: int | None = setting(None, "steps of a local dataset (default: 200,000)", COUNT)
    held_out: float = setting(0.05, "fraction of episodes held out to measure the action error", fields.HALF)
    start_from: str | None = setting(None, "initial weights and normalization: a run or policy folder")
    draws: str = setting("return", "episodes trained on: return (the higher, the more often), best (only), or uniform")
    draw_share: float = setting(0.2, "effective share of episodes drawn (10 percent BC: best, 0.1)", fields.SOME)

    def __post_init__(self) -> None:
        _check(self, context=(AUTO, *CONTEXTS), draws=DRAWN)
        if (self.ref_min_score is None) != (self.ref_max_score is None):
            raise ValueError("ref_min_score, ref_max_score: give both or none")
        env_kwargs(self.env_kwargs)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, or Muon for the trunk matrices and AdamW for the rest; warm-up; EMA weights."""

    updates: int = setting(1600, "gradient steps", COUNT)
    optimizer: str = setting("muon", "adamw, or muon: Muon for the matrices of the trunk, AdamW for the rest")
    learning_rate: float = setting(3e-3, "peak learning rate of AdamW", fields.POSITIVE)
    muon_learning_rate: float = setting(1e-2, "peak learning rate of Muon; steps match AdamW's", fields.POSITIVE)
    lr_schedule: str = setting("cosine", "learning rate after the warm-up: constant, or cosine decay to zero")
    warmup_updates: int = setting(100, "gradient steps of linear warm-up", fields.COUNT_FROM_0)
    weight_decay: float = setting(1e-4, "AdamW weight decay", fields.FROM_0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", fields.POSITIVE)
    ema_decay: float = setting(0.999, "decay of the EMA weights per gradient step", fields.BELOW_1)
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
_network = partial(ModelConfig, 1, 1, dropout=0.1, forget_gate=True, timestep_embedding=False, max_return_estimate=True)


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
        self.model(1, 1, 1)  # its mixer is the agent's, which the network's settings must fit
        able = self.network.max_return_estimate and AGENTS[self.agent].conditioned
        if self.evaluation.target_return == AUTO and not able:
            raise ValueError("target_return: auto needs max_return_estimate and an agent conditioned on returns")
        if self.data.context == "tbptt" and not self.constant_state:
            raise ValueError(
                f"context: tbptt requires a recurrent agent (without --rem-max-power), not {self.agent}; use window"
            )

    def model(self, observation_dim: int, action_dim: int, horizon: int, *, discrete: bool = False) -> ModelConfig:
        """The model configuration for an environment."""
        sizes: dict[str, Any] = {"observation_dim": observation_dim, "action_dim": action_dim, "max_timestep": horizon}
        agent = AGENTS[self.agent]
        if not agent.conditioned:
            sizes |= {"return_conditioned": False, "max_return_estimate": False}
        return replace(self.network, mixer=agent.mixer, discrete=discrete, **sizes)

    @property
    def constant_state(self) -> bool:
        """Whether the state of the mixer has a constant size, which truncated BPTT can carry."""
        import torch

        from ..agents.model.decision import DecisionModel

        with torch.device("meta"):
            return DecisionModel(self.model(1, 1, 1)).trunk.mixer.constant_state


SECTIONS = {"data": DataConfig, "network": ModelConfig, "optimizer": OptimizerConfig, "evaluation": EvaluationConfig}
RUN = ("agent", "seed")  # settings outside the sections
# Every setting by its name, which is unique across sections: its section and its field.
SETTINGS = {
    item.name: (section, item)
    for section, cls in SECTIONS.items()
    for item in dataclasses.fields(cls)
    if "help" in item.metadata
}


def make_config(given: Mapping[str, Any], preset: str = "default") -> RunConfig:
    """Build the configuration with these settings. For any other setting, the first of these that has it counts: the
    initial policy, the preset for the agent ("default" has the agent's own), the built-in task, the defaults.

    Raises UsageError as `build_config` or for an unknown preset, CheckpointError for an unreadable initial policy.
    """
    settings = dict(given)
    if given.get("start_from") is not None:
        from ..policies.folder import read_card

        card = read_card(given["start_from"])
        network = {name: value for name, value in card.model.items() if name in SETTINGS}
        settings = {"agent": card.agent, "return_scale": card.return_scale, **network, **given}
    agent = settings.get("agent", RunConfig.agent)
    task = find_task(settings.get("env", ""))
    of_task = {} if task is None else {"return_scale": D4RL_SCALE, **getattr(task, "settings", {})}
    settings = {**preset_settings("default", agent), **of_task, **preset_settings(preset, agent), **settings}
    # K of the rollout follows the length of the windows of --context window, unless it is given.
    if "rollout_context" not in given and settings.get("context") == "window":
        settings["rollout_context"] = settings.get("context_length", DataConfig.context_length)
    return build_config(settings)


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build the configuration with these settings and defaults for the others.

    Raises UsageError with the name of a setting that is unknown, of the wrong type or out of range.
    """
    tree = dataclasses.asdict(RunConfig())
    for name, value in settings.items():
        if name not in (*RUN, *SETTINGS):
            raise UsageError(f"{name}: unknown setting{did_you_mean(name, SETTINGS)}")
        (tree if name in RUN else tree[SETTINGS[name][0]])[name] = value
    try:
        return read(RunConfig, tree)
    except ValueError as error:
        raise UsageError(f"configuration: {error}") from error


def preset_settings(preset: str, agent: str) -> dict[str, Any]:
    """The settings of a preset for an agent. Raises UsageError for an unknown preset."""
    known = presets()
    if preset not in known:
        raise UsageError(f"preset {preset!r} is not one of {', '.join(known)}")
    return {**known[preset].get("all", {}), **known[preset].get(agent, {})}


def presets() -> dict[str, dict[str, dict[str, Any]]]:
    """The presets of the package: for each, settings by agent or under "all". "default" has the agents' own."""
    return {"default": {agent.name: dict(agent.settings) for agent in AGENTS.values()}, **_presets_of_file()}


@cache
def _presets_of_file() -> dict[str, Any]:
    text = resources.files("aaren_rl.configs").joinpath("presets.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All settings by name."""
    own = {name: getattr(config, name) for name in RUN}
    return own | {name: getattr(getattr(config, section), name) for name, (section, _) in SETTINGS.items()}


def to_yaml(config: RunConfig) -> str:
    """All settings in sections, as in config.yaml."""
    settings = settings_of(config)
    tree: dict[str, Any] = {name: settings[name] for name in RUN}
    for name, (section, _) in SETTINGS.items():
        tree.setdefault(section, {})[name] = settings[name]
    return yaml.safe_dump(tree, sort_keys=False)


def read_settings(file: str | Path) -> dict[str, Any]:
    """Read settings by name from a config.yaml of a run, or from a part of one.

    Raises UsageError if they are not readable, not YAML or not settings. Nothing in the file is executed.
    """
    try:
        given: dict[str, Any] = {}
        tree = yaml.load(read_small(Path(file)), UniqueKeys)
        if not isinstance(tree, dict):
            raise ValueError("settings must be in sections, as in the config.yaml of a run")
        for section, value in tree.items():
            if section in RUN:
                given[section] = value
                continue
            if section not in SECTIONS or not isinstance(value, dict):
                raise UsageError(f"{section}: not a section with settings; sections are {', '.join(SECTIONS)}")
            if unknown := [name for name in value if SETTINGS.get(name, ("",))[0] != section]:
                raise UsageError(f"{section}: unknown key {unknown[0]}")
            given |= value
        found = settings_of(build_config(given))  # checks all types; 1e-3, a text in YAML, becomes a number
    # YAML numbers and dates can raise ValueError too, a key that cannot be one TypeError.
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError, UsageError) as error:
        raise UsageError(f"--config {file}: {one_line(error, 300)}") from error
    return {name: found[name] for name in given}


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.YAMLError(f"key {twice} stands twice")
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> RunConfig:
    """The configuration that a run was started with (config.yaml). Raises the errors of `read_settings`."""
    return build_config(read_settings(path))


def differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Requested settings that differ from those of a run, by name: "network.width (run: 16, requested: 32)"."""
    differing = {name: value for name, value in asked.items() if there[name] != value}
    full = {name: f"{SETTINGS[name][0]}.{name}" if name in SETTINGS else name for name in differing}
    return [f"{full[name]} (run: {there[name]}, requested: {value})" for name, value in differing.items()]


@dataclass(frozen=True)
class Request:
    """A training run as a command line or `train_policy` asks for it, which documents the fields."""

    typed: Mapping[str, Any]  # settings by name, given one by one; they override the file `config_file`
    config_file: str | Path | None = None
    preset: str = "default"
    register: str | None = None
    out: Path = Path("runs")
    device: str = "auto"
    threads: int | None = field(default=None, metadata={"limits": fields.THREADS})
    resume: bool = False
    save_every: int | None = field(default=None, metadata={"limits": COUNT})
    on_log: OnLog | None = None
    memory_map: bool = False

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        try:
            for name in ("preset", "device", "register", "threads", "save_every"):
                fields.check_type(getattr(self, name), hints[name], name)
            for name in ("env", "agent", "env_id", "start_from", "source"):  # used before the configuration is built
                fields.check_type(self.typed.get(name), Texts | None if name == "source" else str | None, name)
            fields.check_limits(self)
            if self.on_log is not None and not callable(self.on_log):
                raise ValueError(f"on_log: {self.on_log!r} is not a function")
        except ValueError as error:
            raise UsageError(str(error)) from error

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All given settings. Raises the errors of `import_registering` and `read_settings`."""
        import_registering(self.register)  # agents, too
        given = {} if self.config_file is None else read_settings(self.config_file)
        if "agent" in given:  # the file of a run, which sets what another agent or a preset would
            if self.typed.get("agent", given["agent"]) != given["agent"]:
                raise UsageError(f"--agent {self.typed['agent']}: --config has the settings of {given['agent']}")
            if self.preset != "default":
                raise UsageError(f"--preset {self.preset}: --config has all settings of a run")
        settings = {**given, **self.typed}
        return {**settings, "source": expand(settings["source"])} if "source" in settings else settings

    @cached_property
    def given(self) -> dict[str, Any]:
        """All given settings with a task name, which custom datasets may omit. Raises UsageError if it is missing."""
        settings = self.settings
        source, env_id = settings.get("source", "auto"), settings.get("env_id")
        if "env" not in settings and not is_own(source, env_id, default_name(source)):
            raise UsageError("--env is missing, for example --env hopper-medium")
        named = {"env": default_name(source), **settings}
        task_name(named["env"], source, env_id)
        return named

    @cached_property
    def config(self) -> RunConfig:
        """The complete configuration. Raises the errors of `given` and of `make_config`."""
        return make_config(self.given, self.preset)

    @cached_property
    def folder(self) -> Path:
        """The folder of the run, <out>/<task>/<agent>/seed<k>. Raises the errors of `config`."""
        config, data = self.config, self.config.data
        return self.out / task_name(data.env, data.source, data.env_id) / config.agent / f"seed{config.seed}"


# Settings that --help lists.
SHOWN = {"start_from", "env", "source", "env_id", "context", "rollout", "target_return", "updates"}


def make_parser(defaults: RunConfig | None = None, preset: str = "default") -> Parser:
    """The command line. Its help lists every setting if `defaults` of a preset are given."""
    parser = Parser("train", __doc__, "[--env NAME] [--source FILE] [options]")
    if defaults is not None:
        parser.epilog = f"In brackets: the values of {defaults.agent} in the preset {preset}."
    add = parser.add_argument
    add("--config", metavar="FILE", help="settings: the config.yaml of a run, or a part of one")
    _add_settings(parser, defaults)
    add("--agent", metavar="NAME", default=argparse.SUPPRESS, help=f"{', '.join(AGENTS)} [first]")
    add("--preset", metavar="NAME", default="default", help=f"default settings: {' or '.join(presets())}")
    seed = "training seed [0, or that of --config]"
    add("--seed", type=SEED.integer, metavar="N", default=argparse.SUPPRESS, help=seed)
    add("--out", type=Path, metavar="DIR", default=Path("runs"), help="parent folder of runs [runs]")
    add("--threads", type=fields.THREADS.integer, metavar="N", help="CPU threads (default: all cores)")
    resumed = "resume this run; a larger --updates extends it, --source NEW is where the same data are now"
    add("--resume", action="store_true", help=resumed)
    add("--memory-map", action="store_true", help="map a file from the disk, as where memory is short")
    add("--save-every", type=COUNT.integer, metavar="N", help="also save a checkpoint every N gradient steps")
    parser.add_shared(device="auto")
    add("--help-all", action="store_true", help="list every setting, with its default")
    return parser


def _add_settings(parser: argparse.ArgumentParser, defaults: RunConfig | None) -> None:
    values = {} if defaults is None else settings_of(defaults)
    brief = {name: SETTINGS[name][1].default for name in ("context", "updates")}  # a model's settings import torch
    groups = {name: parser.add_argument_group(name) if values else parser for name in SECTIONS}
    hints = {name: typing.get_type_hints(cls) for name, cls in SECTIONS.items()}
    for name, (section, item) in SETTINGS.items():
        default = (values or brief).get(name)
        text = item.metadata["help"] + ("" if default is None else f" [{default}]")
        hint = hints[section][name]
        options = _typed(typing.get_args(hint) or (hint,), item.metadata["limits"])
        flags = ["--from"] if name == "start_from" else []  # names that cannot be Python fields
        flags.append(f"--{name.replace('_', '-')}")
        shown = text if values or name in SHOWN else argparse.SUPPRESS
        groups[section].add_argument(*flags, dest=name, help=shown, default=argparse.SUPPRESS, **options)


def _typed(kinds: tuple[Any, ...], limits: Range | None) -> dict[str, Any]:
    if list[str] in kinds:
        return {"metavar": "S", "nargs": "+", "action": "extend"}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if limits is None:
        return {"metavar": "NAME"}
    if int in kinds:
        return {"type": limits.integer, "metavar": "N"}
    return {"type": target_return if str in kinds else limits.number, "metavar": "X"}


def make_request(arguments: argparse.Namespace) -> Request:
    """The run that a command line asks for."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if len(given.get("source", ())) == 1:
        (given["source"],) = given["source"]
    typed = {name: value for name, value in given.items() if name in SETTINGS or name in RUN}
    others = {item.name: given[item.name] for item in dataclasses.fields(Request) if item.name in given}
    return Request(typed, config_file=given.get("config"), **others)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), _train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.help_all:
        agent, preset = getattr(arguments, "agent", RunConfig.agent), arguments.preset
        print(make_parser(make_config({"agent": agent}, preset), preset).format_help(), end="")
        return 0
    # By name, now that the command line is right: it takes seconds, and stands on this module.
    return int(import_module(f"{__package__}.run").train(make_request(arguments)))
