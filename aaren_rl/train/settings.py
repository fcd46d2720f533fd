"""A configuration from YAML and the command line, and back to plain values."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ..errors import UsageError, one_line
from ..files import read_small
from ..ranges import Range
from ..typed import read
from .config import SECTIONS, RunConfig

Nested = dict[str, dict[str, Any]]


def preset_names() -> list[str]:
    """The presets that ship with the package."""
    files = resources.files("aaren_rl.configs").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_preset(preset: str, agent: str) -> Nested:
    """The sections of a preset for an agent: those under `all`, then the agent's own on top.

    Raises:
        UsageError: no such preset.
    """
    if preset not in preset_names():
        raise UsageError(f"preset {preset!r} is not one of {', '.join(preset_names())}")
    text = resources.files("aaren_rl.configs").joinpath(f"{preset}.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    return override(tree.get("all", {}), tree.get(agent, {}))


def override(sections: Nested, given: Nested) -> Nested:
    """`sections` with the values of `given` on top."""
    return {name: {**sections.get(name, {}), **given.get(name, {})} for name in (*sections, *given)}


def build_config(agent: str, seed: int, sections: Nested) -> RunConfig:
    """A configuration from plain values.

    Raises:
        UsageError: an unknown section or key, a value of the wrong type or out of range; the message names it.
    """
    if unknown := set(sections) - set(SECTIONS):
        raise UsageError(f"configuration: unknown section {', '.join(sorted(unknown))}")
    try:
        return read(RunConfig, {"agent": agent, "seed": seed, **sections})
    except ValueError as error:
        raise UsageError(f"configuration: {error}") from error


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values, as config.yaml holds them."""
    return dataclasses.asdict(config)


def from_dict(tree: Any) -> RunConfig:  # noqa: ANN401  read from a file
    """The inverse of `to_dict`.

    Raises:
        UsageError: unknown or missing keys, or values that do not fit.
    """
    if not isinstance(tree, dict) or not isinstance(tree.get("agent"), str) or type(tree.get("seed")) is not int:
        raise UsageError("configuration: needs agent (text), seed (integer) and the sections")
    return build_config(tree["agent"], tree["seed"], {k: v for k, v in tree.items() if k not in ("agent", "seed")})


def read_config(path: Path) -> RunConfig:
    """The configuration a run was started with (config.yaml).

    Raises:
        UsageError: not YAML, or not a configuration; nothing in the file is executed.
    """
    try:
        return from_dict(yaml.safe_load(read_small(path)))
    # ValueError: of YAML's numbers and dates too.
    except (OSError, ValueError, RecursionError, yaml.YAMLError, UsageError) as error:
        raise UsageError(f"{path}: {one_line(error, 300)}") from error


def read_settings(path: Path) -> tuple[dict[str, Any], Nested]:
    """A run's config.yaml, or a part of one: agent and seed where they are there, and sections.

    Raises:
        UsageError: not readable, not YAML, or of other keys.
    """
    try:
        tree = yaml.safe_load(read_small(path))
        if not isinstance(tree, dict) or not all(isinstance(tree.get(name, {}), dict) for name in SECTIONS):
            raise UsageError("needs settings in sections, as a run's config.yaml has them")
        if unknown := [name for name in tree if name not in ("agent", "seed", *SECTIONS)]:
            raise UsageError(f"unknown section {', '.join(map(repr, unknown))}; known: {', '.join(SECTIONS)}")
        # The types of all: what is not given has its default.
        from_dict({"agent": "decision-aaren", "seed": 0, **tree})
    except (OSError, ValueError, RecursionError, yaml.YAMLError, UsageError) as error:
        raise UsageError(f"--config {path}: {one_line(error, 300)}") from error
    named = {name: tree[name] for name in ("agent", "seed") if name in tree}
    return named, {name: dict(tree[name]) for name in SECTIONS if name in tree}


def add_settings(parser: argparse.ArgumentParser, shown: set[str], *, defaults: RunConfig | None = None) -> None:
    """Adds an option for every field of every section; those not in `shown` are listed with `defaults` only."""
    show_all = defaults is not None
    for name, cls in SECTIONS.items():
        group = parser.add_argument_group(name if show_all else "settings") if show_all else parser
        hints = typing.get_type_hints(cls)
        for item in dataclasses.fields(cls):
            text = item.metadata["help"]
            if defaults is not None:
                text += f" [{getattr(getattr(defaults, name), item.name)}]"
            visible = show_all or item.name in shown
            options: dict[str, Any] = {"help": text if visible else argparse.SUPPRESS, "default": argparse.SUPPRESS}
            kinds = typing.get_args(hints[item.name]) or (hints[item.name],)
            if bool in kinds:
                options["action"] = argparse.BooleanOptionalAction
            elif {float, str} <= set(kinds):
                options |= {"type": partial(_number_or_word, item.metadata["limits"]), "metavar": "X"}
            else:
                limits = item.metadata["limits"]
                read_as = {int: limits and limits.integer, float: limits and limits.number, str: str}
                options |= {"type": read_as[kinds[0]], "metavar": {int: "N", float: "X", str: "NAME"}[kinds[0]]}
            other = ["--from"] if item.name == "start_from" else []  # which Python could not call a field
            group.add_argument(*other, f"--{item.name.replace('_', '-')}", dest=f"{name}.{item.name}", **options)


def _number_or_word(limits: Range, text: str) -> float | str:
    try:
        float(text)
    except ValueError:
        return text
    return limits.number(text)


def given_settings(arguments: argparse.Namespace) -> Nested:
    """The settings that stood on the command line, by section."""
    nested: Nested = {}
    for key, value in vars(arguments).items():
        section, dot, name = key.partition(".")
        if dot:
            nested.setdefault(section, {})[name] = value
    return nested


def differences(there: dict[str, Any], asked: dict[str, Any], section: str = "") -> list[str]:
    """Where two nested configurations differ, of the keys asked for: "network.width (run: 16, asked: 32)"."""
    found = []
    for key, value in asked.items():
        if isinstance(value, dict):
            found += differences(there[key], value, f"{section}{key}.")
        elif there[key] != value:
            found.append(f"{section}{key} (run: {there[key]}, asked: {value})")
    return found
