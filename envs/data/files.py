"""Files and values of a Python program to columns: HDF5, .npz, CSV and parquet, arrays, trajectories, frames.

Each source only gives tables of columns; `rules.assemble` makes episodes of them. Nothing but the file itself is read:
links to other files, virtual datasets and external storage are errors, and nothing is unpickled.
"""

import dataclasses
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import AarenRLError, DataError, ResourcesError, UsageError, one_line
from ...base.files import sha256, write_whole
from ..tasks.spaces import Layout, checked_layout, flat_size, layout_of, transposed
from .columns import CONVERT, MEANING, NAMES, OBSERVATIONS, UNREADABLE, Column, Found, Limits, Table, Tree
from .episodes import Episodes
from .rules import assemble

SUFFIXES = (".hdf5", ".h5", ".npz", ".csv", ".parquet", ".pkl", ".pickle")
_FRAMES = (".csv", ".parquet")
_OTHERS = (".npy", ".json", ".yaml", ".txt", ".pt", ".zip", ".arrow")  # are no HDF5 files, whatever is in them
_D3RLPY = ("observations", "actions", "rewards", "terminated")
_NUMBERED = re.compile(r"(\D*?)_?(\d{1,9})")
_INDEXED = re.compile(r"_index_(\d{1,9})")  # Minari's name for a part of a tuple
_SPACE = "observation_space"  # attribute: the layout of observations that were dicts or tuples, as JSON
_PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value")  # netCDF's
_DEPTH = 16
_AS_MANY = "give as many numbers for each step"
_KEYS = "give a dict of observations, actions, rewards, and terminated or truncated where they are known"
# Arguments of Python calls: those that data are held to, by their field of `Limits`, and those that name data.
_HELD = {"observation_space": "layout", "kind": "actions", "names": "columns"}
_HELD |= {name: name for name in ("observation_keys", "max_episode_steps")}
_LABELS = ("dataset", "env_id", "source", "notes")


# Files


def read_file(path: str | os.PathLike[str], *, dataset: str | None = None, **limits: Any) -> Episodes:
    """Read an HDF5, .npz, CSV or parquet file, or a folder of parquet files (LeRobot's); held to its pin, if any.

    HDF5 files have observations (N, O), actions (N, A), rewards, terminals and timeouts (N,), as D4RL's; d3rlpy's and
    robomimic's, whose episodes are apart, are read, too. A group of observations is laid side by side, as Gymnasium
    flattens a dict; the attribute "observation_space" names the parts of flat ones. Integers as actions, (N,) or
    (N, 1), are discrete. Tables have a row for each step; obs_0, obs_1, ... and columns of lists hold several numbers.
    Entries may have the names of `columns.NAMES`. `limits` are the fields of `columns.Limits`.

    Real numbers become float32. Episodes end where a flag is set, and after `max_episode_steps` at the latest. An
    unfinished last one is left out, with a note.

    Raises:
        DataError: the file is missing, damaged, of another format or size, or as `rules.assemble`.
        UsageError: a limit is not possible.
        ResourcesError: parquet needs pyarrow, which is not installed.
    """
    return read(Path(path), Limits(**limits), dataset)


def read(path: Path, limits: Limits, dataset: str | None = None) -> Episodes:
    """`read_file` with `columns.Limits`."""
    notes, texts = list[str](), dict[str, str]()
    with ExitStack() as stack:  # closes an HDF5 file, whose columns are read on demand
        with readable(path):
            verify_pin(path)
            if (kind := _kind(path)) == "hdf5":  # clusters mount data without locks
                file = stack.enter_context(h5py.File(path, "r", locking="best-effort"))
                texts = _texts(file.attrs)
                tables, one_each = hdf5_tables(file, notes)
            else:
                tables, one_each = [Table(str(path), _npz(path) if kind == "npz" else _frame(path, notes))], False
        notes += [f"{name}: {texts[name][:200]}" for name in ("origin", "policy") if name in texts]
        env_id = texts["env_id"][:200] if "env_id" in texts else None
        labels: dict[str, Any] = {"dataset": dataset or path.stem, "env_id": env_id, "notes": tuple(notes)}
        fields = assemble(tables, limits, path=str(path), one_each=one_each, **labels)
    if _SPACE in texts and not limits.observation_keys:
        fields["layout"] = _described(f"{path}:{_SPACE}", texts[_SPACE], fields["observations"].shape[1])
    return Episodes(**fields)


