"""Numbers of README and of the pages of results: each is that of a measurement's file, to the last digit."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from small_run import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import docs_tables
import table1_page

MEASURED = json.loads((ROOT / "docs" / "results" / "measured.json").read_text(encoding="utf-8"))
# What holds no measurement: tables (they are compared whole), code, addresses, HTML, formulas, dates and versions.
ELSE = re.compile(
    r"<!-- table: \w+ -->.*?<!-- /table -->|^```.*?^```|^    \S[^\n]*$|`[^`\n]+`|\]\([^)]*\)|<[^>]*>|\$[^$]+\$"
    r"|\b20\d\d(?:-\d\d-\d\d)?\b|Python [\d.]+\+|\d+\.\d+\.\d+|(?<=\n)```.*",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


def test_every_table_is_made_of_the_measurements():
    """scripts/docs_figures writes them; those of docs/benchmark.md have tests/compare/test_table1_page.py."""
    written = docs_tables.written()
    pages = {
        page for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if "<!-- table: " in page.read_text()
    }
    assert pages == {*written, *(ROOT / "docs" / page for page in table1_page.PAGES)}
    for page, text in written.items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run scripts/docs_figures"
        assert len(docs_tables.PART.findall(text)) == text.count("<!-- table: "), page


def numbers(tree: object) -> Iterator[float]:
    if isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers(item)
    elif isinstance(tree, int | float):
        yield float(tree)


def in_prose(page: Path) -> set[float]:
    text = ELSE.sub(" ", page.read_text(encoding="utf-8"))
    return {float(found.replace(",", "")) for found in NUMBER.findall(text)}


@pytest.mark.parametrize("name", MEASURED["prose"])
def test_every_number_of_the_text_is_known(name):
    """Both ways: a page has the numbers that docs/results/measured.json names for it, and no other."""
    assert in_prose(ROOT / name) == set(numbers(MEASURED["prose"][name]))


@pytest.mark.parametrize("place", ["prose", "table"])
def test_a_changed_digit_is_found(place, tmp_path):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    if place == "prose":
        changed = tmp_path / "README.md"
        changed.write_text(page.replace("6.1 GB", "6.2 GB"), encoding="utf-8")
        assert in_prose(changed) != in_prose(ROOT / "README.md")
    else:
        parts = {"claims": docs_tables.claims()}
        assert docs_tables.fill(page.replace("100,000", "1,000,000", 1), parts) == docs_tables.fill(page, parts) == page


def test_the_pages_repeat_what_they_quote():
    """Numbers that stand in README, the FAQ and the notebook are those of the pages that they link."""
    slow, fast = MEASURED["prose"]["README.md"]["seconds of GRU and of Aaren, T-maze"]
    assert re.search(rf"\| Decision-GRU \|.*\| {slow} \|$", docs_tables.tmaze(), re.MULTILINE)
    assert re.search(rf"\| without its forget gate \|.*\| {fast} \|$", docs_tables.tmaze(), re.MULTILINE)
    run = MEASURED["default_run"]
    scores = [round(fmean(run["scores"]), 1), min(run["scores"]), max(run["scores"])]
    assert [200_000, *scores, 50] == next(iter(MEASURED["prose"]["docs/benchmark.md"].values()))
    assert list(MEASURED["published"]["mean"].values()) == MEASURED["prose"]["docs/benchmark.md"]["published means"]
