"""No page, comment or string has a word that a native reader stumbles over."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest
from checkout import ROOT

# Of Python, comments and strings are read: docstrings, help texts, errors.
PLACES = "README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff mkdocs.yml docs configs examples scripts".split()
PLACES += ["aaren_rl", "agents", "envs"]
WORDS = "unasked|anew|sooner|as they come|stands? beside|at hand|(?:is|are) told|(?:is|are) refused|held against|a fall"
WORDS += r"|metres?|licence|centre|\w*(?:behaviour|neighbour|colour|labelled)\w*|(?:vector|normal|initial)is\w*"
WORDS += r"|the mode|the begin of|(?:score|error|return|infinity) less(?! than)|less Decision"
FORBIDDEN = re.compile(rf"(?<![\w./])(?:{WORDS})\b|'s less(?! than)".replace(" ", r"\s+"), re.IGNORECASE)
NOT_PROSE = re.compile(r"<!-- table1: .*?<!-- /table1 -->|^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SUFFIXES = {".md", ".py", ".yml", ".yaml", ".cff", ".html"}


def is_script(file: Path) -> bool:
    """Whether it is a Python program without a suffix, as most of scripts/ are."""
    return not file.suffix and file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python")


FOUND = [file for place in PLACES for file in (ROOT / place, *sorted((ROOT / place).rglob("*")))]
FILES = [file for file in FOUND if "node_modules" not in file.parts and (file.suffix in SUFFIXES or is_script(file))]


def prose(file: Path) -> str:
    if file.suffix != ".py" and not is_script(file):
        return NOT_PROSE.sub("", file.read_text(encoding="utf-8"))
    with file.open(encoding="utf-8") as lines:
        tokens = list(tokenize.generate_tokens(lines.readline))
    kinds = ("COMMENT", "STRING", "FSTRING_MIDDLE")
    return "\n".join(token.string for token in tokens if tokenize.tok_name[token.type] in kinds)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_file_is_in_plain_words(file: Path) -> None:
    assert FORBIDDEN.findall(prose(file)) == []
