"""A report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from html import escape

import matplotlib
from matplotlib.figure import Figure

from .colours import DARK
from .document import Column, Command, Document, Plot, Section, Table

# Below this many pixels a row of a table is a block, a line for each cell; nothing is ever wider than the page.
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #5a6270; --line: #d9dde3; --tint: #f4f6f8; --page: #fff;
  --accent: #0072b2; --published: #7a4a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a3acb8; --line: #363d47; --tint: #1f242b;
  --page: #14181d; --accent: #4aa8ec; --published: #e0b070; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 2rem 1.5rem 4rem; color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2, summary { font-size: 1.25rem; font-weight: 650; margin: 2.75rem 0 .5rem; }
p { margin: .5rem 0; max-width: 80ch; overflow-wrap: anywhere; }
.answer { font-size: 1.1rem; max-width: none; margin: 1.25rem 0; padding: .9rem 1.1rem; background: var(--tint);
  border-left: 4px solid var(--accent); border-radius: 0 4px 4px 0; }
figure { margin: 0; }
img { display: block; width: 100%; height: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem 2rem;
  margin: 1rem 0; }
pre { margin: .75rem 0; padding: .75rem 1rem; background: var(--tint); border-radius: 4px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
table { width: 100%; margin: 1rem 0; border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .25rem .5rem; }
th, td { padding: .4rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
thead th { background: var(--tint); vertical-align: bottom; overflow-wrap: normal; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.mark { display: block; font-size: .75rem; font-weight: 500; color: var(--soft); }
.mark.published { color: var(--published); }
summary { cursor: pointer; }
@media (max-width: 980px) {
  body { padding: 1.25rem 1rem 3rem; } h1 { font-size: 1.35rem; } .answer { font-size: 1rem; }
  table, caption, tbody, tr, td { display: block; } thead { display: none; }
  tr { padding: .5rem 0; border-bottom: 2px solid var(--line); }
  td { display: flex; justify-content: space-between; gap: 1rem; padding: .15rem .5rem; border: 0; text-align: right; }
  td::before { content: attr(data-column); color: var(--soft); text-align: left; white-space: normal; }
}
"""


def to_html(document: Document, figures: Mapping[str, Figure], narrow: Figure) -> str:
    """The page; everything that is not this module's own is escaped.

    Args:
        document: what it says.
        figures: those it names.
        narrow: the opening figure for phones.
    """
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
{_plot(document.opening, figures[document.opening.name], narrow)}
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
        elif isinstance(block, Table):
            parts.append(_table(block))
        else:
            tag = "pre" if isinstance(block, Command) else "p"
            parts.append(f"<{tag}>{escape(block.text)}</{tag}>")
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
        f"<tr>{''.join(_cell(c, text) for c, text in zip(table.columns, row, strict=True))}</tr>" for row in table.rows
    )
    return (
        f"<table>\n<caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody></table>"
    )


def _cell(column: Column, text: str) -> str:
    name = f"{column.text} ({column.mark})" if column.mark else column.text
    return f'<td{_numeric(column.numeric)} data-column="{escape(name)}">{escape(text)}</td>'


def _numeric(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _mark(column: Column) -> str:
    kind = "mark published" if column.published else "mark"
    return f' <span class="{kind}">{escape(column.mark)}</span>' if column.mark else ""


def _plot(plot: Plot, figure: Figure, narrow: Figure | None = None) -> str:
    # As images and not inline, because the identifiers of several SVG figures in one page would clash.
    light, dark = _sources(figure)
    sources = [("(prefers-color-scheme: dark)", dark)]
    if narrow is not None:
        on_a_phone, on_a_dark_one = _sources(narrow)
        phone = "(max-width: 600px)"
        sources = [(f"{phone} and {sources[0][0]}", on_a_dark_one), (phone, on_a_phone), *sources]
    others = "".join(f'<source media="{media}" srcset="{source}">' for media, source in sources)
    return f'<figure><picture>{others}<img alt="{escape(plot.alt)}" src="{light}"></picture></figure>\n'


def _sources(figure: Figure) -> tuple[str, str]:
    """The figure as the source of an image, for a light page and for a dark one."""
    light = _svg(figure)
    dark = re.sub("#[0-9a-f]{6}", lambda found: DARK.get(found[0], found[0]), light)
    first, second = (base64.b64encode(svg.encode()).decode() for svg in (light, dark))
    return f"data:image/svg+xml;base64,{first}", f"data:image/svg+xml;base64,{second}"


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    # Without a date and with a salt of its own the same results give the same page.
    with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()
