"""Fetching one large file over HTTP, resumed after a break, and the SHA-256 pins that files are held to.

D4RL publishes no checksums and its server speaks plain HTTP, so a file is pinned on first use: what passes the checks
after a download has its SHA-256 written beside it, in the format of sha256sum, and is held to it from then on.
"""

import json
import os
import re
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from .. import files
from ..errors import DataError, UsageError, one_line
from ..system import sync

_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^\s/\[]+)(/\S*)?", re.IGNORECASE)
_ATTEMPTS = 6
_BLOCK_BYTES = 2**18
_PAUSE_S = 1.0  # before the second attempt; twice as long before each further one
_TIMEOUT_S = 30.0  # without a byte
_WAY_OUT = "choose another folder"

# 2e6 steps of Ant, with next observations and the simulator's state, are 2 GB before compression.
_MAX_BYTES = 8 * 2**30


class _BrokenOff(Exception):
    """A transfer that ended early, for a reason that another attempt may not meet."""


def fetch(url: str, target: Path, *, check: Callable[[Path], object], progress: bool = True) -> None:
    """Fetch a file, unless it is there; one process does it, others that want the same file wait for it.

    What has arrived is kept beside the target (`.NAME.part`) and continued by a later call, where the server still
    has the same copy. The complete file must equal the SHA-256 in `TARGET.sha256`, if that exists, and pass `check`,
    which gets the path of the file under its temporary name and raises DataError; only then is it pinned in
    `TARGET.sha256` and renamed. `progress` shows a bar on stderr.

    Raises:
        UsageError: the URL is not an http or https address.
        DataError: the server cannot be reached, refuses, breaks off again and again or sends too much; the file is
            not the one pinned or fails the check, and is deleted; or the target's folder cannot be written.
        ResourcesError: the disk is full.
    """
    if not _ADDRESS.fullmatch(url):
        raise UsageError(f"{url!r} is not an http or https address; correct D4RL_BASE_URL")
    with files.alone(target, "fetching", _WAY_OUT), files.writing(target, _WAY_OUT):
        if target.is_file():  # another process has fetched it meanwhile
            return
        transfer = _Transfer(url, target, progress)
        transfer.run()
        try:
            verify_pin(transfer.part, pin_path(target))
            check(transfer.part)
        except DataError as error:
            transfer.discard()
            reason = str(error).replace(str(transfer.part), target.name)
            raise DataError(f"{url}: what it sent was deleted: {reason}") from error
        sync(transfer.part)
        # The pin first: the file is never there without it.
        write_pin(target, sha256(transfer.part))
        os.replace(transfer.part, target)
        sync(target.parent)
        transfer.note.unlink()


