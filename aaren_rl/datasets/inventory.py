"""Which datasets lie on this machine; nothing is fetched or made."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..envs.behaviour.local_sets import local_levels
from ..envs.data.download import pin_path
from ..envs.data.minari.spec import MinariSpec, check_minari_id, minari_data_dir, minari_dataset_dir, read_spec
from ..envs.data.names import data_files
from ..envs.errors import DataError, EnvsError
from ..envs.tasks.table import TASKS, D4RLTask

_MAX_DEPTH = 8


@dataclass(frozen=True)
class Holding:
    """What there is of one task: the bytes of each source's file, None where it is not on this machine.

    `sizes` has the sources that the task has at all: "d4rl", "local" where a behaviour policy ships, "minari".
    """

    task: D4RLTask
    sizes: dict[str, int | None]
    pinned: bool


@dataclass(frozen=True)
class MinariHolding:
    """A Minari dataset on this machine: its metadata, or why they cannot be used."""

    dataset_id: str
    bytes: int
    spec: MinariSpec | None
    fault: str | None


def holdings() -> list[Holding]:
    """What there is of each task of the table, in its order."""
    return [_holding(task) for task in TASKS.values()]


def _holding(task: D4RLTask) -> Holding:
    files = data_files(task)
    if task.level not in local_levels(task.family):
        del files["local"]
    sizes = {kind: path.stat().st_size if path.is_file() else None for kind, path in files.items()}
    return Holding(task, sizes, pin_path(files["d4rl"]).is_file())


def minari_holdings() -> list[MinariHolding]:
    """The datasets in Minari's folder, by id."""
    root = minari_dataset_dir()
    found = []
    for folder in sorted(_dataset_folders(root, _MAX_DEPTH)):
        dataset_id = folder.relative_to(root).as_posix()
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        try:
            spec = read_spec(minari_data_dir(check_minari_id(dataset_id)) / "metadata.json")
            found.append(MinariHolding(dataset_id, size, spec, None))
        except EnvsError as error:
            found.append(MinariHolding(dataset_id, size, None, str(error)))
    return found


def _dataset_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a `data` folder; hidden ones are unfinished downloads."""
    try:
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        if not folder.exists():
            return
        raise DataError(f"{folder}: cannot be read ({error.strerror}); change its mode or owner") from error
    if any(path.name == "data" for path in inner):
        yield folder
    elif depth:
        for path in inner:
            yield from _dataset_folders(path, depth - 1)