def _texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The attributes that are texts, as printable lines."""
    given = {name: of.decode(errors="replace") if isinstance(of, bytes) else of for name, of in attributes.items()}
    lines = {name: " ".join(of.split()) for name, of in given.items() if isinstance(of, str)}
    return {name: "".join(filter(str.isprintable, line)) for name, line in lines.items()}


def _described(place: str, text: str, columns: int) -> Layout:
    """The layout of flat observations that a file describes; DataError: it describes none, or other ones."""
    try:
        layout = checked_layout(json.loads(text))
        if (size := flat_size(layout)) != columns:
            raise ValueError(f"describes {size} columns, not its own")
    except ValueError as error:
        raise DataError(f"{place}: {one_line(error, 150)}; delete the attribute") from error
    return layout


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Every failure of the body that comes from a missing or damaged file becomes a DataError."""
    if not path.exists():
        raise DataError(f"{path}: does not exist; check the path, or get the file and put it there")
    if not (path.is_file() or path.is_dir()):  # opening a pipe would wait for its other end
        raise DataError(f"{path}: is a device or a pipe; give a file")
    if path.is_file() and not path.stat().st_size:
        raise DataError(f"{path}: is empty (0 bytes), so its download or copy did not finish; get it again")
    try:
        yield
    except (AarenRLError, MemoryError):
        raise
    except ImportError as error:
        raise ResourcesError(f"{path}: parquet files need pyarrow; pip install pyarrow") from error
    except Exception as error:  # what libraries raise on a damaged file depends on where the damage is
        said = one_line(error, 150)
        if "lock file" in said or "already open" in said:
            raise DataError(f"{path}: another program is writing it ({said}); read it when that is done") from error
        raise DataError(f"{path}: {UNREADABLE.format(said)}") from error


def _kind(path: Path) -> str:
    """The format, "hdf5", "npz" or "frame"; DataError: another one."""
    suffix = path.suffix.lower()
    if suffix in _FRAMES or (path.is_dir() and any(path.glob("**/*.parquet"))):
        return "frame"
    if path.is_dir():
        raise DataError(f"{path}: is not a file, and has no parquet files; give a file")
    with open(path, "rb") as file:
        begin = file.read(8)
    if suffix in (".pkl", ".pickle") or begin[:1] == b"\x80":
        way_out = "pickle.load it and give aaren_rl.Episodes.from_trajectories what it holds (docs/howto/own-data.md)"
        raise DataError(f"{path}: is a pickle, which may run code when it is read; if you trust it, {way_out}")
    if suffix == ".npz" or begin.startswith(b"PK\x03\x04"):
        return "npz"
    if suffix in _OTHERS and not begin.startswith(b"\x89HDF"):
        raise DataError(f"{path}: is no HDF5, .npz, CSV or parquet file; {CONVERT}")
    return "hdf5"


def _read_each(names: Iterable[Any], read: Callable[[Any], Tree]) -> dict[str, Found]:
    """The columns of these names; of one that cannot be read the error."""
    columns = dict[str, Found]()
    for name in names:
        try:
            columns[str(name)] = read(name)
        except DataError as error:
            columns[str(name)] = error
    return columns


def _npz(path: Path) -> dict[str, Found]:
    def read(name: str) -> Column:
        try:
            return column_of(archive[name], f"{path}:{name}")
        except ValueError as error:
            told = "holds Python objects, which are pickled and may run code"
            raise DataError(f"{path}:{name} {told}; {CONVERT}") from error

    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return _read_each(archive.files, read)


