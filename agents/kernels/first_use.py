"""Whether code for GPUs is right on the device at hand: checked on its first use in a process, against the plain formula.

Where the check fails, the plain way is taken and one warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

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
        try:
            found = difference(device)
            wrong = "" if found <= TOLERANCE else f"it differs from the plain formula by {found:.2g}"
        except Exception as error:  # of a compiler, a driver or a kernel: whatever it is, the plain way is there
            wrong = f"{type(error).__name__}: {(str(error).strip() or what).splitlines()[0]}"[:300]
        _KNOWN[key] = not wrong
        if wrong:
            warnings.warn(f"{what} cannot be used on {name} ({wrong}): {instead}", RuntimeWarning, stacklevel=4)
    return _KNOWN[key]
