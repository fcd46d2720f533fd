"""The parts that commands share: the parser, how errors end a command, devices, signals."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

from .base.errors import PeerError, UsageError, did_you_mean, explain, one_line
from .base.fields import AUTO, RETURN

if TYPE_CHECKING:
    import torch  # otherwise on demand: an exported policy is evaluated without it


class _Help(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs to the terminal's width, and leaves indented lines, which are examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kinds = itertools.groupby(text.strip().splitlines(), lambda line: "" if line[:1].strip() else line[:1] or "-")
        parts = ["\n".join(lines) if kind else textwrap.fill(" ".join(lines), width) for kind, lines in kinds]
        return "\n".join(parts) + "\n"


class Parser(argparse.ArgumentParser):
    """An argument parser of a command or subcommand; an error is one line with a way out and exit code 2."""

    def __init__(self, command: str = "", description: str = "", usage: str = "", **options: Any) -> None:  # noqa: ANN401
        prog = f"aaren-rl {command}"
        options = {"prog": prog, "usage": f"{prog} {usage}" if usage else None, "allow_abbrev": False, **options}
        super().__init__(description=description, formatter_class=_Help, **options)
        # argparse's own takes -1e3 for an option.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401
        """As argparse's, but rejects arguments that are not UTF-8, which could not be written anywhere."""
        args = sys.argv[1:] if args is None else list(args)
        for argument in args:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                self.error(f"{argument!a} is not UTF-8; use another name")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the message and leaves with exit code 2."""
        # Of several processes of a training, the first does.
        if self.prog != "aaren-rl train" or os.environ.get("RANK", "0") == "0":
            said = one_line(f"{message}{self._suggestion(message)}", 600)
            print(f"error: {said}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _suggestion(self, message: str) -> str:
        _, unknown, rest = message.partition("unrecognized arguments: ")
        mistyped = [word.partition("=")[0] for word in rest.split() if word.startswith("--")]
        own = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [self, *(parser for action in own for parser in action.choices.values())]
        known = [option for parser in parsers for option in parser._option_string_actions]
        return did_you_mean(mistyped[0], known) if unknown and mistyped and mistyped[0] not in known else ""

    def add_shared(self, *, register: bool = True, device: str | None = None) -> None:
        """Adds the options that commands share: --debug, --register if wanted, --device with its default."""
        if register:
            several = "import this module, which registers environments or agents; several between commas"
            self.add_argument("--register", metavar="MODULE", help=several)
        if device is not None:
            self.add_argument("--device", metavar="NAME", default=device, help=f"auto, cpu or cuda [{device}]")
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")


def run(parser: Parser, command: Callable[[argparse.Namespace], int], argv: Sequence[str] | None) -> int:
    """Parses the command line and runs the command; returns the exit code of `run_command`."""
    arguments = parser.parse_args(argv)
    return run_command(lambda: command(arguments), debug=arguments.debug)


def run_command(command: Callable[[], int], *, debug: bool = False) -> int:
    """Runs a command; an error becomes one line on standard error and an exit code.

    Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy, 6 numerics, 7 resources, 130 interrupted, 1 a
    bug in the package itself. With `debug` the error is raised, with its traceback.
    """
    failed: list[threading.ExceptHookArgs] = []
    print_traceback = threading.excepthook
    if not debug:  # a thread's error, as TensorBoard's on a full disk, is the command's
        threading.excepthook = failed.append
    try:
        code = command()
        sys.stdout.flush()
        if failed and failed[0].exc_value is not None:
            raise failed[0].exc_value
        return code
    except BrokenPipeError:  # the reader of the output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more on its way out
        return 141  # a shell's exit code for SIGPIPE, which not every system has
    except (Exception, KeyboardInterrupt) as error:  # also unexpected errors: a traceback helps no user
        if debug:
            raise
        if _is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return 130
        message, code = explain(error)
        if not isinstance(error, PeerError):
            print(f"error: {message}", file=sys.stderr)
        return code
    finally:
        threading.excepthook = print_traceback


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it is Ctrl-C, or follows from it, as an ImportError does where it came while a module was loaded."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def split_at_dashes(argv: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """A command's own arguments, and those after the first --, which go to another command."""
    given = sys.argv[1:] if argv is None else list(argv)
    end = given.index("--") if "--" in given else len(given)
    return given[:end], given[end + 1 :]


def shell_line(command: str, argv: Sequence[str]) -> str:
    """A command as a line for a shell, with "$HOME" in place of the user's home folder."""
    home = os.path.expanduser("~")
    parts = [word.split(home) if len(home) > 1 else [word] for word in argv]  # it is / where there is none
    words = ['"$HOME"'.join(shlex.quote(part) if part else "" for part in split) or "''" for split in parts]
    return " ".join([f"aaren-rl {command}", *words])


def target_return(text: str) -> float | str:
    """An argument that is a target return: a number or "auto"."""
    return AUTO if text == AUTO else RETURN.number(text)


def choose_device(name: str) -> torch.device:
    """The device of `--device`; "auto" is CUDA if available. Raises UsageError if this machine does not have it."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise UsageError(f"--device {name!r} is not supported; use auto, cpu or cuda")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def import_registering(module: str | None) -> None:
    """Imports modules of `--register`, between commas, which register environments; never by a name from a file.

    Raises UsageError if one cannot be imported.
    """
    if "" not in sys.path:
        sys.path.append("")  # finds a module in the working folder, after the installed ones
    for name in () if module is None else module.split(","):
        if name.endswith(".py") or "/" in name:
            raise UsageError(f"--register {name}: expected the name of a module, not of a file")
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise UsageError(f"--register {name}: {type(error).__name__}: {one_line(error)}") from error


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return [line.rstrip() for line in lines]


def listed(items: Iterable[object]) -> str:
    """Items between commas."""
    return ", ".join(map(str, items))


def progress_bar(**options: Any) -> tqdm[Any]:  # noqa: ANN401  tqdm's own options
    """A progress bar on stderr; the remaining time follows from the mean rate. A log file gets a line every 30 s."""
    return tqdm(dynamic_ncols=True, smoothing=0, mininterval=0.1 if sys.stderr.isatty() else 30, **options)


class StopRequest:
    """Turns the first of SIGNALS into a flag that the loop reads; a second SIGINT raises KeyboardInterrupt."""

    # Ctrl-C, kill, and what clusters send before they end a job or a terminal before it closes.
    SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> StopRequest:
        names = self.SIGNALS if threading.current_thread() is threading.main_thread() else ()
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has the first two
        # The others may have handlers of the caller, or be ignored, as by nohup.
        numbers[2:] = [number for number in numbers[2:] if signal.getsignal(number) is signal.SIG_DFL]
        self._old = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # even while it waits; an interrupted save leaves the previous checkpoint
        self.signal = number
