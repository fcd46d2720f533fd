"""Who may import whom: aaren_rl imports agents and envs; those two import neither each other nor aaren_rl."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT

KERNELS = {  # imported on first use
    Path("agents/kernels/compiling/bfloat16.py"): {"numba", "numpy"},
    Path("agents/kernels/compiling/decorators.py"): {"numba"},
    Path("agents/kernels/scan_numba.py"): {"numba", "numpy"},
    Path("agents/kernels/token_embedding.py"): {"numpy"},
    Path("agents/kernels/step_encoding.py"): {"numpy"},  # comes with numba
    Path("agents/kernels/gelu.py"): {"numpy"},
    Path("agents/kernels/scan_triton.py"): {"triton"},
    Path("agents/kernels/residual_norm.py"): {"numba", "numpy"},
    Path("agents/kernels/aaren_scores.py"): {"numpy"},
    Path("agents/kernels/step.py"): {"numpy"},
    Path("agents/kernels/compiling/openmp.py"): {"llvmlite", "numba"},  # llvmlite comes with numba
    Path("agents/kernels/tree_attention.py"): {"numpy"},
}
MAPPED = {"agents", "envs", "configs"}  # folders that install inside aaren_rl and exist under no other name
FILES = sorted(p.relative_to(ROOT) for folder in ("agents", "envs", "aaren_rl") for p in (ROOT / folder).rglob("*.py"))


def imported(node: ast.AST, typing_only: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Every import at any depth: (module, leading dots, whether only type checkers see it)."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0, typing_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or "", node.level, typing_only
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from imported(child, True)
        for child in node.orelse:
            yield from imported(child, typing_only)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imported(child, typing_only)


def wrong_imports(path: Path, source: str) -> list[str]:
    """The imports that the file at `path` (relative to the checkout) must not have."""
    folder, wrong = path.parts[0], []
    for module, dots, typing_only in imported(ast.parse(source)):
        top = module.partition(".")[0]
        leaves = dots >= len(path.parts)  # agents/mixers/x.py may use one or two dots; a third is aaren_rl
        banned = MAPPED if folder == "aaren_rl" else {*MAPPED, "aaren_rl"}
        foreign = folder == "agents" and top not in {*sys.stdlib_module_names, "torch", *KERNELS.get(path, ())}
        if leaves or (dots == 0 and (top in banned or (foreign and not (top == "numpy" and typing_only)))):
            wrong.append("." * dots + module)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_follow_the_layout(path):
    assert wrong_imports(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("agents/a.py", "import math, torch.nn\nfrom .scan import combine\nfrom . import trunk", []),
        ("agents/mixers/a.py", "from ..scan import combine", []),
        ("agents/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import numpy.typing as npt", []),
        ("agents/a.py", "if TYPE_CHECKING:\n    import gymnasium\nelse:\n    import numpy", ["gymnasium", "numpy"]),
        ("agents/a.py", "def f():\n    import numpy as np", ["numpy"]),
        ("agents/a.py", "import numba", ["numba"]),
        ("agents/kernels/scan_numba.py", "import numba\nimport triton", ["triton"]),
        ("agents/a.py", "from ..envs import TASKS", ["..envs"]),
        ("agents/mixers/a.py", "from ...envs import TASKS", ["...envs"]),
        ("agents/a.py", "from aaren_rl.agents import scan", ["aaren_rl.agents"]),
        ("agents/a.py", "from agents.scan import combine", ["agents.scan"]),
        ("envs/a.py", "import numpy\nimport torch\nfrom .specs import TASKS", []),
        ("envs/a.py", "import aaren_rl", ["aaren_rl"]),
        ("envs/a.py", "from .. import agents", [".."]),
        ("envs/behaviour/a.py", "from ...agents import scan", ["...agents"]),
        ("envs/a.py", "try:\n    import envs.specs\nexcept ImportError:\n    pass", ["envs.specs"]),
        ("aaren_rl/a.py", "from .agents import scan\nfrom . import envs\nimport aaren_rl.envs", []),
        ("aaren_rl/a.py", "from agents import scan\nimport configs", ["agents", "configs"]),
    ],
)
def test_a_wrong_import_is_noticed(path, source, wrong):
    assert wrong_imports(Path(path), source) == wrong
