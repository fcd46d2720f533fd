"""Whether code for GPUs is right on the device at hand: checked when it is first used, against the plain formula.

The verdict on a type of device and these versions is kept with Triton's compiled kernels. Where the check fails, the
plain way is taken and one warning says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

TOLERANCE = 1e-3  # of the largest difference, relative: float32 with products in TensorFloat-32
_KNOWN: dict[tuple[str, str], bool] = {}


def is_right(what: str, device: torch.device, difference: Callable[[torch.device], float], instead: str) -> bool:
    """Whether `what` agrees with the plain formula on this device.

    Args:
        what: is checked: "the scan's kernel".
        device: where.
        difference: runs both there; their largest relative difference.
        instead: what is used otherwise, for the warning.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    key = what, name
    if key not in _KNOWN:
        file = _folder() / f"aaren_rl-{_version(*key)}.json"
        verdict = _read(file)
        if verdict is None:
            verdict = _check(what, device, difference)
            _write(file, verdict)
        _KNOWN[key] = verdict == "right"
        if not _KNOWN[key]:
            warnings.warn(f"{what} cannot be used on {name} ({verdict}): {instead}", RuntimeWarning, stacklevel=4)
    return _KNOWN[key]


def _check(what: str, device: torch.device, difference: Callable[[torch.device], float]) -> str:
    try:
        found = difference(device)
    except Exception as error:  # of a compiler, a driver or a kernel: whatever it is, the plain way is there
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else what}"[:300]
    return "right" if found <= TOLERANCE else f"it differs from the plain formula by {found:.2g}"


def _folder() -> Path:
    """Where Triton keeps its compiled kernels."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def _version(what: str, name: str) -> str:
    """A name for the code that was checked, and where."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(f"{what}\0{name}\0{torch.__version__}\0{torch.version.cuda}".encode(), digest_size=8)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(file: Path) -> str | None:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["verdict"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, verdict: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"verdict": verdict}), encoding="utf-8")
    except OSError:  # it is checked again next time
        pass
