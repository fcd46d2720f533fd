"""The report of a comparison: a page, its text in Markdown, and a table for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files import write_text
from ..cells import Cell, check_comparable
from .content import compose
from .document import Table, Text
from .figures import figures
from .html import to_html
from .imitation import imitation_tables
from .markdown import to_markdown, to_text
from .overview import NARROW, overview
from .tables import scores
from .words import answer, data_returns

PAGE = "report.html"
WIDTH = 120


def write_report(out: Path, cells: Sequence[Cell], settings: Mapping[str, Any]) -> None:
    """Writes report.html, which needs no other file, and report.md into the folder `out`.

    Args:
        out: made where it is not there; older reports are replaced.
        cells: the training runs.
        settings: how the comparison was made; shown as they are.

    Raises:
        UsageError: the runs cannot be compared, see `check_comparable`.
    """
    check_comparable(cells)
    drawn = figures(cells)
    document = compose(cells, settings, drawn)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "report.md", to_markdown(document, PAGE))
    write_text(out / PAGE, to_html(document, drawn, overview(cells, NARROW)))


def format_comparison(cells: Sequence[Cell]) -> str:
    """The scores and action errors as plain text, for the end of the command."""
    errors = _texts(imitation_tables(cells))
    over = "95 % intervals over training seeds, from three seeds on"
    if errors:
        over += "; of action errors over episodes, of their differences over both"
    closing = textwrap.fill(f"{answer(cells)} In brackets: {over}.", WIDTH)
    return "\n\n".join([*_texts(scores(cells)), *data_returns(cells), *errors, closing])


def _texts(blocks: Sequence[Text | Table]) -> list[str]:
    return [to_text(block) for block in blocks if isinstance(block, Table)]