class _Transfer:
    """A file on its way: `part` is what has arrived, `note` says of which copy, so that a later call can go on."""

    def __init__(self, url: str, target: Path, progress: bool) -> None:
        self.part = target.with_name(f".{target.name}.part")
        self.note = target.with_name(f".{target.name}.part.json")
        self._url, self._target, self._progress = url, target, progress
        self._received = False  # anything in this call
        self._validator: str | None = None
        self._total: int | None = None
        try:
            noted, self._validator, self._total = json.loads(self.note.read_text())
            if noted != url or not self.part.stat().st_size <= self._total:
                self.discard()
        except (FileNotFoundError, ValueError, TypeError):  # TypeError: not three values, or others
            self.discard()

    def run(self) -> None:
        """Complete the part, in several attempts if need be."""
        reason = ""
        for attempt in range(_ATTEMPTS):
            if self._size() == self._total:
                return
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                with self._request() as response:
                    self._receive(response)
                return
            except _BrokenOff as error:
                total = "?" if self._total is None else f"{self._total:,}"
                reason = f"at last after {self._size():,} of {total} bytes: {error}"
                if self._validator is None or self._total is None:
                    self.discard()
        raise DataError(
            f"{self._url}: broke off {_ATTEMPTS} times ({reason}); try again (it goes on from there if the server "
            f"allows), or put the file at {self._target} by hand"
        )

    def discard(self) -> None:
        """Delete what has arrived."""
        self._validator = self._total = None
        self.note.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _request(self) -> HTTPResponse:
        headers = {"User-Agent": "aaren-rl"}
        if self._size() and self._validator is not None:
            headers |= {"Range": f"bytes={self._size()}-", "If-Range": self._validator}
        try:
            response: HTTPResponse = urlopen(Request(self._url, headers=headers), timeout=_TIMEOUT_S)
            return response
        except HTTPError as error:
            error.close()
            if error.code == 416:  # the server's copy is shorter now
                self.discard()
            elif not self._received or error.code < 500:
                raise self._refused(error.code) from error
            raise _BrokenOff(f"HTTP status {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            # urllib raises URLError for what fails before the request is sent: nobody is there.
            if self._received or isinstance(error, ConnectionError | TimeoutError):
                raise _BrokenOff(_reason_of(error)) from error
            raise DataError(
                f"{self._url}: cannot be reached ({_reason_of(error)}); check the network, put the file at "
                f"{self._target} by hand"
            ) from error

    def _receive(self, response: HTTPResponse) -> None:
        """Append an answer to the part if it continues it; if not, start over with it."""
        if response.status == 206:
            expected = f"bytes {self._size()}-{(self._total or 0) - 1}/{self._total}"
            if response.headers["Content-Range"] != expected or _validator_of(response) not in (None, self._validator):
                self.discard()
                raise _BrokenOff("the server sent another range than the one asked for")
        elif response.status == 200:
            self.discard()
            length = response.headers.get("Content-Length", "")
            self._validator, self._total = _validator_of(response), int(length) if length.isdecimal() else None
            self.note.write_text(json.dumps([self._url, self._validator, self._total]))
        else:
            raise self._refused(response.status)
        size = self._size()
        bar = tqdm(
            total=self._total,
            initial=size,
            desc=self._target.name,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=not self._progress,
        )
        with bar, open(self.part, "ab") as stream:
            while (self._total or size) <= _MAX_BYTES and (block := _read_block(response)):
                stream.write(block)
                self._received = True
                size += len(block)
                bar.update(len(block))
        if (self._total or size) > _MAX_BYTES:
            self.discard()
            raise DataError(f"{self._url}: sends more than {_MAX_BYTES:,} bytes, as no data set has; check the address")
        if self._total not in (None, size):
            raise _BrokenOff("the connection was closed")

    def _refused(self, status: int) -> DataError:
        return DataError(
            f"{self._url}: the server answered with HTTP status {status}; put the file at {self._target} by hand"
        )


def _read_block(response: HTTPResponse) -> bytes:
    """Errors of the network become _BrokenOff, so that an OSError is one of the disk."""
    try:
        return response.read1(_BLOCK_BYTES)  # not read(), which would lose what it has when the connection breaks
    except (OSError, HTTPException) as error:
        raise _BrokenOff(_reason_of(error)) from error


def _validator_of(response: HTTPResponse) -> str | None:
    """What identifies this copy of the file: RFC 9110, section 13.1.5, does not admit weak ETags for ranges."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _reason_of(error: Exception) -> str:
    # URLError wraps the error that says more.
    return one_line(getattr(error, "reason", error)) or type(error).__name__


def pin_path(path: Path) -> Path:
    """Where the SHA-256 of a file is kept: `FILE.sha256`, beside it."""
    return path.with_name(f"{path.name}.sha256")


def write_pin(path: Path, digest: str) -> None:
    """Pin the file `path` to a SHA-256 (hex); raises OSError where that cannot be written."""
    files.write_whole(pin_path(path), f"{digest}  {path.name}\n".encode())


def verify_pin(path: Path, pin: Path | None = None) -> bool:
    """Compare a file with its pin, by default `FILE.sha256`; False where it has none.

    Raises:
        DataError: the file is not the one that was pinned, or one of both cannot be read.
    """
    pin = pin_path(path) if pin is None else pin
    try:
        text = pin.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataError(f"{pin}: cannot be read ({error.strerror}); change its mode or delete it") from error
    match = re.match(r"([0-9a-fA-F]{64})\s", text)
    if match is None:
        raise DataError(f"{pin}: does not begin with a SHA-256; write it with sha256sum, or delete it")
    found, pinned = sha256(path), match[1].lower()
    if found != pinned:
        raise DataError(
            f"{path}: SHA-256 is {found[:16]}..., {pin} has {pinned[:16]}...: the file was changed or damaged; delete "
            f"it to fetch it again, or delete {pin.name} if the change is meant"
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
        raise DataError(f"{path}: cannot be read ({one_line(error)}); change its mode or get it again") from error
