"""A report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape

import matplotlib
from matplotlib.figure import Figure

from .document import Column, Document, Plot, Section, Table

_STYLE = """
:root { color-scheme: light; --ink: #1c1f23; --soft: #5a6270; --line: #d9dde3; --tint: #f4f6f8; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 2rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .75rem; }
h2, summary { font-size: 1.25rem; font-weight: 650; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 75ch; overflow-wrap: anywhere; }
.answer { font-size: 1.15rem; padding: .9rem 1.1rem; border-left: 4px solid #0072B2; background: var(--tint); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .25rem .5rem; }
th, td { padding: .4rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { background: var(--tint); vertical-align: bottom; }
td { max-width: 20rem; overflow-wrap: break-word; }
th, td { min-width: 6rem; }
.number { text-align: right; white-space: nowrap; min-width: 3.5rem; }
th.number { white-space: normal; }
caption { white-space: nowrap; }
.mark { display: block; font-size: .75rem; font-weight: 500; color: var(--soft); }
.mark.published { color: #7a4a00; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 1rem; }
figure { margin: 0; max-width: 620px; }
img { display: block; width: 100%; height: auto; }
summary { cursor: pointer; }
@media (max-width: 600px) { body { padding: 1.25rem .75rem 3rem; } h1 { font-size: 1.35rem; }
  .answer { font-size: 1rem; } }
"""


def to_html(document: Document, figures: Mapping[str, Figure]) -> str:
    """The page; everything that is not this module's own is escaped."""
    sections = "\n".join(_section(section, figures) for section in document.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(document.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(document.title)}</h1>
<p class="answer">{escape(document.answer)}</p>
{sections}
</main>
</body>
</html>
"""


def _section(section: Section, figures: Mapping[str, Figure]) -> str:
    parts, plots = [], ""
    for block in section.blocks:
        if isinstance(block, Plot):
            plots += _plot(block, figures[block.name])
        else:
            parts.append(_table(block) if isinstance(block, Table) else f"<p>{escape(block.text)}</p>")
    if plots:
        parts.append(f'<div class="figures">{plots}</div>')
    body, title = "\n".join(parts), escape(section.title)
    if section.folded:
        return f"<details>\n<summary>{title}</summary>\n{body}\n</details>"
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_numeric(column.numeric)}>{escape(column.text)}{_mark(column)}</th>'
        for column in table.columns
    )
    rows = "\n".join(
        f"<tr>{''.join(_cell(c.numeric, text) for c, text in zip(table.columns, row, strict=True))}</tr>"
        for row in table.rows
    )
    caption = escape(table.caption)
    # Focusable, so that a keyboard can scroll it.
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>\n<caption>{caption}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(numeric: bool, text: str) -> str:
    return f"<td{_numeric(numeric)}>{escape(text)}</td>"


def _numeric(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _mark(column: Column) -> str:
    kind = "mark published" if column.published else "mark"
    return f' <span class="{kind}">{escape(column.mark)}</span>' if column.mark else ""


def _plot(plot: Plot, figure: Figure) -> str:
    source = base64.b64encode(_svg(figure)).decode()
    # As an image and not inline, because the identifiers of several SVG figures in one page would clash.
    return f'<figure><img alt="{escape(plot.alt)}" src="data:image/svg+xml;base64,{source}"></figure>\n'


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    # Without a date and with a salt of its own the same results give the same page.
    with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
