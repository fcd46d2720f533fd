"""The bad inputs of scripts/badinputs: what is sound (`world`), and what is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .world import Case


def all_cases(root: Path) -> list[Case]:
    """Every case, after what they share is made under `root` and every module is imported that they need."""
    os.environ.update(OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(root / "cache"), MPLCONFIGDIR=str(root / "matplotlib"))
    # Deep enough that a name with ../ in it, taken for a path, would still lead into `root`.
    os.environ["MINARI_DATASETS_PATH"] = str(root / "a" / "b" / "c" / "minari")
    import torch

    torch.set_num_threads(1)
    from aaren_rl.bench import command as bench
    from aaren_rl.collect import command as collect
    from aaren_rl.compare import command as compare
    from aaren_rl.datasets import command as datasets
    from aaren_rl.import_weights import command as import_weights
    from aaren_rl.sweep import command as sweep

    from . import calls, commands, environment_cases, files
    from .world import World

    assert all(module.main for module in (bench, collect, compare, datasets, import_weights, sweep))
    world = World(root)
    found = [case for part in (commands, files, environment_cases, calls) for case in part.cases(world)]
    names = [case.name for case in found]
    if doubled := {name for name in names if names.count(name) > 1}:
        sys.exit(f"two cases of one name: {doubled}")
    return found