def _frame(path: Path, notes: list[str]) -> dict[str, Found]:
    import pandas as pd  # on demand, as it takes a third of a second

    if path.is_dir():
        files = [*path.glob("data/**/*.parquet")] or [*path.glob("**/*.parquet")]
        frames = [pd.read_parquet(file) for file in sorted(files, key=_in_order)]
        for name in set(NAMES["number"]).intersection(*frames):  # begins again in every file where each is one episode
            for before, after in itertools.pairwise(frames):
                one_each = before[name].nunique() == 1 == after[name].nunique()
                if after[name].dtype.kind in "iu" and after[name].min() < before[name].max() + one_each:
                    after[name] += before[name].max() + 1 - after[name].min()
        frame = pd.concat(frames, ignore_index=True)
    else:
        csv = path.suffix.lower() == ".csv"
        frame = pd.read_csv(path, float_precision="round_trip") if csv else pd.read_parquet(path)
    return _frame_columns(frame, f"{path}:", notes)


def _in_order(file: Path) -> list[tuple[str, int]]:
    """A key that sorts part.2 before part.10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(file))]


# Pins: the SHA-256 of a file beside it, in the format of sha256sum


def pin_path(path: Path) -> Path:
    """Where the SHA-256 of a file is kept: `FILE.sha256`, beside it."""
    return Path(f"{path}.sha256")  # also where a path has no name, as "." has none


def write_pin(path: Path, digest: str) -> None:
    """Pin the file `path` to a SHA-256 (hex); raises OSError where that cannot be written."""
    write_whole(pin_path(path), f"{digest}  {path.name}\n".encode())


def read_pin(pinned: Path) -> str | None:
    """The SHA-256 (hex) in a pin file; None if there is none. DataError: it cannot be read, or begins with none."""
    try:
        text = pinned.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{pinned}: cannot be read ({error.strerror}); change its mode or delete it") from error
    if not (match := re.match(r"([0-9a-fA-F]{64})\s", text)):
        raise DataError(f"{pinned}: does not begin with a SHA-256; write it with sha256sum, or delete it")
    return match[1].lower()


def verify_pin(path: Path, pinned: Path | None = None) -> None:
    """Compare a file with its pin, by default `FILE.sha256`, if it has one; DataError: it is not the one pinned."""
    place = pinned or pin_path(path)
    if (wanted := read_pin(place)) is not None and path.exists() and (found := sha256(path)) != wanted:
        told = f"SHA-256 is {found[:16]}..., {place} has {wanted[:16]}...: the file was changed or damaged"
        way_out = f"delete it to fetch it again, or delete {place.name} if the change is meant"
        raise DataError(f"{path}: {told}; {way_out}")


# HDF5


def hdf5_tables(file: h5py.File, notes: list[str]) -> tuple[list[Table], bool]:
    """The tables of a file, and whether each is an episode; DataError: a column is a link or not of numbers."""
    if f"{_D3RLPY[0]}_0" in file or f"{_D3RLPY[0]}_0_0" in file:
        return _d3rlpy(file), True
    inner = entry(file, "data") if "actions" not in file and "data" in file else None  # robomimic's
    for parent in (file, inner) if isinstance(inner, h5py.Group) else (file,):
        if groups := _episode_groups(parent):
            tables = [_table(group) for group in groups]
            return [_last_done(table, notes) for table in tables] if parent is not file else tables, True
    return [_table(file)], False


def _episode_groups(parent: h5py.Group) -> list[h5py.Group]:
    """The groups of one episode each, in the order of their numbers; empty where there are none."""
    found = {name: match for name in parent if (match := _NUMBERED.fullmatch(name))}
    names = sorted(found, key=lambda name: (found[name][1], int(found[name][2])))
    groups = [group for name in names if isinstance(group := entry(parent, name), h5py.Group)]
    return groups if groups and any(key in groups[0] for key in NAMES["actions"]) else []


def _table(group: h5py.Group) -> Table:
    return Table(place_of(group).rstrip(":"), _read_each(sorted(group), partial(read_tree, group)))


def read_tree(parent: h5py.Group, name: str, depth: int = _DEPTH) -> Tree:
    """The columns of an entry, a dataset or nested groups; DataError: one is a link or not of numbers."""
    found = entry(parent, name)
    if isinstance(found, h5py.Dataset):
        return _column(found)
    if not depth:
        raise DataError(f"{place_of(found)}: is nested more than {_DEPTH} levels deep; store arrays")
    numbers = {key: match for key in found if (match := _INDEXED.fullmatch(key))}
    if len(numbers) == len(found):
        return [read_tree(found, key, depth - 1) for key in sorted(numbers, key=lambda key: int(numbers[key][1]))]
    return {key: read_tree(found, key, depth - 1) for key in found}


def _column(data: h5py.Dataset) -> Column:
    """A dataset as a column; netCDF's packed numbers are unpacked, and NaN where nothing was filled in."""
    place, packed = place_of(data), {name: data.attrs[name] for name in _PACKED if name in data.attrs}
    if all(name not in _PACKED[:2] and not np.isfinite(value).all() for name, value in packed.items()):
        return Column(place, data)
    stored = Column(place, data).read()
    values = stored * np.float64(packed.get("scale_factor", 1)) + np.float64(packed.get("add_offset", 0))
    for name in _PACKED[2:]:  # an attribute may be of another precision
        absent = np.asarray(packed.get(name, []))
        values[np.isin(stored, absent.astype(stored.dtype) if stored.dtype.kind == "f" else absent)] = np.nan
    return Column(place, values)


