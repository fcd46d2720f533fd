"""Axes of plots."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter


def logarithmic(axes: Axes, decades: tuple[int, ...] = (1, 2, 5)) -> None:
    """Make both axes logarithmic, with plain numbers such as 50, 100, 200 instead of powers of ten."""
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=decades))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
