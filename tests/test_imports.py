"""Who may import whom, at any depth: in function bodies, and in what only type checkers see.

`aaren_rl` imports `agents` and `envs`; those two import neither each other nor `aaren_rl`. The rooms of `agents` are
floors, and no module is in a circle.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from checkout import ROOT
from import_graph import circles, graph, imports, modules

KERNELS = {  # imported on first use
    Path("agents/kernels/compiled.py"): {"numba"},
    Path("agents/kernels/scan_numba.py"): {"numba"},
    Path("agents/kernels/scan_triton.py"): {"triton"},
    Path("agents/kernels/scan_triton_backward.py"): {"triton"},
    Path("agents/kernels/scan_triton_forward.py"): {"triton"},
    Path("agents/kernels/scan_triton_rows.py"): {"triton"},
}
MAPPED = {"agents", "envs", "configs"}  # folders that install inside aaren_rl and exist under no other name
# Of agents, from the ground up; what stands on the last one is for tests and benchmarks.
FLOORS = (
    "ranges arguments kernels scan mixers model fast policy_state policy guidance tree_policy public reference".split()
)
MOST = 15  # files in a folder
FILES = sorted(p.relative_to(ROOT) for folder in ("agents", "envs", "aaren_rl") for p in (ROOT / folder).rglob("*.py"))


GRAPH = graph()


def wrong_imports(path: Path, source: str) -> list[str]:
    """The imports that the file at `path` (relative to the checkout) must not have."""
    folder, wrong = path.parts[0], []
    for module, dots, _ in imports(ast.parse(source)):
        top = module.partition(".")[0]
        leaves = dots >= len(path.parts)  # agents/mixers/x.py may use one or two dots; a third is aaren_rl
        banned = MAPPED if folder == "aaren_rl" else {*MAPPED, "aaren_rl"}
        own = {*sys.stdlib_module_names, "torch", "numpy", *KERNELS.get(path, ())}
        if leaves or (dots == 0 and (top in banned or (folder == "agents" and top not in own))):
            wrong.append("." * dots + module)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_follow_the_layout(path):
    assert wrong_imports(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("agents/mixers/a.py", "from ..scan import combine", []),
        ("agents/a.py", "if TYPE_CHECKING:\n    import gymnasium\nelse:\n    import numpy", ["gymnasium"]),
        ("agents/a.py", "def f():\n    import h5py", ["h5py"]),
        ("agents/kernels/scan_numba.py", "import numba\nimport triton", ["triton"]),
        ("agents/mixers/a.py", "from ...envs import TASKS", ["...envs"]),
        ("agents/a.py", "from aaren_rl.agents import scan", ["aaren_rl.agents"]),
        ("envs/a.py", "import numpy\nimport torch\nfrom .specs import TASKS", []),
        ("envs/behaviour/a.py", "from ...agents import scan", ["...agents"]),
        ("envs/a.py", "try:\n    import envs.specs\nexcept ImportError:\n    pass", ["envs.specs"]),
        ("aaren_rl/a.py", "from .agents import scan\nfrom . import envs\nimport aaren_rl.envs", []),
        ("aaren_rl/a.py", "from agents import scan\nimport configs", ["agents", "configs"]),
    ],
)
def test_a_wrong_import_is_noticed(path, source, wrong):
    assert wrong_imports(Path(path), source) == wrong


def upwards(imported: nx.DiGraph) -> list[tuple[str, str]]:
    """The imports between rooms of agents that lead to a floor above."""
    floor = {name: FLOORS.index(name.split(".")[2]) for name in imported if name.startswith("aaren_rl.agents.")}
    return [(a, b) for a, b in imported.edges if {a, b} <= floor.keys() and floor[b] > floor[a]]


def from_other_commands(imported: nx.DiGraph) -> list[tuple[str, str]]:
    """The imports of a command's parser and `main` from outside its folder."""
    return [(a, b) for a, b in imported.edges if b.endswith(".command") and not a.startswith(b.removesuffix("command"))]


def test_agents_have_floors_and_no_import_is_in_a_circle_or_of_another_command():
    assert (upwards(GRAPH), circles(GRAPH), from_other_commands(GRAPH)) == ([], [], [])


def test_no_folder_is_crowded():
    crowds = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules().values())
    assert {folder: count for folder, count in crowds.items() if count > MOST} == {}


def test_what_the_graph_must_not_have_is_noticed(tmp_path):
    for name, source in {
        "agents/__init__.py": "from .model.trunk import Trunk\n",
        "agents/scan/__init__.py": "",
        "agents/scan/state.py": "def f():\n    from ..fast import training\n",
        "agents/model/__init__.py": "",
        "agents/model/trunk.py": "from ..scan.state import ScanState\n",
        "agents/fast/__init__.py": "",
        "agents/fast/training.py": "if TYPE_CHECKING:\n    from ..model import trunk\nimport torch\n",
        "aaren_rl/__init__.py": "",
        "aaren_rl/train/__init__.py": "from ..agents import Trunk\n",
        "aaren_rl/train/command.py": "import aaren_rl.agents\n",
        "aaren_rl/sweep/command.py": "from ..train.command import main\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    found = graph(tmp_path)
    state, trunk, training = (f"aaren_rl.agents.{name}" for name in ("scan.state", "model.trunk", "fast.training"))
    assert set(found["aaren_rl.train"]) == set(found["aaren_rl.train.command"]) == {"aaren_rl.agents"}
    assert set(graph(tmp_path, homes=True)["aaren_rl.train"]) == {trunk}
    assert upwards(found) == [(state, training)]
    assert circles(found) == [(training, trunk, state)]
    assert from_other_commands(found) == [("aaren_rl.sweep.command", "aaren_rl.train.command")]
