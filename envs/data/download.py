"""Downloads one file over HTTP.

D4RL publishes no checksums and its server speaks plain HTTP, so a file is pinned on first use: when a download passes
the checks, its SHA-256 is written beside it (`files.write_pin`), and every later read is checked against that.
"""

import os
import re
import shutil
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from ...base.errors import DataError, one_line
from ...base.files import alone, sha256, sync
from .files import pin_path, read_pin, verify_pin, write_pin

ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\](:\d+)?|[^\s/\[{}]+)(/[^\s{}]*)?", re.IGNORECASE)
_ATTEMPTS, _PAUSE_S, _TIMEOUT_S = 4, 1.0, 30.0  # the pause doubles; the timeout is without a byte
_BROKEN_OFF = (ConnectionError, TimeoutError, IncompleteRead)
_NETWORK = (URLError, ssl.SSLError, HTTPException, ValueError)  # other OSErrors are the disk's


def fetch(url: str, target: Path, *, check: Callable[[Path], object], progress: bool = True) -> None:
    """Downloads a file unless it exists; other processes that need it wait. A broken download begins again.

    The complete file must equal the SHA-256 in `TARGET.sha256`, if that exists, and pass `check`, which gets its
    temporary path and raises DataError; only then is it pinned and renamed. `progress` shows a bar.

    Raises:
        DataError: the server cannot be reached, refuses or breaks off again and again; or the file is not the one
            pinned or fails the check, and is deleted. Errors of writing are those of `alone`.
    """
    part = target.with_name(f".{target.name}.part")
    with alone(target, "fetching", "choose another folder"):
        if target.is_file():  # another process has fetched it meanwhile
            return
        read_pin(pin_path(target))  # before the download, which a damaged pin would waste
        try:
            _receive(url, part, f"put the file at {target} by hand", progress)
            try:
                verify_pin(part, pin_path(target))
                check(part)
            except DataError as error:
                reason = str(error).replace(str(part), target.name)
                raise DataError(f"{url}: the downloaded file was deleted: {reason}") from error
            sync(part)
            write_pin(target, sha256(part))  # first: the file is never there without it
            os.replace(part, target)
            sync(target.parent)
        finally:
            part.unlink(missing_ok=True)


def _receive(url: str, part: Path, by_hand: str, progress: bool) -> None:
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S * (2**attempt - 1))
        try:
            with urlopen(Request(url, headers={"User-Agent": "aaren-rl"}), timeout=_TIMEOUT_S) as response:
                total = int(response.headers.get("Content-Length") or 0)
                bar: dict[str, Any] = {"total": total or None, "desc": part.name[1:-5], "disable": not progress}
                with tqdm.wrapattr(response, "read", **bar) as body, open(part, "wb") as stream:
                    shutil.copyfileobj(body, stream)
                if part.stat().st_size == (total or part.stat().st_size):
                    return
                reason = f"{part.stat().st_size:,} of {total:,} bytes arrived"
        except HTTPError as error:
            error.close()
            raise DataError(f"{url}: the server returned HTTP status {error.code}; {by_hand}") from error
        except _BROKEN_OFF as error:
            reason = one_line(error) or type(error).__name__
        except _NETWORK as error:
            reason = one_line(getattr(error, "reason", error)) or type(error).__name__
            raise DataError(f"{url}: cannot be reached ({reason}); check the network, {by_hand}") from error
    raise DataError(f"{url}: broke off {_ATTEMPTS} times ({reason}); try again, or {by_hand}")
