"""Look after data sets: `aaren-rl datasets list|info|verify|download|convert`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..base.errors import UsageError
from ..base.files import check_outputs, write_json
from ..cli import Parser, import_registering, positive, run
from ..envs import BUILT_IN, TASKS, AarenRLError, D4RLTask, DataError, LocalTask, find_task, get_task
from ..envs.data.download import pin_path, verify_pin
from ..envs.data.hdf5 import d4rl_dataset_dir
from ..envs.data.minari import minari_data_dir, minari_dataset_dir, read_spec, split_version
from ..envs.load import MINARI, Origin, Reading, data_files, resolve
from ..envs.local.sets import cache_dir, local_levels
from .describe import describe, draw, format_description, size_text
from .names import convert, load, on_disk, parse_name

DESCRIPTION = """\
Look after datasets. NAME is a file of yours, a task such as hopper-medium, or minari:ID.

  aaren-rl datasets list
  aaren-rl datasets info hopper-medium --plot returns.png
  aaren-rl datasets verify hopper-medium mine.hdf5
  aaren-rl datasets download hopper-medium --source minari
  aaren-rl datasets convert mine.hdf5 minari:my/set-v0 --env-id Hopper-v4
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("datasets", DESCRIPTION, "COMMAND ...")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog)

    def add(name: str, work: Callable[[argparse.Namespace], int], text: str) -> Parser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_shared()
        command.set_defaults(work=work)
        return command

    add("list", _list, "what there is of every task, and Minari's data sets on this machine")
    info = add("info", _info, "a data set in numbers: returns, lengths, ends, columns, where it is from")
    info.add_argument("name", metavar="NAME", help="task, minari:ID or a file")
    sources = "of a task: auto, d4rl, local, minari, minari:ID or a path [auto]"
    info.add_argument("--source", metavar="S", help=sources)
    info.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    info.add_argument("--plot", "--picture", type=Path, metavar="FILE.png", help="draw returns, lengths and ranges")
    _add_reading(info)
    verify = add("verify", _verify, "check data sets on this machine, contents and SHA-256; exit code 3 if one fails")
    verify.add_argument("names", metavar="NAME", nargs="+", help="task, minari:ID or FILE.hdf5")
    kinds = ("auto", "d4rl", "local", "minari")
    verify.add_argument("--source", choices=kinds, metavar="S", default="auto", help="of a task [all]")
    _add_reading(verify)
    download = add("download", _download, "fetch data sets, check them and pin them by their SHA-256")
    download.add_argument("names", metavar="NAME", nargs="+", help="task; with --source minari also a Minari id")
    download.add_argument("--source", choices=("d4rl", "minari"), default="d4rl", help="d4rl or minari [d4rl]")
    change = add("convert", _convert, "write a data set in D4RL's HDF5 layout or in Minari's")
    change.add_argument("source", metavar="SOURCE", help="FILE.hdf5 or .npz, minari:ID or a task")
    change.add_argument("target", metavar="TARGET", help="minari:ID or FILE.hdf5; must not exist")
    change.add_argument("--description", metavar="TEXT", help="stored in the Minari data set")
    _add_reading(change)
    return parser


def _add_reading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--env-id", metavar="ID", help="of a file: the environment it was recorded on")
    command.add_argument("--clip-actions", action="store_true", help="clip actions that are out of bounds")
    command.add_argument("--max-episode-steps", type=positive, metavar="N", help="cut a file's episodes after N steps")
    command.add_argument("--local-steps", type=positive, metavar="N", help="of a task: the local set of so many steps")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), lambda arguments: arguments.work(arguments), argv)


def _reading(arguments: argparse.Namespace) -> Reading:
    import_registering(arguments.register)
    names = ("clip_actions", "max_episode_steps", "local_steps", "env_id")
    return Reading(**{name: getattr(arguments, name) for name in names})


