"""A report as Markdown (GitHub's), and its scores as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .document import Column, Command, Document, Plot, Section, Table, Text
from .words import NOTHING


def to_markdown(document: Document, page: str) -> str:
    """The report without its figures, which are in `page`."""
    parts = [f"# {_escape(document.title)}", _escape(document.answer), f"Figures: [{page}]({page})"]
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def to_text(table: Table) -> str:
    """A table for a terminal, under a line that names its data; published scores stand below it."""
    columns = list(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    mark = next((column.mark for column in table.columns if column.mark), "")
    lines = [f"{table.caption}; data: {mark}" if mark else table.caption]
    lines += _aligned([(column, texts) for column, texts in columns if not column.published])
    for column, texts in columns:
        if column.published:
            found = [f"{agent} {text}" for agent, text in zip(columns[0][1], texts, strict=True) if text != NOTHING]
            lines.append(f"{column.text} ({column.mark}): {', '.join(found)}")
    return "\n".join(lines)


def _aligned(columns: Sequence[tuple[Column, Sequence[str]]]) -> list[str]:
    padded = []
    for column, texts in columns:
        width = max(map(len, [column.text, *texts]))
        padded.append([f"{text:{'>' if column.numeric else '<'}{width}}" for text in [column.text, *texts]])
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def _section(section: Section) -> list[str]:
    blocks = [block for block in section.blocks if not isinstance(block, Plot)]
    body = [_block(block) for block in blocks]
    if not body:
        return []
    if section.folded:
        return [f"<details><summary>{_escape(section.title)}</summary>", *body, "</details>"]
    return [f"## {_escape(section.title)}", *body]


def _block(block: Text | Command | Table) -> str:
    if isinstance(block, Table):
        return table_to_markdown(block)
    # Indented, code cannot be left by what it holds.
    return f"    {' '.join(block.text.split())}" if isinstance(block, Command) else _escape(block.text)


def table_to_markdown(table: Table) -> str:
    """A table under its caption, where it has one."""
    head = [f"{column.text} ({column.mark})" if column.mark else column.text for column in table.columns]
    rule = ["-:" if column.numeric else "-" for column in table.columns]
    rows = [_row(list(map(_escape, row))) for row in [head, *table.rows]]
    caption = [f"**{_escape(table.caption)}**", ""] if table.caption else []
    return "\n".join([*caption, rows[0], _row(rule), *rows[1:]])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Names and paths as they are: no markup, no link, no new line or column."""
    return re.sub(r"([\\`*_|<>&#~]|(?<=\])\()", r"\\\1", " ".join(text.split()))
