"""Fetching a Minari dataset with the `minari` package: whole or not at all, checked, and by one process at a time."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ...errors import DataError, one_line
from ...files import alone, sha256, sync, writing
from ...lifeline import start_child
from ..download import write_pin
from .spec import WAY_OUT, minari_data_dir

# A process of its own: the package can only be told by an environment variable where to put a dataset, prints on stdout
# and warns. It downloads without loading, so nothing that the dataset names is imported there either.
_FETCH = """
import contextlib, json, sys
reason = None
try:
    with contextlib.redirect_stdout(None):
        import minari
        # Forced, because it takes the folder of an earlier download that broke off for a dataset.
        minari.download_dataset(sys.argv[1], force_download=True)
except Exception as error:
    while error.__cause__ is not None:  # the hub's client wraps what happened into advice
        error = error.__cause__
    reason = f"{type(error).__name__}: {error}"
json.dump(reason, sys.stdout)
"""


def fetch_minari(dataset_id: str, *, check: Callable[[Path], object], progress: bool = True) -> None:
    """Fetch a dataset into Minari's folder from the package's remote, with a line on stderr that says so.

    One process does it; others that want the same dataset wait. It is fetched beside its place, which a later call goes
    on with after a break, and must pass `check`, which gets the folder with its files and raises DataError; its HDF5
    file is then pinned in `main_data.hdf5.sha256`, and the folder renamed. `progress` lets the package's bars through.

    Raises:
        UsageError: not a Minari id.
        DataError: the remote cannot be reached or does not have it, what it sent fails the check and is deleted, or the
            folder cannot be written.
    """
    target = minari_data_dir(dataset_id).parent
    with alone(target, "downloading", WAY_OUT), writing(target, WAY_OUT):
        # Another process may have fetched it while this one waited.
        if not target.exists():
            remote = os.environ.get("MINARI_REMOTE") or "Hugging Face"
            print(f"{dataset_id}: downloading from {remote} to {target}, where it is not yet", file=sys.stderr)
            # Minari does not list hidden folders.
            staging = target.with_name(f".{target.name}.part")
            staging.mkdir(exist_ok=True)
            _run(dataset_id, staging, target, progress)
            _accept(staging, dataset_id, target, check)


def _run(dataset_id: str, staging: Path, target: Path, progress: bool) -> None:
    quiet = {"HF_HUB_VERBOSITY": "error"} | ({} if progress else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    child = start_child(
        _FETCH,
        [dataset_id],
        flags=["-P", "-W", "ignore"],  # -P: whatever lies in the working directory is not imported
        env={**quiet, **os.environ, "MINARI_DATASETS_PATH": str(staging)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.DEVNULL,
    )
    said, _ = child.communicate()
    try:
        reason = json.loads(said)
    except ValueError:
        reason = f"the download ended with code {child.returncode}"
    if reason is not None:
        raise DataError(
            f"{dataset_id}: minari could not download it ({one_line(reason)}); check the id and the network, name "
            f"another remote in MINARI_REMOTE, or put the dataset's folder at {target}"
        )


def _accept(staging: Path, dataset_id: str, target: Path, check: Callable[[Path], object]) -> None:
    arrived = staging / dataset_id
    try:
        check(arrived / "data")
    except DataError as error:
        shutil.rmtree(staging, ignore_errors=True)
        reason = str(error).replace(str(arrived), target.name)
        raise DataError(f"{dataset_id}: what was downloaded was deleted: {reason}") from error
    data = arrived / "data" / "main_data.hdf5"
    sync(data)
    write_pin(data, sha256(data))
    os.replace(arrived, target)
    sync(target.parent)
    shutil.rmtree(staging, ignore_errors=True)