def _list(arguments: argparse.Namespace) -> int:
    import_registering(arguments.register)
    print(f"D4RL's files: {d4rl_dataset_dir()}\nlocal sets:   {cache_dir()}\nMinari:       {minari_dataset_dir()}\n")
    print(f"{'task':<26}{'D4RL file':<20}{'local set':<16}Minari")
    for task in map(get_task, (*TASKS, *BUILT_IN)):
        files = data_files(task)
        d4rl, local, minari = (_size(files.get(kind)) for kind in ("d4rl", "local", "minari"))
        if d4rl:
            d4rl += ", pinned" if pin_path(files["d4rl"]).is_file() else ", no pin"
        ships = not isinstance(task, D4RLTask) or task.level in local_levels(task.family)
        local = local or ("can be made" if ships else "-")
        minari = minari or ("not fetched" if isinstance(task, D4RLTask) else "-")
        print(f"{task.name:<26}{d4rl or ('can be fetched' if 'd4rl' in files else '-'):<20}{local:<16}{minari}")
    root = minari_dataset_dir()
    folders = sorted(data.parent for data in root.rglob("data") if data.is_dir() and data.parent != root)
    shown = [folder for folder in folders if not any(part.startswith(".") for part in folder.relative_to(root).parts)]
    print("\nMinari data sets on this machine:" if shown else "\nno Minari data sets on this machine")
    for folder in shown:
        name = folder.relative_to(root).as_posix()
        size = size_text(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
        try:
            spec = read_spec(minari_data_dir(name) / "metadata.json")
        except AarenRLError as error:
            print(f"  {name}: {size}, cannot be used: {error}")
        else:
            env_id = spec.env_id or "environment not named"
            print(f"  {name}: {size}, {spec.total_episodes:,} episodes, {spec.total_steps:,} steps, {env_id}")
    return 0


def _size(path: Path | None) -> str:
    return size_text(path.stat().st_size) if path is not None and path.is_file() else ""


def _info(arguments: argparse.Namespace) -> int:
    name = parse_name(arguments.name)
    if arguments.source is not None and name.kind != "auto":
        raise UsageError(f"--source {arguments.source} is for a task, and {name} is a data set; leave it out")
    outputs = {"--json": arguments.json, "--plot": arguments.plot}
    check_outputs(outputs)
    if arguments.plot is not None and arguments.plot.suffix != ".png":
        raise UsageError(f"--plot {arguments.plot}: only PNG is drawn; let the name end in .png")
    episodes, reference, _ = load(name, arguments.source or "auto", _reading(arguments))
    for option, path in outputs.items():
        if path is not None and path.exists() and path.samefile(episodes.path):
            raise UsageError(f"{option} {path}: is the data set itself; choose another name")
    description = describe(episodes, reference)
    print(format_description(description, episodes))
    if arguments.json is not None:
        write_json(arguments.json, description)
    if arguments.plot is not None:
        draw(arguments.plot, episodes)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    names, reading = [parse_name(text) for text in arguments.names], _reading(arguments)
    code, files = 0, any(name.kind == "file" for name in names)

    @contextmanager
    def told() -> Iterator[None]:
        nonlocal code
        try:
            yield
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            code = DataError.exit_code

    for name in names:
        found: dict[str, Path] = {}
        with told():
            found = on_disk(name, arguments.source, reading)
        for kind, path in found.items():
            with told():
                held = reading if not files or name.kind == "file" else replace(reading, env_id=None)
                episodes, *_ = load(name, kind, held, any_actions=False)
                pin = "as pinned" if verify_pin(path) else "not pinned"
                print(f"ok: {path}: {len(episodes):,} episodes, {episodes.n_steps:,} steps, SHA-256 {pin}")
    return code


def _download(arguments: argparse.Namespace) -> int:
    import_registering(arguments.register)
    names = [_remote(text, arguments.source) for text in arguments.names]
    for name in names:
        episodes, *_ = load(name, arguments.source, Reading())
        size = size_text(Path(episodes.path).stat().st_size)
        print(f"{episodes.dataset}: {episodes.path} ({size}), {len(episodes):,} episodes, {episodes.n_steps:,} steps")
    return 0


def _remote(text: str, source: str) -> Origin:
    """What to fetch; a name of a task in any case where there is one."""
    if source == "d4rl":
        name = parse_name(text)
        if name.kind != "auto":
            raise UsageError(f"{text}: D4RL has tasks only; Minari's data sets go with --source minari")
        return resolve(text, "local") if isinstance(find_task(text), LocalTask) else name
    if text.startswith(MINARI):
        return parse_name(text)
    of_minari = "/" in text or split_version(text)[1] is not None
    return parse_name(f"minari:{text}") if of_minari else resolve(text, "minari")


def _convert(arguments: argparse.Namespace) -> int:
    source, target = parse_name(arguments.source), parse_name(arguments.target)
    path, episodes = convert(source, target, _reading(arguments), arguments.description)
    print(f"{path}: {len(episodes):,} episodes, {episodes.n_steps:,} steps")
    for note in episodes.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
