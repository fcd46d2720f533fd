"""Who may import whom, at any depth: in function bodies, and in what only type checkers see.

`aaren_rl` imports `agents` and `envs`; those two import `aaren_rl/base`, and neither each other nor the rest. The base
imports nothing of the project. The rooms of `agents` are floors, and no module is in a circle.
"""

import ast
import sys

import pytest
from checkout import ROOT
from import_graph import circles, graph, imports

MAPPED = {"agents", "envs", "configs"}  # folders that install inside aaren_rl and exist under no other name
# Of agents, from the ground up; what stands on the last one is for tests and benchmarks.
FLOORS = "discrete arguments stacked kernels scan mixers model fast policy_state".split()
FLOORS += "rollouts policy variants public".split()
BASE = "aaren_rl.base"
FILES = sorted(p.relative_to(ROOT) for folder in ("agents", "envs", "aaren_rl") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_follow_the_layout(path):
    folder, wrong = path.parts[0], []
    for module, dots, _ in imports(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        top = module.partition(".")[0]
        base = (
            dots == len(path.parts) and top == "base"
        )  # agents/mixers/x.py has two dots of its own; a third is aaren_rl
        leaves = dots >= len(path.parts) and not (base and folder in MAPPED)
        banned = MAPPED if folder == "aaren_rl" else {*MAPPED, "aaren_rl"}
        own = {*sys.stdlib_module_names, "torch", "numpy"} | ({"numba", "triton"} if "kernels" in path.parts else set())
        if leaves or (dots == 0 and (top in banned or (folder == "agents" and top not in own))):
            wrong.append("." * dots + module)
    assert wrong == []


def test_agents_have_floors_and_no_import_is_in_a_circle_or_of_another_command():
    found = graph()
    floor = {name: FLOORS.index(name.split(".")[2]) for name in found if name.startswith("aaren_rl.agents.")}
    assert [(a, b) for a, b in found.edges if {a, b} <= floor.keys() and floor[b] > floor[a]] == []
    assert [(a, b) for a, b in found.edges if a.startswith(BASE) and not b.startswith(BASE)] == []
    assert circles(found) == []
    commands = [(a, b) for a, b in found.edges if b.endswith(".command")]
    assert [(a, b) for a, b in commands if not a.startswith(b.removesuffix("command"))] == []
