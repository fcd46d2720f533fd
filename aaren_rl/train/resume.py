"""What a resumed run continues from: its configuration with what may change, and its last checkpoint."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from torch import Tensor

from ..base.errors import CheckpointError
from ..evaluate.held_out import SAME_MEAN
from ..runs.checkpoints import Checkpoint, newest_whole
from ..runs.folder import RunFolder, holds_training
from .config import RunConfig
from .fit import notes_on_fewer_steps
from .records import Run
from .settings import Request, build_config, differences, preset_settings, read_config, settings_of

# Required keys of a checkpoint, besides those of `Trainer.states`.
TENSORS = ("sampler", "recent", "torch", "normalization")
STATES = {"raw": dict, "ema": dict, "optimizer": dict} | dict.fromkeys(TENSORS, Tensor)


def config_to_resume(folder: RunFolder, request: Request) -> RunConfig:
    """The configuration of a run with more updates or another source if requested.

    Raises CheckpointError if other requested settings differ, unless nothing was saved yet.
    """
    folder.require_run()
    config, path, given = read_config(folder.config_file), folder.path, request.given
    if given.get("updates", 0) > config.optimizer.updates:  # resuming may extend a run
        for note in notes_on_fewer_steps(config):
            print(note, file=sys.stderr)
        config = build_config({**settings_of(config), "updates": given["updates"]})
    source = given["source"] if "source" in request.typed else config.data.source  # patterns are files by now
    if source != config.data.source:  # the checkpoint tells whose
        print(f"{path}: the data are {source} from now on, no longer {config.data.source}", file=sys.stderr)
        config = build_config({**settings_of(config), "source": source})
    preset = {} if request.preset == "default" else preset_settings(request.preset, request.config.agent)
    if differing := "; ".join(differences(config, preset | given)):
        if not holds_training(path):
            print(f"{path}: no checkpoint was saved yet; starting with {differing}", file=sys.stderr)
            return build_config({**settings_of(config), **preset, **given})
        if named := differences(config, given):
            raise CheckpointError(f"{path}: the run to resume differs in {'; '.join(named)}")
        print(f"{path}: keeps its settings, not those of --preset {request.preset}: {differing}", file=sys.stderr)
    return config


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint of a run, or None before its first. Raises the errors of `newest_whole`."""
    return newest_whole(folder, STATES, lambda found: found)


def checkpoint_of(run: Run) -> Checkpoint | None:
    """The last checkpoint of a run, None before its first.

    Raises CheckpointError if the run was trained on other data until then.
    """
    checkpoint = find_checkpoint(run.path / "checkpoints")
    if checkpoint is None:
        print("no checkpoint yet: starting over", file=sys.stderr)
        return None
    episodes, now, then = run.data.steps.episodes, run.data.identity, checkpoint.progress.get("data")
    way_out = "resume with the data of the run, or start a new one with another --out"
    if not np.allclose(now, then or math.nan, rtol=SAME_MEAN, atol=0):
        raise CheckpointError(
            f"{run.path}: {episodes.dataset} has changed since the run was started: steps and mean return are "
            f"{now}, then {then}; {way_out}"
        )
    mine, sha256 = run.data.sha256, checkpoint.progress.get("data_sha256")
    # Local sets that other processors made may differ by rounding.
    if sha256 not in (None, mine) and episodes.source != "local":
        raise CheckpointError(
            f"{run.path}: {episodes.dataset} has as many steps and the mean return of the run's data, but other "
            f"numbers (SHA-256 {mine[:16]}..., then {sha256[:16]}...); {way_out}"
        )
    if sha256 is None:
        print("note: this run has no hash of its data: they were compared by steps and mean return", file=sys.stderr)
    before, after = checkpoint.progress.get("precision"), run.trainer.precision
    if before not in (None, after):
        print(f"note: the run was in {before}, this processor continues in {after} (--precision auto)", file=sys.stderr)
    return checkpoint
