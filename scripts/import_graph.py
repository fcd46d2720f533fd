"""Which module of the package imports which, read from the files: nothing is imported.

A module goes by the name that it is installed under, `aaren_rl.agents.scan.prefix`. Imports count at any depth: in
function bodies, and those that only type checkers see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, MAPPED = "aaren_rl", ("agents", "envs")  # folders that install inside the package

Graph: TypeAlias = dict[str, set[str]]


class Import(NamedTuple):
    """One import as it is written.

    Attributes:
        module: after the dots.
        level: leading dots.
        names: what is taken from it; none of `import module`.
        typing_only: whether only type checkers see it.
    """

    module: str
    level: int
    names: tuple[str, ...]
    typing_only: bool


def imports(node: ast.AST, typing_only: bool = False) -> Iterator[Import]:
    """Every import below a node."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, 0, (), typing_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield Import(node.module or "", node.level, tuple(alias.name for alias in node.names), typing_only)
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from imports(child, True)
        for child in node.orelse:
            yield from imports(child, typing_only)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imports(child, typing_only)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module's file by its name; a package's is its `__init__`."""
    found = {}
    for folder in (*MAPPED, PACKAGE):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(parts if folder == PACKAGE else (PACKAGE, *parts))] = path
    return found


def graph(root: Path = ROOT) -> Graph:
    """The modules that each module imports by name; their packages, which Python imports first, do not count."""
    files = modules(root)
    return {
        name: {target for item in _read(path) for target in _targets(item, name, path, files)} - {name}
        for name, path in files.items()
    }


def homes(root: Path = ROOT) -> Graph:
    """`graph`, with a package's re-exports followed to the modules that they come from."""
    files = modules(root)
    doors = {name: path for name, path in files.items() if path.name == "__init__.py"}
    taken = ((door, item, name) for door, path in doors.items() for item in _read(path) for name in item.names)
    bound = {
        (door, name): target
        for door, item, name in taken
        for target in _targets(item._replace(names=(name,)), door, files[door], files)
    }
    found: Graph = {}
    for module, path in files.items():
        found[module] = set()
        for item in _read(path):
            for name in item.names or ("",):
                for target in _targets(item._replace(names=(name,) if name else ()), module, path, files):
                    while (target, name) in bound:
                        target = bound[target, name]
                    found[module].add(target)
        found[module].discard(module)
    return found


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """The sets of modules that import one another, in a circle of any length."""
    reached = {module: reachable(graph, module) for module in graph}
    return sorted({tuple(sorted(m for m in reached[a] if a in reached[m])) for a in graph if a in reached[a]})


def _read(path: Path) -> list[Import]:
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def _targets(item: Import, module: str, path: Path, files: dict[str, Path]) -> set[str]:
    """The package's modules that one import names."""
    base = item.module
    if item.level:
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        base = ".".join([*package[: len(package) - item.level + 1], *([base] if base else [])])
    named = {f"{base}.{name}" if f"{base}.{name}" in files else base for name in item.names} or {base}
    return {target for target in named if target in files}


def reachable(graph: Graph, start: str) -> set[str]:
    """What a module imports, and what that imports, and so on."""
    found: set[str] = set()
    new = graph[start]
    while new:
        found |= new
        new = set().union(*(graph[module] for module in new)) - found
    return found
