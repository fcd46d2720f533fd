"""Downloads one large file over HTTP, resumes after a break, and checks files against SHA-256 pins.

D4RL publishes no checksums and its server speaks plain HTTP, so a file is pinned on first use. When a download passes
the checks, its SHA-256 is written to a file beside it, in the format of sha256sum. Later reads are checked against it.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from ...base import files
from ...base.errors import DataError, UsageError, one_line
from ...base.system import sync

_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\](:\d+)?|[^\s/\[]+)(/\S*)?", re.IGNORECASE)
_ATTEMPTS = 6
_BLOCK_BYTES = 2**18
_PAUSE_S = 1.0  # before the second attempt; twice as long before each further one
_TIMEOUT_S = 30.0  # without a byte
_WAY_OUT = "choose another folder"

# Other OSErrors are the disk's.
_BROKEN_OFF = (ConnectionError, TimeoutError, IncompleteRead)
_NETWORK = (*_BROKEN_OFF, URLError, ssl.SSLError, HTTPException, ValueError)


def file_url(variable: str, server: str, path: str, **names: str) -> str:
    """The address of a file: `path` on `server`, or on the mirror that the environment variable has.

    A mirror is a base, which `path` follows, or a pattern: an address with `{file}`, and any other of the `names`, in
    it. UsageError: a pattern with other names or without the file, or not an http or https address.
    """
    base = os.environ.get(variable) or server
    url = base if {*"{}"} & {*base} else f"{base.rstrip('/')}/{path}"
    known = [f"{{{name}}}" for name in names]
    if "{file}" not in url or {*"{}"} & {*re.sub("|".join(known), "", url)}:
        raise UsageError(f"{variable}={base!r}: a pattern has {{file}}, and no braces but {', '.join(known)}")
    for name, value in zip(known, names.values(), strict=True):
        url = url.replace(name, value)
    if not _ADDRESS.fullmatch(url):
        raise UsageError(f"{url!r} is not an http or https address; correct {variable}")
    return url


def fetch(url: str, target: Path, *, check: Callable[[Path], object], progress: bool = True) -> None:
    """Downloads a file unless it exists; other processes that need it wait.

    What has arrived is kept in `.NAME.part` and continued by a later call, where the server still has the same copy.
    The complete file must equal the SHA-256 in `TARGET.sha256`, if that exists, and pass `check`, which gets its
    temporary path and raises DataError; only then is it pinned and renamed. `progress` shows a bar.

    Raises:
        DataError: the server cannot be reached, refuses or breaks off again and again; or the file is not the one
            pinned or fails the check, and is deleted. Errors of writing are those of `files.alone`.
    """
    part, note = (target.with_name(f".{target.name}.part{suffix}") for suffix in ("", ".json"))
    with files.alone(target, "fetching", _WAY_OUT):
        if target.is_file():  # another process has fetched it meanwhile
            return
        read_pin(pin_path(target))  # before the download, which a damaged pin would waste
        _complete(url, target, part, note, progress)
        try:
            verify_pin(part, pin_path(target))
            check(part)
        except DataError as error:
            note.unlink()
            part.unlink()
            reason = str(error).replace(str(part), target.name)
            raise DataError(f"{url}: the downloaded file was deleted: {reason}") from error
        sync(part)
        # The pin first: the file is never there without it.
        write_pin(target, files.sha256(part))
        os.replace(part, target)
        sync(target.parent)
        note.unlink()


def _complete(url: str, target: Path, part: Path, note: Path, progress: bool) -> None:
    reason, by_hand = "", f"put the file at {target} by hand"
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        size, validator, total = _begun(url, part, note)
        if size == total:
            return
        headers = {"Range": f"bytes={size}-", "If-Range": validator} if size and validator else {}
        try:
            with urlopen(Request(url, headers={"User-Agent": "aaren-rl", **headers}), timeout=_TIMEOUT_S) as response:
                return _receive(response, url, part, note, progress)
        except HTTPError as error:
            error.close()
            reason = f"HTTP status {error.code}"
            if error.code == 416:  # the server's copy is shorter now
                note.unlink(missing_ok=True)
            elif not attempt or error.code < 500:
                raise DataError(f"{url}: the server returned {reason}; {by_hand}") from error
        except _NETWORK as error:
            reason = one_line(getattr(error, "reason", error)) or type(error).__name__
            if not attempt and not isinstance(error, _BROKEN_OFF):
                raise DataError(f"{url}: cannot be reached ({reason}); check the network, {by_hand}") from error
    size, _, total = _begun(url, part, note)
    if not size:
        note.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    arrived = f"{size:,} of {total:,} bytes" if size else "nothing that could be continued"
    raise DataError(f"{url}: broke off {_ATTEMPTS} times (at last after {arrived}: {reason}); try again, or {by_hand}")


def _begun(url: str, part: Path, note: Path) -> tuple[int, str | None, int | None]:
    """How many bytes have arrived, of which copy (an ETag or a date) and of how many; 0 where that is not known."""
    try:
        noted, validator, total = json.loads(note.read_text())
        size = part.stat().st_size
        if noted == url and validator and size <= total:
            return size, validator, total
    except (FileNotFoundError, ValueError, TypeError):  # TypeError: not three values, or others
        pass
    return 0, None, None


def _receive(response: HTTPResponse, url: str, part: Path, note: Path, progress: bool) -> None:
    size, validator, total = _begun(url, part, note)
    etag = response.headers.get("ETag")
    # RFC 9110, section 13.1.5, does not admit weak ETags for ranges.
    found = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
    if response.status == 206:
        expected = f"bytes {size}-{(total or 0) - 1}/{total}"
        if response.headers["Content-Range"] != expected or found not in (None, validator):
            note.unlink(missing_ok=True)
            raise ConnectionError("the server sent a range other than the requested one")
    else:
        length = response.headers.get("Content-Length", "")
        size, total = 0, int(length) if length.isdecimal() else None
        part.write_bytes(b"")
        note.write_text(json.dumps([url, found, total]))
    bar = tqdm(total=total, initial=size, desc=part.name[1:-5], unit="B", unit_scale=True, disable=not progress)
    with bar, open(part, "ab") as stream:
        # Not read(), which would lose what it has when the connection breaks.
        while block := response.read1(_BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
    if total not in (None, part.stat().st_size):
        raise ConnectionError("the connection was closed")


def pin_path(path: Path) -> Path:
    """Where the SHA-256 of a file is kept: `FILE.sha256`, beside it."""
    return path.with_name(f"{path.name}.sha256")


def write_pin(path: Path, digest: str) -> None:
    """Pin the file `path` to a SHA-256 (hex); raises OSError where that cannot be written."""
    files.write_whole(pin_path(path), f"{digest}  {path.name}\n".encode())


def read_pin(pin: Path) -> str | None:
    """The SHA-256 (hex) in a pin file; None if there is no such file. Raises DataError if it cannot be read."""
    try:
        text = pin.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{pin}: cannot be read ({error.strerror}); change its mode or delete it") from error
    if not (match := re.match(r"([0-9a-fA-F]{64})\s", text)):
        raise DataError(f"{pin}: does not begin with a SHA-256; write it with sha256sum, or delete it")
    return match[1].lower()


def verify_pin(path: Path, pin: Path | None = None) -> bool:
    """Compare a file with its pin, by default `FILE.sha256`; False where it has none.

    DataError: the file is not the one that was pinned, or one of both cannot be read.
    """
    pin = pin or pin_path(path)
    if (pinned := read_pin(pin)) is None:
        return False
    try:
        found = files.sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); change its mode or delete it") from error
    if found != pinned:
        raise DataError(
            f"{path}: SHA-256 is {found[:16]}..., {pin} has {pinned[:16]}...: the file was changed or damaged; delete "
            f"it to fetch it again, or delete {pin.name} if the change is meant"
        )
    return True
