"""scripts/check_words finds words that a native reader stumbles over, and there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import ROOT, load_script

words = load_script("check_words")
PLACES = (
    "aaren_rl/cli.py",
    "README.md",
    "docs/data.md",
    "scripts/table1",
    "envs/load/sources.py",
    "configs/presets.yaml",
)


def test_every_page_and_program_is_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert {ROOT / place for place in PLACES} <= set(words.files())
    assert words.main() == 0, capsys.readouterr().out


def test_words_are_found_where_people_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "docs/page.md": "Done anew.\n\n`anew`\n\n```\nsooner\n```\n",
        "aaren_rl/module.py": 'centre = 1  # the behaviour\nprint(f"{1} metres")\n',
        "scripts/program": '#!/usr/bin/env python3\n"""A licence."""\n',
        "scripts/other": "#!/bin/sh\n# a licence\n",
        "aaren_rl/data.bin": "anew",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert words.main() == 1
    found = "docs/page.md: anew\nscripts/program: licence\naaren_rl/module.py: behaviour, metres\n"
    assert capsys.readouterr().out == found
