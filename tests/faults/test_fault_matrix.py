"""The page of faults: every row has a test, and it names tests that are there."""

from __future__ import annotations

import re
from collections import Counter

from checkout import ROOT
from fault_matrix import ROW, marked_tests, written

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_fault_has_a_test_and_the_page_names_it() -> None:
    tests = list(marked_tests(ROOT / "tests"))
    rows = {int(number) for _, number, _, _ in ROW.findall(PAGE)}
    assert {number for _, number in tests} == rows == set(range(1, 45))
    named = set(re.findall(r"`(test_\w+\.py::\w+)`", PAGE))
    assert named == {test for test, _ in tests}, "run: pytest -m faults --fault-table=docs/faults.md"
    assert "failed" not in PAGE and "no test" not in PAGE


def test_a_row_counts_the_cases_of_its_tests() -> None:
    results = {"test_a.py::test_x": Counter(passed=3, failed=1), "test_b.py::test_y": Counter(passed=2)}
    page = written(
        "|1|A|2|||\n|2|B|3|||\n|3|C|4|||\n", results, {"test_a.py::test_x": (1, 2), "test_b.py::test_y": (2,)}
    )
    a, b = "`test_a.py::test_x`", "`test_b.py::test_y`"
    assert page == f"|1|A|2|{a}|1 failed, 3 passed|\n|2|B|3|{a}<br>{b}|1 failed, 5 passed|\n|3|C|4||no test|\n"
