"""The data sets of `collect`: made with a progress bar, shown as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..cli import StopRequest, progress_bar
from ..envs import normalized_score
from ..envs.behaviour.policy import Track
from .checkpoint import saving
from .levels import LevelMaker, Source
from .target import Target


class Stopped(Exception):
    """A signal came while data were made; whole data sets are kept."""


def write_levels(source: Source, files: Mapping[str, Path], n_steps: int, stop: StopRequest) -> str:
    """Makes the data sets, level -> file, that are not there yet; returns a table of all of them.

    Raises:
        Stopped: a signal came.
        DataError: no episode is there to write, or the disk is full.
        SimulationError: a simulation failed.
    """
    with progress_bar(total=0, unit="step", unit_scale=True) as bar:

        def on_episode(track: Track) -> None:
            bar.set_postfix_str(f"return {track.rewards.sum():.0f}", refresh=False)
            bar.update(min(len(track.rewards), (bar.total or 0) - bar.n))
            if stop.signal is not None:
                raise Stopped

        with LevelMaker(source, n_steps, on_episode) as maker:
            rows = {level: maker.made(level, file) for level, file in files.items()}
            acting = {policy for level, row in rows.items() if row is None for policy in maker.policies(level)}
            bar.total = len(acting) * n_steps
            # First what is made of experience alone: where there is too little, nothing is simulated in vain.
            for level, file in sorted(files.items(), key=lambda item: bool(maker.policies(item[0]))):
                bar.set_description(f"{source.target.env_id}, {level}")
                with saving(source.folder):
                    rows[level] = rows[level] or maker.write(level, file)
    header = f"{'level':<14} {'episodes':>8} {'steps':>9} {'return':>9} {'score':>6} {'length':>7}  file"
    return "\n".join([header, *(_line(level, row or {}, source.target, files[level]) for level, row in rows.items())])


def _line(level: str, row: Mapping[str, float], target: Target, file: Path) -> str:
    """A row of the table; without reference returns there is no score."""
    score = f"{normalized_score(target.family, row['mean_return']):.1f}" if target.family else "-"
    return (
        f"{level:<14} {row['episodes']:>8.0f} {row['total_steps']:>9.0f} {row['mean_return']:>9.1f} {score:>6} "
        f"{row['mean_length']:>7.1f}  {file}"
    )
