"""Settings by name, from a command line, YAML or Python, and the function that builds a configuration from them.

It does not import torch: commands that do not need torch use it.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ..base.entry import did_you_mean
from ..base.errors import UsageError, one_line
from ..base.files import read_small
from ..base.json_dataclass import check_type, read
from ..base.ranges import COUNT, THREADS, check_limits
from ..cli import import_registering
from ..envs import find_task, is_own, task_name
from ..envs.load import default_name, expand
from ..policies.names import AGENTS
from .config import RUN, SECTIONS, SETTINGS, DataConfig, RunConfig

D4RL_SCALE = 1000.0  # of returns-to-go, as in Decision Transformer
OnLog = Callable[[int, dict[str, float]], object]  # arguments: gradient step, logged values by tag


def make_config(given: Mapping[str, Any], preset: str = "default") -> RunConfig:
    """Build the configuration with these settings. For any other setting, the first of these that has it counts: the
    initial policy, the preset for the agent, the built-in task, the preset "default", the defaults.

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
    of_agent = preset_settings("default", agent)
    # The best tenth is what 10 % BC is.
    drawn: dict[str, Any] = {name: of_agent[name] for name in ("draws", "draw_share") if name in of_agent}
    settings = {**of_agent, **of_task, **drawn, **preset_settings(preset, agent), **settings}
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
    return {"default": {agent.name: dict(agent.settings) for agent in AGENTS.values()}, **_shipped_presets()}


@cache  # a sweep asks for every run
def _shipped_presets() -> dict[str, dict[str, dict[str, Any]]]:
    text = resources.files("aaren_rl.configs").joinpath("presets.yaml").read_text(encoding="utf-8")
    shipped: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return shipped


def run_folder(config: RunConfig, out: Path) -> Path:
    """The folder of a run: <out>/<task>/<agent>/seed<k>."""
    data = config.data
    return out / task_name(data.env, data.source, data.env_id) / config.agent / f"seed{config.seed}"


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values in sections, as in config.yaml."""
    tree: dict[str, Any] = {"agent": config.agent, "seed": config.seed, **{name: {} for name in SECTIONS}}
    for name, (section, _) in SETTINGS.items():
        tree[section][name] = getattr(getattr(config, section), name)
    return tree


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All settings by name."""
    return _by_name(to_dict(config))


def _by_name(tree: Any) -> dict[str, Any]:  # noqa: ANN401  read from a file
    if not isinstance(tree, dict) or not all(isinstance(tree.get(name, {}), dict) for name in SECTIONS):
        raise UsageError("settings must be in sections, as in the config.yaml of a run")
    given = {name: tree[name] for name in RUN if name in tree}
    for section in tree.keys() - RUN:
        if section not in SECTIONS:
            raise UsageError(f"unknown section {section}; known: {', '.join(SECTIONS)}")
        for name in tree[section]:
            if name not in SETTINGS or SETTINGS[name][0] != section:
                raise UsageError(f"{section}: unknown key {name}")
        given |= tree[section]
    return given


def read_settings(file: str | Path) -> dict[str, Any]:
    """Read settings from a config.yaml of a run, or from a part of one.

    Raises UsageError if they are not readable, not YAML or not settings. Nothing in the file is executed.
    """
    try:
        given = _by_name(yaml.safe_load(read_small(Path(file))))
        read = settings_of(build_config(given))  # checks all types; 1e-3, a text in YAML, becomes a number
    # YAML numbers and dates can raise ValueError too.
    except (OSError, ValueError, RecursionError, yaml.YAMLError, UsageError) as error:
        raise UsageError(f"--config {file}: {one_line(error, 300)}") from error
    return {name: read[name] for name in given}


def read_config(path: Path) -> RunConfig:
    """The configuration that a run was started with (config.yaml). Raises the errors of `read_settings`."""
    return build_config(read_settings(path))


def differences(there: RunConfig, asked: Mapping[str, Any]) -> list[str]:
    """Requested settings that differ from a configuration: "network.width (run: 16, requested: 32)"."""
    settings = settings_of(there)
    differing = {name: value for name, value in asked.items() if settings[name] != value}
    full = {name: f"{SETTINGS[name][0]}.{name}" if name in SETTINGS else name for name in differing}
    return [f"{full[name]} (run: {settings[name]}, requested: {value})" for name, value in differing.items()]


@dataclass(frozen=True)
class Request:
    """A training run as a command line or `train_policy` asks for it, which documents the fields."""

    typed: Mapping[str, Any]  # settings by name, given one by one; they override the file `config_file`
    config_file: str | Path | None = None
    preset: str = "default"
    register: str | None = None
    out: Path = Path("runs")
    device: str = "auto"
    threads: int | None = field(default=None, metadata={"limits": THREADS})
    resume: bool = False
    save_every: int | None = field(default=None, metadata={"limits": COUNT})
    on_log: OnLog | None = None
    memory_map: bool = False

    def __post_init__(self) -> None:
        if self.on_log is not None and not callable(self.on_log):
            raise UsageError(f"on_log: must be a function, not {self.on_log!r}")
        try:
            hints = typing.get_type_hints(type(self))
            for name in ("preset", "device", "register", "threads", "save_every"):
                check_type(getattr(self, name), hints[name], name)
            for name in ("env", "agent", "env_id", "start_from", "source"):  # used before the configuration is built
                check_type(self.typed.get(name), str | list[str] | None if name == "source" else str | None, name)
            check_limits(self)
        except ValueError as error:
            raise UsageError(str(error)) from error

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All given settings. Raises the errors of `import_registering` and `read_settings`."""
        import_registering(self.register)
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
        """The folder of the run. Raises the errors of `config`."""
        return run_folder(self.config, self.out)
