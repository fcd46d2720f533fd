"""SHA-256 pins: D4RL publishes no checksums and its server speaks plain HTTP, so a file is pinned on first use.

What passes the checks after a download has its SHA-256 written beside it, in the format of sha256sum, and is held to it
from then on.
"""

import re
from pathlib import Path

from ... import files
from ...errors import DataError


def pin_path(path: Path) -> Path:
    """Where the SHA-256 of a file is kept: `FILE.sha256`, beside it."""
    return path.with_name(f"{path.name}.sha256")


def write_pin(path: Path, digest: str) -> None:
    """Pin the file `path` to a SHA-256 (hex); raises OSError where that cannot be written."""
    files.write_whole(pin_path(path), f"{digest}  {path.name}\n".encode())


def read_pin(path: Path) -> str | None:
    """The SHA-256 (hex) that the file `path` is pinned to; None where it has no pin.

    Raises:
        DataError: the pin cannot be read or holds none.
    """
    pin = pin_path(path)
    try:
        text = pin.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{pin}: cannot be read ({error.strerror}); change its mode or delete it") from error
    match = re.match(r"([0-9a-fA-F]{64})\s", text)
    if match is None:
        raise DataError(f"{pin}: does not begin with a SHA-256; write it with sha256sum, or delete it")
    return match[1].lower()


def verify_pin(path: Path) -> bool:
    """Compare a file with its pin; False where it has none.

    Raises:
        DataError: the file is not the one that was pinned, or one of both cannot be read.
    """
    pinned = read_pin(path)
    if pinned is None:
        return False
    found = sha256(path)
    if found != pinned:
        raise DataError(
            f"{path}: SHA-256 is {found[:16]}..., {pin_path(path).name} has {pinned[:16]}...: the file was changed or "
            f"damaged; delete it to fetch it again, or delete {pin_path(path).name} if the change is meant"
        )
    return True


def sha256(path: Path) -> str:
    """Hex digest of a file of any size.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return files.sha256(path)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); change its mode or get it again") from error
