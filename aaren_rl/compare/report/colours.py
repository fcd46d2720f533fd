"""Colours of a report's figures, on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from ..cells import Cell

INK, SOFT, LINE = "#1c1f23", "#5a6270", "#d9dde3"  # text, what stands behind it, grids
PAGE = "#fffffe"  # the page's own, around a text that lines run behind

# Okabe and Ito's colours, which stay apart for the colour-blind; markers differ as well, for print in grey.
_FIXED = {
    "decision-aaren": ("#0072b2", "o"),
    "decision-transformer": ("#d55e00", "s"),
    "decision-transformer-1token": ("#aa3377", "d"),
    "decision-aaren-rsa": ("#56b4e9", "v"),
    "decision-rsa": ("#cc79a7", "D"),
    "decision-transformer-tree": ("#e69f00", "P"),
    "bc": ("#009e73", "^"),
    "bc-10": ("#8f7700", "<"),
}
_OTHERS = [("#999999", "p"), ("#f0e442", ">"), ("#000000", "X")]

# What each becomes on a dark page; the others are seen on both.
DARK = {
    INK: "#e6e9ed",
    SOFT: "#a3acb8",
    LINE: "#363d47",
    PAGE: "#14181d",
    "#0072b2": "#4aa8ec",
    "#56b4e9": "#a9dcff",
    "#d55e00": "#ff8b45",
    "#aa3377": "#e07bb0",
    "#000000": "#ffffff",
}

Styles = Mapping[str, tuple[str, str]]  # agent -> colour, marker


def styles_of(cells: Sequence[Cell]) -> Styles:
    """A colour and a marker for every agent, the same in all figures."""
    others = sorted({cell.agent for cell in cells} - set(_FIXED))
    return _FIXED | {agent: _OTHERS[i % len(_OTHERS)] for i, agent in enumerate(others)}


def paint(axes: Axes) -> None:
    """Gives axes colours that `DARK` has a counterpart of."""
    axes.tick_params(which="both", color=SOFT, labelcolor=INK)
    axes.spines[:].set_color(SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color=LINE, linewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(INK)