def _d3rlpy(file: h5py.File) -> list[Table]:
    """d3rlpy's replay buffer, version 2: NAME_E of episode E, and NAME_E_K of part K of a tuple."""
    known = sum(name.startswith("rewards_") for name in file)
    claimed = int(np.ravel(entry(file, "num_episodes")[()])[0])
    if claimed != known:
        raise DataError(f"{file.filename}: has {known:,} episodes, num_episodes counts {claimed}; dump it again")
    tables = []
    for e in range(known):
        columns: dict[str, Tree] = {}
        for key in _D3RLPY:
            names = itertools.takewhile(file.__contains__, (f"{key}_{e}_{part}" for part in itertools.count()))
            columns[key] = [read_tree(file, name) for name in names] or read_tree(file, f"{key}_{e}")
        tables.append(Table(f"{file.filename} episode {e}", columns))
    return tables


def _last_done(table: Table, notes: list[str]) -> Table:
    """robomimic's `dones` may be 1 at every step at which the task is solved: the last one counts."""
    dones, rewards = table.columns.get("dones"), table.columns.get("rewards")
    if not isinstance(dones, Column) or not isinstance(rewards, Column) or dones.shape != rewards.shape:
        return table
    values = dones.read()
    if values[:-1].any():
        notes[:] = [*dict.fromkeys([*notes, "dones before the last step of an episode do not end it"])]
    return Table(table.place, {**table.columns, "dones": Column(dones.place, values[-1:])})


def entry(parent: h5py.Group, key: str) -> h5py.HLObject:
    """The group, or the dataset of real numbers, `key` of `parent`, which must lie in the file itself.

    DataError: it is missing, a link, virtual, stored outside the file, or not of numbers.
    """
    place, link = place_of(parent, key), parent.get(key, getlink=True)  # which follows nothing
    if not isinstance(link, h5py.HardLink):
        raise DataError(f"{place} is {'missing' if link is None else 'a link'}; copy the data into the file itself")
    found = parent[key]
    if isinstance(found, h5py.Group):
        return found
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise DataError(f"{place} is no dataset of this file, or is stored in others; copy the data into it")
    if found.dtype.kind not in "biuf" or found.shape is None:
        raise DataError(f"{place} holds {found.dtype}, not real numbers; use a file in D4RL's layout")
    return found


def place_of(entry: h5py.HLObject, key: str = "") -> str:
    """An entry, or `key` inside it, as a message has it: FILE:NAME."""
    return f"{entry.file.filename}:{f'{entry.name}/{key}'.strip('/')}"


