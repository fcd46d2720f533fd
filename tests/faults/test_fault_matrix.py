"""The table of faults: every row has a test, and the page in docs/ names tests that are there."""

from __future__ import annotations

import re

from checkout import ROOT
from fault_matrix import MATRIX, marked_tests, table

TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "faults.md"


def test_every_fault_has_a_test() -> None:
    injected = {number for _, number in marked_tests(TESTS)}
    assert injected == set(MATRIX) == set(range(1, 45))


def test_the_page_is_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\|(\d+)\|(.*\|.*)\|.*\|.*\|$", text, re.MULTILINE))
    assert rows == {str(number): "|".join(row) for number, row in MATRIX.items()}
    named = set(re.findall(r"`(test_\w+\.py::\w+)`", text))
    assert named == {test for test, _ in marked_tests(TESTS)}, "run: pytest -m faults --fault-table=docs/faults.md"
    assert "failed" not in text


def test_a_row_counts_the_cases_of_its_tests() -> None:
    results = {"test_a.py::test_x": {"passed": 3, "failed": 1}, "test_b.py::test_y": {"passed": 2}}
    page = table(results, {"test_a.py::test_x": (1, 2), "test_b.py::test_y": (2,)})
    assert page.count("|1 failed, 3 passed|") == 1 and page.count("|1 failed, 5 passed|") == 1
    assert page.count("|no test|") == len(MATRIX) - 2
    assert table({}, {"test_a.py::test_x": (1,)}).count("|1 not run|") == 1
