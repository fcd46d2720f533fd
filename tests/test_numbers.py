"""README and docs have one number for one thing, and every number of the front page comes from a file under docs/."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from checkout import ROOT

FOUND = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {page: page.read_text(encoding="utf-8") for page in FOUND if "node_modules" not in page.parts}


class Thing(NamedTuple):
    """What a number may be of: where it stands (group 1), in the unit of `value`, the number in its source."""

    source: str
    line: str  # of the source; group 1 is the number
    factor: float  # from the source's unit to the pages'
    places: tuple[str, ...]
    least: int = 1  # places that have it


THINGS = {
    "time of an action, ms": Thing(
        "benchmarks/rollout.txt", r"decision-aaren:recurrent\s+10\s+([\d.]+)", 0.001,
        (r"(0\.0\d+) ms (?:per action|on a server|on one thread)", r"takes (?:about )?(0\.0\d+) ms(?!.{0,40}x86)",
         r"Decision-Aaren, `recurrent` \| (0\.\d+) ms"), 4,
    ),
    "time of an action of the window, ms": Thing(
        "benchmarks/rollout.txt", r"decision-transformer:window\s+10\s+([\d.]+)", 0.001,
        (r"last 20 steps in\s+([\d.]+) ms", r"`window` of 20 \| ([\d.]+) ms"), 2,
    ),
    "state, bytes": Thing(
        "benchmarks/rollout.txt", r"decision-aaren:recurrent\s+1,000\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d,]+)", 1,
        (r"[Tt]he state has ([\d,]+) bytes", r"bytes instead of ([\d,]+)\.",
         r"`recurrent` \| 0\.\d+ ms \| ([\d,]+) bytes"), 3,
    ),
    "training, seconds": Thing(
        "benchmarks/learning.txt", r"default:decision-aaren\s+1,600\s+([\d.]+)", 1,
        (r"\| Decision-Aaren, `recurrent` \| (\d+) \| 0\.0036", r"gradient steps take (\d+) seconds"), 1,
    ),
    "first run, minutes": Thing(
        "index.md", r"in about (\w+) minutes", 1, (r"about (\w+)\s+minutes on\s+two",), 3,
    ),
    "error of targets on hopper-medium, %": Thing(
        "benchmarks/steering.txt", r"\|achieved - target\|\s+([\d.]+)% of target", 1,
        (r"differs from its target by ([\d.]+) %",
        r"mean of \\\|achieved - target\\\| / target \| ([\d.]+) % \| 14"), 2,
    ),
    "score of a default run": Thing(
        "results.md", r"\| score \|.*\*\*([\d.]+)\*\*", 1,
        (r"a default run scores ([\d.]+) on hopper-medium", r"mean of ([\d.]+)\]\(results"), 2,
    ),
}  # fmt: skip
FRONT = re.compile(r"(?<![\w.\-/#])(\d[\d,]*(?:\.\d+)?)(?![\w]*[\-/]\w)")
# Of the front page, what is not measured: versions, names of sets and dates, sizes of the default, numbers of things.
SAID = {"3.11", "0.1.0", "2026", "11", "25", "2024", "10", "150", "64", "100,000", "20", "200"}


def number(text: str) -> float:
    words = {"five": 5, "four": 4, "three": 3}
    return words[text] if text in words else float(text.replace(",", ""))


@pytest.mark.parametrize("name", THINGS)
def test_one_thing_has_one_number(name: str) -> None:
    """The same digits as its source, to as many as a page shows."""
    thing = THINGS[name]
    source = re.search(thing.line, (ROOT / "docs" / thing.source).read_text(encoding="utf-8"))
    assert source is not None, f"{thing.source} has it no more"
    known, shown = number(source[1]) * thing.factor, {}
    for page, text in PAGES.items():
        for place in thing.places:
            for found in re.finditer(place, text):
                shown[page.relative_to(ROOT).as_posix(), found[0]] = found[1]
    digits = {place: len(text.partition(".")[2]) for place, text in shown.items()}
    wrong = {place: text for place, text in shown.items() if abs(number(text) - known) > 0.51 * 10 ** -digits[place]}
    assert wrong == {} and len(shown) >= thing.least, (known, shown)


def test_every_number_of_the_front_page_is_in_a_linked_file() -> None:
    """In a paragraph that links a page, in that page; else somewhere under docs/."""
    text = re.sub(r"^```.*?^```|<[^>]*>", "", PAGES[ROOT / "README.md"], flags=re.MULTILINE | re.DOTALL)
    everything = "\n".join(PAGES[page] for page in PAGES if page.name != "README.md")
    everything += "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "benchmarks").glob("*.txt"))
    missing = []
    for paragraph in re.split(r"\n\n|\n- ", text):
        links = [ROOT / link.partition("#")[0] for link in re.findall(r"\]\((docs/[^)]+)\)", paragraph)]
        pages = "\n".join(link.read_text(encoding="utf-8") for link in links if link.suffix == ".md") or everything
        prose = re.sub(r"\]\([^)]*\)|`[^`]*`|^    .*$|https?://\S+", "", paragraph, flags=re.MULTILINE)
        missing += [(found, prose[:60]) for found in FRONT.findall(prose) if not has(pages, found)]
    assert missing == []


def has(pages: str, found: str) -> bool:
    """Whether the number stands there; milliseconds also as microseconds."""
    forms = [found] + ([f"{float(found) * 1000:.0f} µs"] if found.startswith("0.0") else [])
    return found in SAID or any(re.search(rf"(?<![\d.,]){re.escape(form)}(?![\d]|,\d)", pages) for form in forms)
