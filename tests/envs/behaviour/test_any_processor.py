"""A local set is the same on every processor: made here with the matrix products of older ones."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

MAKE = """
import hashlib, json, sys
import numpy as np
from aaren_rl.envs import get_task
from aaren_rl.envs.behaviour.local_sets import make_local
file = make_local(get_task("hopper-medium"), 1000, progress=False)
a, b = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((8, 256), (256, 256)))
print(json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in
                  {"file": file.read_bytes(), "product": (a @ b).tobytes()}.items()}))
"""
# OpenBLAS's kernels by processor, which NumPy's wheels have; NumPy's own loops without AVX-512.
OLDER = {"OPENBLAS_CORETYPE": "Prescott"}, {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F"}


def hashes(cache: Path, processor: dict[str, str]) -> dict[str, str]:
    """SHA-256 of a set and of a product in float32."""
    environment = {**os.environ, "AAREN_RL_CACHE": str(cache), **processor}
    done = subprocess.run([sys.executable, "-c", MAKE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_set_is_the_same_file(tmp_path: Path) -> None:
    here = hashes(tmp_path / "here", {})
    older = [hashes(tmp_path / processor["OPENBLAS_CORETYPE"], processor) for processor in OLDER]
    assert [made["file"] for made in older] == [here["file"]] * len(older)
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):  # elsewhere NumPy may have one kind of product
        assert len({made["product"] for made in (here, *older)}) > 1
