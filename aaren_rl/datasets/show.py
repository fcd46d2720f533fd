"""How a dataset's numbers are shown: a table with a histogram in the terminal, and a picture."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs import Episodes
from ..envs.files import write_whole
from ..policies.names import SOURCES
from .describe import QUANTILES, Description

BINS = 16
BAR_WIDTH = 50  # characters of the fullest bin's bar


def size_text(n_bytes: int) -> str:
    """A number of bytes in kB, MB or GB, as `ls -lh` would round it but with powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B"


def histogram(values: npt.NDArray[Any], bins: int = BINS) -> list[str]:
    """One line a bin: its lower edge, a bar and the number of values; the values of equal bins of [min, max]."""
    counts, edges = np.histogram(values, bins=bins)
    return [
        f"{edge:>10.1f} |{'#' * round(BAR_WIDTH * count / counts.max()):<{BAR_WIDTH}} {count:,}"
        for edge, count in zip(edges[:-1], counts, strict=True)
    ]


def format_description(description: Description, sha256: str, n_bytes: int, episodes: Episodes) -> str:
    """The table of `info`."""
    d = description
    constant = ", ".join(map(str, d.constant_columns)) or "none"
    score = "-" if d.score_mean is None else f"{d.score_mean:.1f} ({d.reference}: 100 (R - random) / (expert - random))"
    titles = ["min", *(f"{q} %" for q in QUANTILES[1:-1]), "max", "mean"]
    return "\n".join(
        [
            f"{d.dataset}, from {SOURCES[d.source]}",
            f"file          {d.path} ({size_text(n_bytes)})",
            f"SHA-256       {sha256}",
            f"environment   {d.env_id or 'not named'}",
            *(f"note          {note}" for note in d.notes),
            f"episodes      {d.episodes:,}, {d.terminated_share:.1%} terminated, the others cut by a time limit",
            f"steps         {d.steps:,}",
            f"observations  {d.observation_dim} columns, constant: {constant}",
            f"actions       {d.action_dim} columns in [{d.action_range[0]:.4g}, {d.action_range[1]:.4g}]",
            f"mean score    {score}",
            "",
            f"{'':8}" + "".join(f"{title:>10}" for title in titles),
            *(
                f"{name:8}" + "".join(f"{value:>10.1f}" for value in (*spread.quantiles, spread.mean))
                for name, spread in (("return", d.returns), ("length", d.lengths))
            ),
            "",
            "episodes by return",
            *histogram(episodes.returns),
        ]
    )


def to_json(description: Description, sha256: str, n_bytes: int) -> dict[str, Any]:
    """The same as plain values."""
    values = dataclasses.asdict(description)
    for name in ("returns", "lengths"):
        names = ["min", *(f"q{q}" for q in QUANTILES[1:-1]), "max"]
        spread = values[name]
        values[name] = {"mean": spread["mean"], **dict(zip(names, spread["quantiles"], strict=True))}
    return {**values, "sha256": sha256, "bytes": n_bytes}


def draw(path: Path, description: Description, episodes: Episodes) -> None:
    """Draw histograms of the returns and the lengths into a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    # Imported here: it takes a second, and only this needs it. Without pyplot no window system is looked for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(f"{description.dataset}, from {SOURCES[description.source]}: {description.episodes:,} episodes")
    columns = (
        ("return", episodes.returns, description.returns),
        ("length, steps", episodes.lengths, description.lengths),
    )
    for axes, (name, values, spread) in zip(figure.subplots(1, 2), columns, strict=True):
        axes.hist(values, bins=4 * BINS)
        axes.axvline(spread.mean, color="black", linestyle="--", label=f"mean {spread.mean:,.0f}")
        axes.set(xlabel=name, ylabel="episodes")
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_whole(path, image.getbuffer())
