"""scripts/check_imports finds imports that the layout does not allow, and there are none."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from checkout import load_script

layout = load_script("check_imports")


def test_every_import_follows_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert layout.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "line", "allowed"),
    [
        ("agents/scan/a.py", "from ..kernels import x", True),
        ("agents/scan/a.py", "from ...base.errors import x", True),
        ("agents/scan/a.py", "from ...envs import x", False),
        ("agents/scan/a.py", "import scipy", False),
        ("agents/scan/a.py", "import numba", False),
        ("agents/kernels/a.py", "import numba", True),
        ("agents/policy.py", "def f():\n    from agents.scan import x", False),
        ("envs/data/a.py", "import scipy", True),
        ("envs/data/a.py", "from aaren_rl.cli import x", False),
        ("envs/load.py", "from ..cli import x", False),
        ("aaren_rl/cli.py", "from .agents import x", True),
        ("aaren_rl/cli.py", "import agents", False),
    ],
)
def test_an_import_of_a_file(path: str, line: str, allowed: bool) -> None:
    module = line.removesuffix(" import x").split()[-1]
    assert list(layout.wrong_imports(Path(path), line)) == ([] if allowed else [f"{path}: imports {module}"])


def test_imports_between_modules() -> None:
    """Two downward, then three upward, one out of the base, one of another command, and a circle."""
    good = [("aaren_rl.agents.policy.base", "aaren_rl.agents.scan.prefix"), ("aaren_rl.cli", "aaren_rl.base.errors")]
    good += [
        ("aaren_rl.train.__main__", "aaren_rl.train.command"),
        ("aaren_rl.envs.load.own", "aaren_rl.envs.tasks.names"),
    ]
    bad = [("aaren_rl.agents.scan.prefix", "aaren_rl.agents.model.trunk"), ("aaren_rl.base.files", "aaren_rl.runtime")]
    bad += [("aaren_rl.hub.folder", "aaren_rl.train.command")]
    bad += [
        ("aaren_rl.envs.tasks.environment", "aaren_rl.envs.data.episodes"),
        ("aaren_rl.envs.local.sets", "aaren_rl.envs.load.own"),
    ]
    circle = [("aaren_rl.a", "aaren_rl.b"), ("aaren_rl.b", "aaren_rl.a")]
    found = list(layout.wrong_edges(nx.DiGraph([*good, *bad, *circle])))
    assert found == [*(f"{a}: imports {b}" for a, b in bad), "aaren_rl.a and aaren_rl.b: import each other"]
