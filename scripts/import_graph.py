"""Which module of the package imports which, read from the files: nothing is imported.

A module goes by the name that it is installed under, `aaren_rl.agents.scan.prefix`. Imports count at any depth: in
function bodies, and those that only type checkers see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, MAPPED = "aaren_rl", ("agents", "envs")  # folders that install inside the package


class Import(NamedTuple):
    """One name that is imported: the module after the dots, leading dots, and the name; "" of `import module`."""

    module: str
    level: int
    name: str


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, 0, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (Import(node.module or "", node.level, alias.name) for alias in node.names)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module's file by its name; a package's is its `__init__`."""
    found = {}
    for folder in (*MAPPED, PACKAGE):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(parts if folder == PACKAGE else (PACKAGE, *parts))] = path
    return found


def graph(root: Path = ROOT, *, homes: bool = False) -> nx.DiGraph:
    """An edge from each module to those it imports by name.

    Args:
        root: the checkout.
        homes: a package's re-exports are followed to the modules that they come from.
    """
    files = modules(root)
    edges = [
        (module, item.name, target)
        for module, path in files.items()
        for item in imports(ast.parse(path.read_text(encoding="utf-8")))
        if (target := _target(item, module, path.name == "__init__.py", files)) is not None
    ]
    exported = {(module, name): target for module, name, target in edges if files[module].name == "__init__.py"}
    found = nx.DiGraph()
    found.add_nodes_from(files)
    for module, name, target in edges:
        while homes and (target, name) in exported:
            target = exported[target, name]
        if target != module:
            found.add_edge(module, target)
    return found


def _target(item: Import, module: str, is_package: bool, files: dict[str, Path]) -> str | None:
    base = item.module
    if item.level:
        package = module.split(".") if is_package else module.split(".")[:-1]
        base = ".".join([*package[: len(package) - item.level + 1], *([base] if base else [])])
    return next((name for name in (f"{base}.{item.name}", base) if name in files), None)


def circles(found: nx.DiGraph) -> list[tuple[str, ...]]:
    """The sets of modules that import one another, in a circle of any length."""
    return sorted(tuple(sorted(part)) for part in nx.strongly_connected_components(found) if len(part) > 1)
