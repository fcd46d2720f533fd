"""List training runs and their scores: `aaren-rl runs [FOLDER ...]`."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..base.errors import UsageError
from ..base.files import check_writable, read_small, write_json
from ..cli import Parser, aligned, run
from ..policies.names import return_words
from .folder import is_finished, is_held, read_metrics

DESCRIPTION = """\
List the training runs in folders and their subfolders, with their progress and scores.

  aaren-rl runs                      # in runs/
  aaren-rl runs runs comparison --sort score
"""
LEGEND = (
    "score: normalized, or the mean return if marked so; error: held-out action MSE, or negative log-likelihood (nll) "
    "of discrete actions; both are of the last evaluation"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Parser("runs", DESCRIPTION, "[FOLDER ...] [options]")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", default=[Path("runs")], help="[runs]")
    parser.add_argument("--sort", choices=("path", "score"), metavar="HOW", default="path", help="path or score [path]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the list to this file")
    parser.add_shared(register=False)
    return run(parser, _list, argv)


def _list(arguments: argparse.Namespace) -> int:
    check_writable("--json", arguments.json)
    every = [one for folder in arguments.folders for one in find_runs(folder)]
    found = [*{Path(one["path"]).resolve(): one for one in every}.values()]  # folders may overlap
    if arguments.sort == "score":
        found.sort(key=lambda one: (one["env"], -(one["score"] if one["score"] is not None else float("-inf"))))
    if not found:
        raise UsageError(f"no runs in {', '.join(map(str, arguments.folders))}; give the folders of --out")
    rows = [("run", "updates", "state", "score", "best", "error")]
    for one in found:
        unit = "" if one["normalized"] or one["score"] is None else " return"
        measured = ((one["action_mse"], ""), (one["nll"], " nll"))
        error = next((f"{value:.4f}{unit}" for value, unit in measured if value is not None), "-")
        words = "{:.1f}".format if one["normalized"] else return_words
        score, best = ("-" if value is None else words(value) for value in (one["score"], one["best"]))
        rows.append((one["path"], f"{one['update']:,}/{one['updates']:,}", one["state"], score + unit, best, error))
    print("\n".join([*aligned(rows), "", LEGEND]))
    if arguments.json is not None:
        write_json(arguments.json, found)
    return 0


def find_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """The training runs in a folder and its subfolders, sorted by path; None: not known. UsageError: no such folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder; give the folder of --out")
    for file in sorted(folder.rglob("config.yaml")):
        try:
            tree = yaml.safe_load(read_small(file))
            config = {"env": tree["data"]["env"], "agent": tree["agent"], "seed": tree["seed"]}
            updates = int(tree["optimizer"]["updates"])
        except (OSError, ValueError, RecursionError, LookupError, TypeError, yaml.YAMLError):
            continue  # not a run's file
        values: dict[str, list[float]] = defaultdict(list)
        lines = read_metrics(file.parent)
        for tag, value in (item for line in lines for item in line.items()):
            values[tag].append(value)
        normalized, update = values["eval/normalized_score"], int(max(values["update"], default=0))
        scores = normalized or values["eval/mean_return"]
        yield {
            "path": str(file.parent),
            **config,
            "update": update,  # of the last line of its metrics
            "updates": updates,  # planned
            "state": "running" if is_held(file.parent) else "finished" if is_finished(lines, updates) else "stopped",
            "score": scores[-1] if scores else None,  # of the last evaluation: normalized, else the mean return
            "normalized": bool(normalized),  # which of the two
            "best": max(scores, default=None),  # of the best evaluation
            # On held-out episodes: for continuous and for discrete actions.
            **{name: next(reversed(values[f"val/{name}"]), None) for name in ("action_mse", "nll")},
        }
