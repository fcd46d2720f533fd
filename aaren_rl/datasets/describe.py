"""A dataset in numbers: as plain values, as a table for the terminal."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import printable
from ..base.files import sha256
from ..cli import aligned
from ..envs import Episodes, Reference, normalized_score
from ..envs.data.episodes import blocks, moments
from ..envs.tasks.table import is_d4rl_scale
from ..policies.card import SOURCES

_QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
_FAR_OUT = 10
_SOME_ROWS = 100_000
_LISTED = 40  # columns; those of more are in JSON


def describe(episodes: Episodes, reference: Reference | None) -> dict[str, Any]:
    """A dataset in numbers, with where it comes from, as plain values.

    Returns are undiscounted, `score_mean` is the mean score with the returns of `reference`. `ends` counts episodes by
    what ended them, `terminated_share` is the share that the environment ended. `observation_columns` and
    `action_columns` have a `describe_columns` each, `constant_columns` are the observation columns that training takes
    as constant, `action_shares` of discrete actions tell how often each was taken.
    """
    constant, path, ended = episodes.statistics().constant, Path(episodes.path), int(episodes.terminated.sum())
    score = None if reference is None else float(normalized_score(reference, episodes.returns).mean())
    return {
        "dataset": episodes.dataset,
        "source": episodes.source,
        "path": episodes.path,
        "env_id": episodes.env_id,
        "notes": episodes.notes,
        "episodes": len(episodes),
        "steps": episodes.n_steps,
        "returns": _spread(episodes.returns),
        "lengths": _spread(episodes.lengths),
        "reference": None if reference is None else reference.name,
        "score_mean": score,
        "ends": {"terminated": ended, "truncated": len(episodes) - ended},
        "terminated_share": float(episodes.terminated.mean()),
        "observation_dim": episodes.observation_dim,
        "observation_columns": describe_columns(episodes.observations),
        "constant_columns": np.flatnonzero(constant).tolist(),
        "action_dim": episodes.action_dim,
        "action_columns": None if episodes.discrete else describe_columns(episodes.actions),
        "action_range": episodes.action_range(),
        "action_shares": _shares(episodes.actions) if episodes.discrete else None,
        "sha256": sha256(path) if path.is_file() else None,
        "bytes": sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file()),
    }


def describe_columns(values: npt.NDArray[Any]) -> dict[str, list[Any]]:
    """Of each column of (N, columns): its "min", "mean", "max", "std" and number of "outliers".

    An outlier lies outside of the range of the middle 98% by more than `_FAR_OUT` times that range, or as many
    deviations where these are one number. The range is that of some rows of many.
    """
    mean, std = moments(values)
    some = values[:: -(-len(values) // _SOME_ROWS)].astype(np.float64)
    low, high = np.percentile(some, (1, 99), axis=0)
    spread = _FAR_OUT * np.where(high > low, high - low, std)
    outliers, least, most = np.zeros(len(mean), np.int64), np.full(len(mean), np.inf), np.full(len(mean), -np.inf)
    for block in blocks(values):
        least, most = np.minimum(least, block.min(axis=0)), np.maximum(most, block.max(axis=0))
        outliers += ((block < low - spread) | (block > high + spread)).sum(axis=0)
    columns = {"min": least, "mean": mean, "max": most, "std": std, "outliers": outliers}
    return {name: column.tolist() for name, column in columns.items()}


def _shares(actions: npt.NDArray[np.int64]) -> dict[str, float]:
    """Of every discrete action that was taken, its share of the steps."""
    taken, counts = np.unique(actions, return_counts=True)
    return dict(zip(map(str, taken.tolist()), (counts / len(actions)).tolist(), strict=True))


def _spread(values: npt.NDArray[Any]) -> dict[str, float]:
    """Of one number an episode: its mean and quantiles; those between two values are interpolated."""
    names = ["min", *(f"q{q}" for q in _QUANTILES[1:-1]), "max"]
    quantiles = np.percentile(values, _QUANTILES).tolist()
    return {"mean": float(values.mean()), **dict(zip(names, quantiles, strict=True))}


def size_text(n_bytes: int) -> str:
    """A number of bytes in kB, MB or GB, as `ls -lh` would round it but with powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B"


def format_description(d: dict[str, Any]) -> str:
    """The table of `info`, from what `describe` returns."""
    constant = ", ".join(map(str, d["constant_columns"])) or "none"
    score = "-"
    if d["reference"] is not None:
        formula = ": 100 (R - random) / (expert - random)" if is_d4rl_scale(d["reference"]) else ""
        score = f"{d['score_mean']:.1f} ({d['reference']}{formula})"
    low, high = d["action_range"]
    actions = f"{d['action_dim']} columns in [{low:.4g}, {high:.4g}]"
    if shares := d["action_shares"]:
        actions = f"discrete, {len(shares)} taken: " + ", ".join(f"{a} ({of:.1%})" for a, of in shares.items())
    columns = sorted(d["returns"], key="mean".__eq__)  # the mean last
    spreads = [("return", d["returns"]), ("length", d["lengths"])]
    return "\n".join(
        [
            f"{d['dataset']}, from {SOURCES[d['source']]}",
            f"file          {printable(d['path'])} ({size_text(d['bytes'])})",
            f"SHA-256       {d['sha256'] or '-'}",
            f"environment   {d['env_id'] or 'not named'}",
            *(f"note          {note}" for note in d["notes"]),
            f"episodes      {d['episodes']:,}, {d['ends']['terminated']:,} terminated ({d['terminated_share']:.1%}), "
            f"{d['ends']['truncated']:,} cut by a time limit",
            f"steps         {d['steps']:,}",
            f"observations  {d['observation_dim']} columns, constant: {constant}",
            f"actions       {actions}",
            f"mean score    {score}",
            "",
            f"{'':8}" + "".join(f"{f'{c[1:]} %' if c[0] == 'q' else c:>10}" for c in columns),
            *(f"{name:8}" + "".join(f"{of[column]:>10.6g}" for column in columns) for name, of in spreads),
            "",
            *_columns_table(d),
        ]
    )


def _columns_table(d: dict[str, Any]) -> list[str]:
    kinds = {"observation": d["observation_columns"], "action": d["action_columns"] or {"min": []}}
    rows = [("column", *d["observation_columns"], "")]
    for kind, columns in kinds.items():
        for i, (*numbers, outliers) in enumerate(list(zip(*columns.values(), strict=True))[:_LISTED]):
            note = "constant" if kind == "observation" and i in d["constant_columns"] else ""
            rows.append((f"{kind} {i}", *(f"{number:.9g}" for number in numbers), f"{outliers:,}", note))
    more = sum(max(0, len(columns["min"]) - _LISTED) for columns in kinds.values())
    return [*aligned(rows), *([f"and {more:,} more; --json has them"] if more else [])]
