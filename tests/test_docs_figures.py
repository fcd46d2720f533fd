"""Charts, drawings and numbers of the documentation: each is of a measurement's file, to the last digit."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_run import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import docs_charts
import docs_dark
import docs_tables
import table1_page

DRAWN = docs_charts.names(ROOT / "docs")


@pytest.mark.parametrize("file", DRAWN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_drawing_is_for_light_and_dark_pages(file):
    svg = file.read_text(encoding="utf-8")
    assert docs_dark.adapt(svg) == svg, "scripts/docs_figures adapts it"
    assert svg.count("prefers-color-scheme: dark") == 1
    width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1])
    assert width <= 72 * docs_charts.WIDTH + 18, "letters are too small on a phone"


def test_a_chart_shows_what_was_printed():
    """The values of the lines, agent by agent, in the agents' own colors."""
    aaren, plain, gru, *_ = docs_charts.memory_tasks().axes[0].lines
    assert aaren.get_color() == plain.get_color() == "#0072b2" != gru.get_color() and plain.get_linestyle() == "--"
    assert round(aaren.get_ydata()[-1]) == 100 and 10 < aaren.get_xdata()[-1] < gru.get_xdata()[-1]
    seconds, steps = docs_charts.learning().axes
    assert seconds.lines[0].get_xdata()[-1] == 99.0 and steps.lines[0].get_xdata()[-1] == 1600
    assert docs_charts.steering().axes[0].lines[2].get_ydata()[-1] == 2934
    attention = docs_charts.scan().axes[0].lines[-2]
    assert attention.get_ydata()[-1] == 13020.77
    ours = docs_charts.rollout().axes[0].lines[0]
    assert ours.get_ydata()[0] == 0.0426 and ours.get_xdata()[-1] == 100_000
    assert [bar.get_width() for bar in docs_charts.train().axes[1].patches][-1] == 1161.9


@pytest.mark.slow
def test_the_drawings_are_what_the_script_draws(tmp_path):
    for folder in ("figures", "benchmarks", "results"):
        (tmp_path / folder).mkdir()
    subprocess.run([sys.executable, ROOT / "scripts" / "docs_figures", tmp_path], check=True)
    for file in sorted(tmp_path.rglob("*.svg")):
        assert file.read_bytes() == (ROOT / "docs" / file.relative_to(tmp_path)).read_bytes(), file.name


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
    every = ROOT / "README.md", *(ROOT / "docs").rglob("*.md")
    pages = {page for page in every if "<!-- table: " in page.read_text()}
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


def test_a_changed_digit_is_found(tmp_path):
    page, parts = (ROOT / "README.md").read_text(encoding="utf-8"), {"claims": docs_tables.claims()}
    (tmp_path / "README.md").write_text(page.replace("6.1 GB", "6.2 GB"), encoding="utf-8")
    assert in_prose(tmp_path / "README.md") != in_prose(ROOT / "README.md")
    assert docs_tables.fill(page.replace("100,000", "1,000,000", 1), parts) == docs_tables.fill(page, parts) == page


def test_the_pages_repeat_what_they_quote():
    """Numbers that stand in README, the FAQ and the notebook are those of the pages that they link."""
    told = MEASURED["prose"]["README.md"]["seconds of GRU, minGRU, Aaren, without its gate, T-maze"]
    line = next(line for line in docs_tables.built_in().splitlines() if "T-maze of 1,000 steps" in line)
    assert all(f", {seconds}\N{NO-BREAK SPACE}s |" in line for seconds in told)
    assert list(MEASURED["published"]["mean"].values()) == MEASURED["prose"]["docs/benchmark.md"]["published means"]