def write_hdf5(path: str | os.PathLike[str], episodes: Episodes, attrs: Mapping[str, str | int | float]) -> None:
    """Write episodes in D4RL's layout, gzip-compressed, with `attrs` on the root group; complete or not at all.

    The last step of an episode is marked in `terminals` where the environment ended it, in `timeouts` where not.
    OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    arrays: dict[str, npt.NDArray[Any]] = {key: getattr(episodes, key) for key in _D3RLPY[:3]}
    for key, ended in (("terminals", episodes.terminated), ("timeouts", ~episodes.terminated)):
        arrays[key] = np.zeros(episodes.n_steps, dtype=np.bool_)
        arrays[key][episodes.offsets[1:] - 1] = ended
    # Built in memory: a full disk then fails in a plain write, where HDF5 would fail again in every later call.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip", compression_opts=4)
        file.attrs.update(attrs)
        if episodes.layout is not None:
            file.attrs[_SPACE] = json.dumps(episodes.layout)
    write_whole(Path(path), image.getbuffer())


# Values of a Python program


def from_columns(columns: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """The fields of `Episodes` of columns of all steps, by any of the names of files; see `Episodes.from_arrays`."""
    flags = {name: options.pop(name) for name in [*options] if name in MEANING}
    return _made([_given("", {**columns, **flags})], one_each=False, **options)


def from_trajectories(trajectories: Iterable[Any], **options: Any) -> dict[str, Any]:
    """The fields of `Episodes` of trajectories, one each; see `Episodes.from_trajectories`."""
    if isinstance(trajectories, Mapping | str | bytes) or not isinstance(trajectories, Iterable):
        raise DataError(f"trajectories: are a {type(trajectories).__name__}, not a list of episodes; {_KEYS} for each")
    tables = [_given(f"trajectory {i}", _fields(i, one)) for i, one in enumerate(trajectories)]
    if not tables:
        raise DataError(f"trajectories: there are none; {_KEYS} for each")
    return _made(tables, one_each=True, **options)


def from_frame(frame: Any, *, notes: Iterable[str] = (), **options: Any) -> dict[str, Any]:
    """The fields of `Episodes` of a frame with a row for each step; see `Episodes.from_frame`."""
    found = list[str]()
    table = Table("frame", _frame_columns(frame, "", found))
    return _made([table], one_each=False, notes=(*found, *notes), **options)


def _made(tables: list[Table], *, one_each: bool, **options: Any) -> dict[str, Any]:
    if unknown := [name for name in options if name not in (*_HELD, *_LABELS)]:
        as_in_files = "columns are named as in files, such as terminals, timeouts, dones or ends"
        known = ", ".join((*_HELD, *_LABELS))
        raise UsageError(f"{unknown[0]}: is no argument; {as_in_files}, and the options are {known}")
    labels = {name: options.pop(name) for name in _LABELS if name in options}
    held = {_HELD[name]: value for name, value in options.items() if value is not None}
    try:
        held |= {"layout": layout_of(held["layout"])} if "layout" in held else {}
    except ValueError as error:
        raise DataError(f"observation_space: observations {error}") from error
    limits = Limits(action_low=-np.inf, action_high=np.inf, **held)
    return {**assemble(tables, limits, path="episodes", one_each=one_each, **labels), "path": ""}


def _fields(i: int, trajectory: Any) -> Mapping[str, Any]:
    """A trajectory as a mapping: of its keys, or of an object's fields, as minari and imitation give them."""
    if hasattr(trajectory, "_asdict"):
        trajectory = trajectory._asdict()
    elif dataclasses.is_dataclass(trajectory) and not isinstance(trajectory, type):
        trajectory = {item.name: getattr(trajectory, item.name) for item in dataclasses.fields(trajectory)}
    elif hasattr(trajectory, "to_numpy") and hasattr(trajectory, "columns"):  # a frame of pandas
        trajectory = {str(name): trajectory[name] for name in trajectory.columns}
    if not isinstance(trajectory, Mapping):
        raise DataError(f"trajectory {i}: is {one_line(repr(trajectory), 60)}, not a dict; {_KEYS}")
    return trajectory


