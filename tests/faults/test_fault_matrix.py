"""The table of faults: every row has a test, and the page in docs/ names tests that are there."""

from __future__ import annotations

import re

from checkout import ROOT
from fault_matrix import MATRIX, marked_tests

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
