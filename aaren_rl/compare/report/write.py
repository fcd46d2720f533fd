"""The report of a comparison: a page, its text in Markdown, and a table for the terminal."""

import base64
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from ...base.files import write_text
from ...envs.tasks.table import is_d4rl_scale
from ...policies.names import DATA, label
from ..cells import Cell
from ..imitation import RESAMPLES as ERROR_RESAMPLES
from ..published import PUBLISHED
from ..statistics import MIN_SEEDS, RESAMPLES, agents_of, group
from . import tables
from .answer import answer
from .figures import DARK, NARROW, OVERVIEW, figures, overview
from .tables import NOTHING, TEXTS, Table, data_returns, joined

PAGE = "report.html"


def write_report(out: Path, cells: Sequence[Cell], settings: Mapping[str, Any]) -> None:
    """Writes report.html, which needs no other file, and report.md into the folder `out`; shows all `settings`."""
    drawn = figures(cells) | {"narrow": overview(cells, NARROW)}
    said = _content(cells, settings) | {"images": {name: _image(figure) for name, figure in drawn.items()}}
    out.mkdir(parents=True, exist_ok=True)
    markdown = _render("report.md.j2", said, finalize=_escape)
    write_text(out / "report.md", re.sub(r"\n{3,}", "\n\n", markdown).strip() + "\n")
    write_text(out / PAGE, _render(f"{PAGE}.j2", said))


def format_comparison(cells: Sequence[Cell]) -> str:
    """The scores and action errors as plain text, for the end of the command."""
    errors = [*tables.errors(cells), *tables.error_differences(cells)]
    over = "95% intervals over training seeds, from three seeds on"
    if errors:
        over += "; of held-out errors over episodes, of their differences over both"
    closing = textwrap.fill(f"{answer(cells)} In brackets: {over}.", 120)
    return "\n\n".join([*map(_to_text, tables.scores(cells)), *data_returns(cells), *map(_to_text, errors), closing])


def _content(cells: Sequence[Cell], settings: Mapping[str, Any]) -> dict[str, Any]:
    tasks = joined(list(group(cells)))
    found = {source for cell in cells for source in tables.published_beside(cell.last, cell.agent)}
    # What stands behind the command's -- is in the command.
    shown = {key: value for key, value in settings.items() if key not in ("command", "train")}
    names = ("scores", "improvement", "errors", "error_differences", "cost", "made", "seeds")
    return {
        "page": PAGE,
        "title": f"{joined([label(agent) for agent in agents_of(cells)])} on {tasks}",
        "opening": f"{tasks}: the score of every training seed, each agent's mean, and what the data return",
        "answer": answer(cells),
        "sources": {cell.env: cell.last.source for cell in cells},
        "agents_of_task": {
            env: joined([f"{label(agent)} ({len(of_agent)} training seeds)" for agent, of_agent in runs.items()])
            for env, runs in group(cells).items()
        },
        "data_returns": data_returns(cells),
        "d4rl_scale": next((c.last.reference for c in cells if is_d4rl_scale(c.last.reference)), None),
        "published": [source for source in PUBLISHED if source in found],
        "command_line": settings.get("command"),
        "settings": Table("Settings of the comparison", tables.settings_of(shown)),
        **{name: getattr(tables, name)(cells) for name in names},
    }


def _render(template: str, said: Mapping[str, Any], **options: Any) -> str:  # noqa: ANN401  as Environment has them
    """A template's text, in which everything that is not the template's own is escaped."""
    loader = PackageLoader(__package__, "")
    jinja = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )
    jinja.globals |= {
        **{"RESAMPLES": RESAMPLES, "MIN_SEEDS": MIN_SEEDS, "OVERVIEW": OVERVIEW},
        **{"ERROR_RESAMPLES": ERROR_RESAMPLES, "PUBLISHED": PUBLISHED, "TEXTS": TEXTS, "DATA": DATA},
        "one_line": lambda text: type(text)(" ".join(text.split())),  # Markup stays Markup
    }
    return jinja.get_template(template).render(said)


def _escape(value: object) -> Markup:
    """Names and paths as they are in Markdown: no markup, no link, no new line or column."""
    if isinstance(value, Markup):
        return value
    return Markup(re.sub(r"([\\`*_|<>&#~]|(?<=\])\()", r"\\\1", " ".join(str(value).split())))


def _image(figure: Figure) -> dict[str, str]:
    file = io.StringIO()
    # Without a date and with a salt of its own the same results give the same page.
    with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    light = file.getvalue()
    dark = re.sub("#[0-9a-f]{6}", lambda found: DARK.get(found[0], found[0]), light)
    kinds = {"light": light, "dark": dark}
    return {kind: f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" for kind, svg in kinds.items()}


def _to_text(table: Table) -> str:
    mark = next(iter(table.marks.values()), "")
    padded = []
    for name in (name for name in table.heads if name not in PUBLISHED):
        texts = [name, *(row[name] for row in table.rows)]
        side = f"{'<' if name in TEXTS else '>'}{max(map(len, texts))}"
        padded.append([f"{text:{side}}" for text in texts])
    told = [f"{table.caption}; data: {mark}" if mark else table.caption]
    told += ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    for name in table.heads:
        if name in PUBLISHED:
            found = [f"{row['agent']} {row[name]}" for row in table.rows if row[name] != NOTHING]
            told.append(f"{name} ({table.marks[name]}): {', '.join(found)}")
    return "\n".join(told)