def _given(place: str, columns: Mapping[str, Any]) -> Table:
    columns = {name: value for name, value in columns.items() if value is not None}
    rewards = next((columns[name] for name in NAMES["rewards"] if name in columns), None)
    steps = len(rewards) if isinstance(rewards, Sized) else 0

    def read(name: Any) -> Tree:
        value, here = columns[name], f"{place}:{name}" if place else str(name)
        return _tree(value, here, steps) if name in NAMES[OBSERVATIONS] else column_of(value, here)

    return Table(place or "columns", _read_each(columns, read))


def _tree(value: Any, place: str, steps: int, depth: int = _DEPTH) -> Tree:
    """Observations as columns: an array, what may become one, or a dict or a tuple of them, nested."""
    if not depth:
        raise DataError(f"{place}: is nested more than {_DEPTH} levels deep; give arrays")
    if isinstance(value, tuple) and len(value) in (steps, steps + 1) and _of_steps(value):
        value = list(value)  # as zip(*rows) gives
    try:
        value = transposed(value)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error
    if isinstance(value, Mapping):
        return {str(key): _tree(part, f"{place}/{key}", steps, depth - 1) for key, part in value.items()}
    if isinstance(value, tuple) and any(np.ndim(part) for part in value if not isinstance(part, Mapping)):
        return [_tree(part, f"{place}/{i}", steps, depth - 1) for i, part in enumerate(value)]
    return column_of(value, place)


def _of_steps(value: tuple[Any, ...]) -> bool:
    """Whether the parts of a tuple are observations of a step each: they are alike."""
    if any(isinstance(part, tuple) for part in value):
        return True
    try:
        return not any(isinstance(part, Mapping) for part in value) and len({np.shape(part) for part in value}) == 1
    except ValueError:  # parts of different lengths
        return False


def column_of(value: Any, place: str) -> Column:
    """An array, or what becomes one, as a column; DataError: it does not, or something of it is missing."""
    value = value.detach().cpu() if hasattr(value, "detach") else value  # a tensor
    if np.ma.is_masked(value):
        step, *column = np.argwhere(np.ma.getmaskarray(value))[0]
        where = f"step {step}" + (f", column {column[0]}" if column else "")
        raise DataError(f"{place}: is masked at {where}: a value is missing; fill it, or leave the episode out")
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = _numbers(value, array)
    except Exception as error:  # any object may define what it is as an array
        way_out = f"{_AS_MANY}, and episodes of different lengths to Episodes.from_trajectories"
        raise DataError(f"{place}: cannot be an array of numbers ({one_line(error, 80)}); {way_out}") from error
    if array.dtype.kind not in "biuf":
        what = "Python objects" if array.dtype == object else str(array.dtype)
        raise DataError(f"{place}: holds {what}, not real numbers; {_AS_MANY}")
    return Column(place, array)


def _numbers(value: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of objects as one of numbers: rows that are arrays, and the mixed or nullable columns of a frame."""
    types: Any = getattr(value, "dtypes", array.dtype)
    kinds = [getattr(kind, "kind", "O") for kind in np.atleast_1d(types)]
    if hasattr(value, "to_numpy") and {*kinds} <= {*"biuf"}:
        return np.asarray(value.to_numpy(np.float64, na_value=np.nan))
    if array.ndim == 1 and len(array) and all(np.ndim(row) for row in array):
        return np.array([np.asarray(row) for row in array])
    return array


def _frame_columns(frame: Any, place: str, notes: list[str]) -> dict[str, Found]:
    """The columns of a frame; those of images, text and the like are left out, with a note."""

    def read(name: Any) -> Column:
        if isinstance(frame[name], type(frame)):
            raise DataError(f"{place}{name} is there twice; rename one")
        values = frame[name]
        if MEANING.get(name) == "number" and len(values) and isinstance(values.iloc[0], str):
            values = values.factorize()[0]
        return column_of(values, f"{place}{name}")

    columns = _read_each(frame.columns, read)
    if odd := [name for name, column in columns.items() if not isinstance(column, Column)]:
        notes.append(f"left out columns that are no numbers: {', '.join(odd[:20])}")
    return columns
