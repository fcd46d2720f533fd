"""Convert SAC actor checkpoints (Flax parameter names, .npz) to the safetensors files that ship with the package.

    python scripts/pack_behaviour.py FOLDER hopper Hopper-v4 --mean-return 380000=1382 --mean-return 620000=3155

FOLDER holds actor_<environment steps>.npz with Dense_0, Dense_1 (hidden), Dense_2 (mean) and Dense_3 (log standard
deviation); kernels are (in, out). The files go to envs/behaviour/<family>_<steps>.safetensors.
"""

import argparse
import re
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS = {"Dense_0": "hidden_0", "Dense_1": "hidden_1", "Dense_2": "mean", "Dense_3": "log_std"}
OUTPUT = Path(__file__).resolve().parent.parent / "envs" / "behaviour"


def pack(source: Path, target: Path, metadata: dict[str, str]) -> None:
    """Write one actor's eight float32 arrays under their new names."""
    with np.load(source, allow_pickle=False) as archive:
        tensors = {
            f"{new}.{kind}": np.ascontiguousarray(archive[f"['params']['{old}']['{kind}']"], dtype=np.float32)
            for old, new in LAYERS.items()
            for kind in ("kernel", "bias")
        }
    save_file(tensors, target, metadata=metadata)
    # safetensors creates its files for the owner alone, and a wheel keeps that.
    target.chmod(0o644)


def main() -> None:
    """Convert every checkpoint of the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("family")
    parser.add_argument("env_id")
    parser.add_argument("--mean-return", action="append", default=[], metavar="STEPS=RETURN")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    known = dict(item.split("=", 1) for item in arguments.mean_return)
    sources = sorted(arguments.folder.glob("actor_*.npz"))
    if not sources:
        parser.error(f"{arguments.folder}: no actor_<steps>.npz in it")
    for source in sources:
        steps = re.fullmatch(r"actor_(\d+)", source.stem)
        if steps is None:
            parser.error(f"{source}: the name is not actor_<steps>.npz")
        count = str(int(steps[1]))
        metadata = {"env_id": arguments.env_id, "steps": count, "algorithm": "SAC"}
        if count in known:
            metadata["mean_return"] = known[count]
        target = arguments.output / f"{arguments.family}_{count}.safetensors"
        pack(source, target, metadata)
        print(target)


if __name__ == "__main__":
    main()
