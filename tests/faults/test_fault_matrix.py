"""The page of faults: every row has a test, and it names tests that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from checkout import ROOT


def marked_tests() -> Iterator[tuple[str, int]]:
    """(FILE::TEST, number) for every fault that a test is marked with, read from the sources."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.faults":
                        yield from ((f"{file.name}::{node.name}", ast.literal_eval(number)) for number in call.args)


def test_every_fault_has_a_test_and_the_page_names_it() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named = {
        (test, int(number))
        for number, row in re.findall(r"^\|(\d+)\|(.*)$", page, re.MULTILINE)
        for test in re.findall(r"`(test_\w+\.py::\w+)`", row)
    }
    assert named == set(marked_tests())
    assert {number for _, number in named} == set(range(1, 47))
