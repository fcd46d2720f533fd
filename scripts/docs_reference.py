"""The reference pages, made of the code: `<!-- api: MODULE ... -->` and `<!-- commands -->` in a page.

The first becomes the public names of modules (`__all__`), one heading each, the second the --help of every command.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator

from aaren_rl.__main__ import COMMANDS, module_of

API = re.compile(r"<!-- api: ([\w. ]+) -->")
ALL = "<!-- commands -->"


def fill(markdown: str) -> str:
    """A page with what mkdocstrings and docs_hooks.py fill in further."""
    headings = "\n\n".join(f"{'##' + '#' * name.count(' ')} {name}\n\n<!-- help: {name} -->" for name in commands())
    names = API.sub(lambda found: "\n\n".join(f"::: {name}" for name in api(found[1].split())), markdown)
    return names.replace(ALL, headings)


def commands() -> Iterator[str]:
    """The names of all commands, as their modules have them, each before its own commands."""
    for command in COMMANDS:
        yield command.replace("-", "_")
        if command == "datasets":
            actions = importlib.import_module(module_of(command)).make_parser()._actions
            choices = next(action.choices for action in actions if isinstance(action.choices, dict))
            yield from (f"datasets {name}" for name in choices)


def api(modules: list[str]) -> list[str]:
    """Where the public names of modules are defined, each once. Errors are those of the module of errors alone."""
    found = {}
    for module in map(importlib.import_module, modules):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        own = [name for name in classes if vars(module)[name].__module__ == module.__name__]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            error = inspect.isclass(value) and issubclass(value, Exception)
            if not name.startswith("__") and (not error or module.__name__.endswith("errors")):
                found[home(name, value)] = None
    return list(found)


def home(name: str, value: object) -> str:
    """The dotted name of the place where a value is defined."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    for module in [module for path, module in sys.modules.items() if path.startswith("aaren_rl.")]:
        if vars(module).get(name) is value and re.search(rf"^{name}\b.*=", inspect.getsource(module), re.MULTILINE):
            return f"{module.__name__}.{name}"
    raise LookupError(f"{name}: no module of aaren_rl defines it")
