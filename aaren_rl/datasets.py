"""Look after datasets. NAME is a file of yours, a task such as hopper-medium, or minari:ID.

  aaren-rl datasets list
  aaren-rl datasets info hopper-medium --json numbers.json
  aaren-rl datasets verify hopper-medium mine.hdf5
  aaren-rl datasets download hopper-medium minari:mujoco/hopper/medium
  aaren-rl datasets convert mine.hdf5 minari:my/set-v0 --env-id Hopper-v4

Each command has a --help of its own.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .base.errors import DataError, UsageError, printable
from .base.fields import COUNT
from .base.files import cache_dir, check_writable, sha256, write_json, writing
from .cli import Parser, aligned, import_registering, run
from .envs.data import minari
from .envs.data.episodes import Episodes, blocks, moments
from .envs.data.files import SUFFIXES, pin_path, write_hdf5
from .envs.load import MINARI, Reading, d4rl_dataset_dir, data_files, default_name, load_one, minari_files
from .envs.local.behavior import local_levels
from .envs.tasks import table
from .envs.tasks.table import BUILT_IN, TASKS, D4RLTask, LocalTask, Reference, find_task, get_task
from .policies.card import SOURCES

size_text = partial(tqdm.format_sizeof, suffix="B")  # 12.3MB
_QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
_FAR_OUT = 10
_SOME_ROWS = 100_000
_LISTED = 40  # columns; those of more are in JSON
_LIMITS = ("columns", "observation_keys", "actions", "clip_actions", "max_episode_steps")  # of `Limits`


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("datasets", __doc__, "COMMAND ...")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog)

    def add(name: str, work: Callable[[argparse.Namespace], Iterable[str]], text: str) -> Parser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_shared()
        command.set_defaults(work=work, env_id=None, **dict.fromkeys(_LIMITS))
        return command

    def add_reading(command: argparse.ArgumentParser) -> None:
        command.add_argument("--env-id", metavar="ID", help="of a file: the environment it was recorded on")
        columns = "entries of a file with names of your own: observations=x,y actions=u"
        command.add_argument("--columns", metavar="S", nargs="+", help=columns)
        keys = "parts of observations that are dicts to use"
        command.add_argument("--observation-keys", metavar="S", nargs="+", help=keys)
        command.add_argument("--actions", metavar="NAME", help="discrete or continuous, where a file's do not tell")
        command.add_argument("--clip-actions", action="store_true", help="clip actions that are out of bounds")
        command.add_argument("--max-episode-steps", type=COUNT.integer, metavar="N", help="cut episodes after N steps")

    add("list", _list, "what there is of every task")
    info = add("info", _info, "a data set in numbers: returns, lengths, ends, columns, where it is from")
    info.add_argument("name", metavar="NAME", help="task, minari:ID or a file")
    info.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    add_reading(info)
    verify = add("verify", _verify, "check data sets on this machine, contents and SHA-256; exit code 3 if one fails")
    verify.add_argument("names", metavar="NAME", nargs="+", help="task, minari:ID or FILE.hdf5")
    add_reading(verify)
    download = add("download", _download, "fetch data sets, check them and pin them by their SHA-256")
    download.add_argument("names", metavar="NAME", nargs="+", help="task or minari:ID")
    download.add_argument("--source", choices=("d4rl", "minari"), help="of a task [d4rl, or made here]")
    change = add("convert", _convert, "write a data set in D4RL's HDF5 layout or in Minari's")
    change.add_argument("source", metavar="SOURCE", help="a file, minari:ID or a task")
    change.add_argument("target", metavar="TARGET", help="minari:ID or FILE.hdf5; must not exist")
    add_reading(change)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""

    def command(arguments: argparse.Namespace) -> int:
        import_registering(arguments.register)
        failed = False
        for line in arguments.work(arguments):
            failed |= line.startswith("error: ")
            print(line, file=sys.stderr if line.startswith(("error: ", "note: ")) else sys.stdout)
        return DataError.exit_code if failed else 0

    return run(make_parser(), command, argv)


def _parsed(text: str) -> tuple[str, str]:
    """The name and the source that a NAME stands for; UsageError: it is none. All are safe as parts of a path."""
    if text.startswith(MINARI):
        minari.check_minari_id(text.removeprefix(MINARI))
    elif not text.endswith(SUFFIXES) and (find_task(text) or not text or not Path(text).is_dir()):
        return get_task(text).name, "auto"
    return "data", text


def _load(name: str, source: str, arguments: argparse.Namespace) -> tuple[Episodes, Reference | None]:
    """A data set, fetched or made where it is not there, and the returns that score 0 and 100 in it."""
    env_id, of_minari = arguments.env_id, source.startswith(MINARI)
    if of_minari and env_id is not None and arguments.work is not _convert:  # which writes it
        raise UsageError(f"--env-id {env_id}: a Minari data set names its own; leave it out")
    given = {name: value for name in _LIMITS if (value := getattr(arguments, name)) is not None}
    given["one_of_several"] = len(getattr(arguments, "names", ())) > 1
    reading = Reading(env_id=None if of_minari else env_id, **given)
    task, episodes = load_one("data" if of_minari else name, source, reading, plays=False)
    if episodes.source == "file":
        named = default_name(source) if name == "data" else name
        episodes = replace(episodes, dataset=named, env_id=episodes.env_id or env_id)
    return episodes, task.reference


def _list(arguments: argparse.Namespace) -> Iterable[str]:
    places = d4rl_dataset_dir(), cache_dir(), minari.minari_dataset_dir()
    yield "D4RL's files: {}\nlocal sets:   {}\nMinari:       {}\n".format(*places)
    yield f"{'task':<26}{'D4RL file':<20}{'local set':<16}Minari"
    for task in map(get_task, (*TASKS, *BUILT_IN)):
        files, of_d4rl = data_files(task), isinstance(task, D4RLTask)
        there = {kind.split(":")[0]: size_text(at.stat().st_size) for kind, at in files.items() if at.is_file()}
        if "d4rl" in there:
            there["d4rl"] += ", pinned" if pin_path(files["d4rl"]).is_file() else ", no pin"
        made = not isinstance(task, D4RLTask) or task.level in local_levels(task.family)
        absent = {"d4rl": "can be fetched", "minari": "not fetched"} if of_d4rl else {}
        absent |= {"local": "can be made"} if made else {}
        d4rl, local, of_minari = (there.get(kind) or absent.get(kind, "-") for kind in ("d4rl", "local", "minari"))
        yield f"{task.name:<26}{d4rl:<20}{local:<16}{of_minari}"


def _info(arguments: argparse.Namespace) -> Iterable[str]:
    name, source = _parsed(arguments.name)
    check_writable("--json", arguments.json)
    episodes, reference = _load(name, source, arguments)
    description = describe(episodes, reference)
    yield format_description(description)
    if arguments.json is not None:
        write_json(arguments.json, description)


def _verify(arguments: argparse.Namespace) -> Iterable[str]:
    for name, source in [_parsed(text) for text in arguments.names]:  # all are names before the first is read
        if not (places := _on_disk(name, source)):
            get = "fetch it with aaren-rl datasets download, or make a local set with aaren-rl datasets info"
            yield f"error: {name if source == 'auto' else source}: not on this machine; {get}"
        for kind, path in places.items():
            try:
                episodes, _ = _load(name, kind, arguments)
                pin = "as pinned" if pin_path(path).is_file() else "not pinned"
                yield f"ok: {path}: {len(episodes):,} episodes, {episodes.n_steps:,} steps, SHA-256 {pin}"
            except DataError as error:
                yield f"error: {error}"


def _on_disk(name: str, source: str) -> dict[str, Path]:
    """The data sets of a name that lie on this machine: the file of each source, for `_load`."""
    if source != "auto" and not source.startswith(MINARI):
        return {source: Path(source)}
    files = data_files(get_task(name)) if source == "auto" else minari_files(source.removeprefix(MINARI))
    return {kind: path for kind, path in files.items() if path.is_file()}


def _download(arguments: argparse.Namespace) -> Iterable[str]:
    # All are names before the first is fetched.
    wanted = [_parsed(text) if text.startswith(MINARI) else (get_task(text).name, "auto") for text in arguments.names]
    for name, source in wanted:
        of_task = arguments.source or ("d4rl" if name in TASKS else "auto")
        episodes, _ = _load(name, of_task if source == "auto" else source, arguments)
        size = size_text(Path(episodes.path).stat().st_size)
        told = f"{episodes.path} ({size}), {len(episodes):,} episodes, {episodes.n_steps:,} steps"
        yield f"{episodes.dataset}: {told}"


def _convert(arguments: argparse.Namespace) -> Iterable[str]:
    (name, source), target = _parsed(arguments.source), arguments.target
    to_minari = target.startswith(MINARI)
    if to_minari:
        minari.new_minari_folder(target.removeprefix(MINARI))  # before a long read
    elif Path(target).suffix not in (".hdf5", ".h5"):
        raise UsageError(f"{target}: only HDF5 and minari:ID are written; let the name end in .hdf5")
    elif Path(target).exists():
        raise UsageError(f"{target}: already exists; choose another name")
    check_writable("TARGET", None if to_minari else Path(target))
    episodes, reference = _load(name, source, arguments)
    env_id, limit = arguments.env_id or episodes.env_id, arguments.max_episode_steps
    task = get_task(name) if source == "auto" else None
    if task is not None:
        task = get_task(task.dataset) if isinstance(task, LocalTask) else task  # whose data may be those of another
        env_id, limit = task.env_id, limit or task.horizon
    if to_minari:
        about = "; ".join([f"converted from {Path(episodes.path).name}", *episodes.notes])
        kwargs = {} if limit is None or env_id is None else {"max_episode_steps": limit}
        returns = None if reference is None else (reference.low, reference.high)
        options: dict[str, Any] = {"env_kwargs": kwargs, "description": about, "reference_returns": returns}
        path = minari.write_minari(target.removeprefix(MINARI), episodes, env_id=env_id, **options)
    else:
        path = Path(target)
        with writing(path, "choose another folder"):
            named = {} if env_id is None else {"env_id": env_id}
            write_hdf5(path, episodes, {"origin": f"converted from {arguments.source}", **named})
    yield f"{path}: {len(episodes):,} episodes, {episodes.n_steps:,} steps"
    yield from (f"note: {note}" for note in episodes.notes)


# A dataset in numbers


def describe(episodes: Episodes, reference: Reference | None) -> dict[str, Any]:
    """A dataset in numbers, with where it comes from, as plain values.

    Returns are undiscounted, `score_mean` is the mean score with the returns of `reference`. `ends` counts episodes by
    what ended them, `terminated_share` is the share that the environment ended. `observation_columns` and
    `action_columns` have a `describe_columns` each, `constant_columns` are the observation columns that training takes
    as constant, `action_shares` of discrete actions tell how often each was taken.
    """
    constant, path, ended = episodes.statistics().constant, Path(episodes.path), int(episodes.terminated.sum())
    score = None if reference is None else float(table.normalized_score(reference, episodes.returns).mean())
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
        "action_range": (float(episodes.actions.min()), float(episodes.actions.max())),
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


def format_description(d: dict[str, Any]) -> str:
    """The table of `info`, from what `describe` returns."""
    constant = ", ".join(map(str, d["constant_columns"])) or "none"
    score = "-"
    if d["reference"] is not None:
        formula = ": 100 (R - random) / (expert - random)" if table.is_d4rl_scale(d["reference"]) else ""
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
