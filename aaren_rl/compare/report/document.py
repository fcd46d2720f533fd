"""The parts of a report, without a format: `report_html` and `report_markdown` write them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A table's column.

    Attributes:
        text: its heading.
        mark: on whose data its scores were made, "" where it holds none.
        numeric: numbers, to be aligned by their ends.
        published: scores of somebody else.
    """

    text: str
    mark: str = ""
    numeric: bool = True
    published: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Command:
    """A line for a shell."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; every row has one cell for each column."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A figure by its name in `figures`, and what it shows, in words."""

    name: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; `folded` is shown on demand."""

    title: str
    blocks: Sequence[Text | Command | Table | Plot]
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A report: its title, the figure it opens with, its answer in two sentences, and the rest."""

    title: str
    opening: Plot
    answer: str
    sections: Sequence[Section]


def words(*names: str) -> list[Column]:
    """Columns of text."""
    return [Column(name, numeric=False) for name in names]
