"""The faults that the package must stand are the rows of docs/faults.md; tests name them by number.

`pytest -m faults --fault-table=docs/faults.md` runs those tests and writes their names and results into the page.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROW = re.compile(
    r"^(\|(\d+)\|[^|]*\|[^|]*\|)(.*)\|(.*)\|$", re.MULTILINE
)  # number, fault, what you see | tests | result


def marked_tests(folder: Path) -> Iterator[tuple[str, int]]:
    """(FILE::TEST, number) for every fault that a test in `folder` is marked with, read from the sources."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.faults":
                        yield from ((f"{file.name}::{node.name}", ast.literal_eval(number)) for number in call.args)


def written(page: str, results: dict[str, Counter[str]], numbers: dict[str, tuple[int, ...]]) -> str:
    """The page with the tests of every fault, FILE::TEST -> their numbers, and how many of their cases ended how."""

    def row(found: re.Match[str]) -> str:
        tests = [test for test, faults in numbers.items() if int(found[2]) in faults]
        counts = sum((results.get(test, Counter({"not run": 1})) for test in tests), Counter())
        shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no test"
        return f"{found[1]}{'<br>'.join(f'`{test}`' for test in tests)}|{shown}|"

    return ROW.sub(row, page)
