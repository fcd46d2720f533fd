"""Starts a command. An interrupt during its imports, which take seconds, prints no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known name, or nothing if none is near."""
    near = get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def start(room: str, argv: Sequence[str] | None = None) -> int:
    """Imports the command of a package, "aaren_rl.train", and runs it; returns its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w"))
    try:
        return int(import_module(f"{room}.command").main(argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
