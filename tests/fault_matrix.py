"""The faults that the package must stand: what is injected, and what the user sees. Tests name them by number.

`pytest -m faults --fault-table=docs/faults.md` runs those tests and writes the table of their results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Number -> the fault, and what the user sees: an exit code and what the one line says, or what happens instead.
MATRIX: dict[int, tuple[str, str]] = {
    1: ("Data file missing", "3: the path, and how to get the file"),
    2: ("Data file with wrong keys", "3: missing and found keys"),
    3: ("Truncated or empty HDF5 file", "3: says so, and to fetch it again"),
    4: ("Flipped byte, where a checksum is known", "3: the checksum is another"),
    5: ("NaN reward", "3: how many, and the first step"),
    6: ("Infinite observation", "3: step and column of the first"),
    7: ("Arrays of unequal length", "3: both lengths"),
    8: ("No steps", "3: the shape"),
    9: ("Episodes of one step", "works, with finite statistics"),
    10: ("No terminals and no timeouts", "3: names `--max-episode-steps`"),
    11: ("Actions outside the bounds", "3: both ranges, names `--clip-actions`"),
    12: ("float64 and float16 files", "become float32; 3 where a value does not fit"),
    13: ("Observations of another size than the environment's", "3: both sizes"),
    14: ("SIGKILL while a checkpoint or a policy is written", "the one before is there, and loads"),
    15: ("SIGTERM", "saves, exits with 143"),
    16: ("Ctrl-C once, and twice", "saves, exits with 130; at once with 130"),
    17: ("Disk full", "7: make room; what was saved is intact, nothing half written stays"),
    18: ("Kill and resume", "bit-equal weights, optimiser, random states and metrics"),
    19: ("Random state missing from a checkpoint", "4: names the state; does not go on without it"),
    20: ("Another configuration on resume", "4: every setting that differs"),
    21: ("Loss becomes NaN", "6: the update; the last good checkpoint stays. `--non-finite skip` counts instead"),
    22: ("Out of memory", "7: names `--steps-per-update`"),
    23: ("Corrupt checkpoint or policy", "goes on from the last good one, which a line names; 4 where there is none"),
    24: ("Environment raises", "5: its message"),
    25: ("Environment's process killed", "5 within 5 s; no process is left"),
    26: ("Policy gives NaN", "5 before the environment gets the action"),
    27: ("Policy of another environment", "4: trained on, and asked for"),
    28: ("Unknown environment name", "2: did you mean"),
    29: ("Scores of ±1e4", "equals float64"),
    30: ("-inf masks, all masked", "finite outputs and gradients; all masked is 0"),
    31: ("bfloat16", "the state stays float64"),
    32: ("1,000,000 recurrent steps", "at most 1e-6 from float64"),
    33: ("Pickle where a checkpoint is expected", "4: nothing is executed"),
    34: ("Import string in a configuration or policy", "2, 4 or 5: not imported"),
    35: ("YAML object tag", "2: nothing is executed"),
    36: ("Path traversal in names", "2: nothing is written"),
    37: ("HDF5 links, virtual and external datasets", "3: named, not followed"),
    38: ("HDF5 shape or chunk bomb", "3 before memory is taken"),
    39: ("Wrong checksum after a download", "3: what came is deleted"),
    40: ("Dropped download", "goes on from there, or 3; never half a file under the final name"),
    41: ("Minari metadata with a foreign entry point", "3: not imported"),
    42: ("Two processes fetch or make the same set", "one does, both end well; a killed one blocks nobody"),
    43: ("Two runs in one folder", "2: the folder is in use"),
    44: ("Resume and TensorBoard", "no step twice"),
}


def marked_tests(folder: Path) -> Iterator[tuple[str, int]]:
    """(FILE::TEST, number) for every fault that a test in `folder` is marked with, read from the sources."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.faults":
                        for number in call.args:
                            yield f"{file.name}::{node.name}", int(ast.literal_eval(number))


def table(results: dict[str, dict[str, int]], numbers: dict[str, tuple[int, ...]]) -> str:
    """The page: for every fault its tests and how they ended.

    Args:
        results: FILE::TEST -> outcome ("passed", ...) -> how many cases.
        numbers: FILE::TEST -> the faults that it injects.
    """
    lines = [
        "# What can go wrong, and what you see",
        "",
        "Every failure of a command is one line on standard error, `error: what (file: field); what to do`, and an",
        "exit code; `--debug` shows the traceback. Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy,",
        "6 numerics, 7 resources; 143 and 130 after SIGTERM and Ctrl-C, which save first.",
        "",
        "Each of these faults is injected by the tests beside it. `pytest -m faults` runs them all;",
        "`pytest -m faults --fault-table=docs/faults.md` wrote this page.",
        "",
        "|#|Fault|What you see|Tests|Result|",
        "|-|-|-|-|-|",
    ]
    for number, (fault, seen) in MATRIX.items():
        tests = [test for test, found in numbers.items() if number in found]
        counts: dict[str, int] = {}
        for test in tests:
            for outcome, count in results.get(test, {"not run": 1}).items():
                counts[outcome] = counts.get(outcome, 0) + count
        shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no test"
        lines.append(f"|{number}|{fault}|{seen}|{'<br>'.join(f'`{test}`' for test in tests)}|{shown}|")
    return "\n".join([*lines, ""])
