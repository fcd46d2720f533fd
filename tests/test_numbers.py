"""README and docs have one number for one thing."""

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
        (r"a default run scored ([\d.]+) on hopper-medium", r"mean of ([\d.]+)\]\(results"), 2,
    ),
}  # fmt: skip


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
