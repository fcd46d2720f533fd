"""No page, and no comment or string of a clean folder, has a word that a native reader stumbles over."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest
from checkout import ROOT

# Add a folder of sources once it is clean. Of Python, comments and strings are read: docstrings, help texts, errors.
PLACES = "README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff mkdocs.yml docs configs".split()
PLACES += "agents/mixers agents/model agents/scan agents/fast envs".split()
PLACES += [
    f"aaren_rl/{name}"
    for name in (
        "cli.py",
        "collect",
        "datasets",
        "errors.py",
        "files.py",
        "hub",
        "import_weights",
        "nn",
        "runs",
        "sweep",
        "train",
        "bench",
        "evaluate",
        "export",
    )
]
WORDS = "unasked|anew|sooner|as they come|stands? beside|at hand|(?:is|are) told|(?:is|are) refused|held against|a fall"
WORDS += r"|the mode|behaviour\w*|(?:score|error|return|infinity) less(?! than)|less Decision"
FORBIDDEN = re.compile(rf"(?<![\w./])(?:{WORDS})\b|'s less(?! than)".replace(" ", r"\s+"), re.IGNORECASE)
NOT_PROSE = re.compile(r"<!-- table1: .*?<!-- /table1 -->|^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SUFFIXES = {".md", ".py", ".yml", ".yaml", ".cff", ".html"}
FOUND = [file for place in PLACES for file in (ROOT / place, *sorted((ROOT / place).rglob("*")))]
FILES = [file for file in FOUND if file.suffix in SUFFIXES and "node_modules" not in file.parts]


def prose(file: Path) -> str:
    if file.suffix != ".py":
        return NOT_PROSE.sub("", file.read_text(encoding="utf-8"))
    with file.open(encoding="utf-8") as lines:
        tokens = list(tokenize.generate_tokens(lines.readline))
    kinds = ("COMMENT", "STRING", "FSTRING_MIDDLE")
    return "\n".join(token.string for token in tokens if tokenize.tok_name[token.type] in kinds)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_file_is_in_plain_words(file: Path) -> None:
    assert FORBIDDEN.findall(prose(file)) == []
