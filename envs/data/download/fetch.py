"""Fetching one large file over HTTP: resumed after a break, checked, and under its name whole or not at all."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

from tqdm import tqdm

from ...errors import DataError
from ...files import alone, sync, write_whole, writing
from .http import BrokenOff, blocks, content_range, open_url, reason_of, require_http, validator_of
from .pins import pin_path, read_pin, sha256, write_pin

_ATTEMPTS = 6
_WAY_OUT = "choose another folder"
_PAUSE_S = 1.0  # before the second attempt; twice as long before each further one

# 2e6 steps of Ant, with next observations and the simulator's state, are 2 GB before compression.
_MAX_BYTES = 8 * 2**30


def fetch(url: str, target: Path, *, check: Callable[[Path], object] | None = None, progress: bool = True) -> None:
    """Fetch a file, unless it is there; one process does it, others that want the same file wait for it.

    What has arrived is kept beside the target (`.NAME.part`) and continued by a later call, where the server still
    has the same copy. The complete file must equal the SHA-256 in `TARGET.sha256`, if that exists, and pass `check`,
    which gets the path of the file under its temporary name and raises DataError; only then is it pinned in
    `TARGET.sha256` and renamed. `progress` shows a bar on stderr.

    Raises:
        UsageError: the URL is not an http or https address.
        DataError: the server cannot be reached, refuses, breaks off again and again or sends too much; the file is
            not the one pinned or fails the check, and is deleted; or the target's folder cannot be written.
    """
    if target.is_file():
        return
    require_http(url)
    with alone(target, "fetching", _WAY_OUT):
        # Another process may have fetched it while this one waited.
        if not target.is_file():
            _fetch_alone(url, target, check, progress)


def _fetch_alone(url: str, target: Path, check: Callable[[Path], object] | None, progress: bool) -> None:
    pinned = read_pin(target)
    transfer = _Transfer(url, target, progress)
    transfer.run()
    try:
        digest = _accept(transfer.part, target, pinned, check)
    except DataError as error:
        transfer.discard()
        reason = str(error).replace(str(transfer.part), target.name)
        raise DataError(f"{url}: what it sent was deleted: {reason}") from error
    with writing(target, _WAY_OUT):
        sync(transfer.part)
        # The pin first: the file is never there without it.
        write_pin(target, digest)
        os.replace(transfer.part, target)
        sync(target.parent)
        transfer.note.unlink(missing_ok=True)


def _accept(part: Path, target: Path, pinned: str | None, check: Callable[[Path], object] | None) -> str:
    """The complete file's SHA-256, after all checks."""
    digest = sha256(part)
    if pinned is not None and digest != pinned:
        pin = pin_path(target)
        raise DataError(
            f"SHA-256 is {digest[:16]}..., {pin} has {pinned[:16]}...; try again, or delete {pin.name} if the server's "
            "file has changed for good"
        )
    if check is not None:
        check(part)
    return digest


@dataclass(frozen=True)
class _Copy:
    """The server's copy that a partial file is a part of; it can be continued if all that identifies it is known.

    `validator` is a strong ETag or a date of modification, `total` a number of bytes.
    """

    url: str
    validator: str | None
    total: int | None

    @property
    def can_continue(self) -> bool:
        return self.validator is not None and self.total is not None


class _Transfer:
    """A file on its way: the part that is here, and what is known of the whole."""

    def __init__(self, url: str, target: Path, progress: bool) -> None:
        self.target = target
        self.part = target.with_name(f".{target.name}.part")
        self.note = target.with_name(f".{target.name}.part.json")
        self._progress = progress
        self._received = False
        self._size = 0
        self._copy = _Copy(url, None, None)
        self._load()

    def run(self) -> None:
        """Complete the part, in several attempts if need be."""
        if self._size == self._copy.total:
            return
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                with self._request() as response:
                    self._begin(response)
                    self._receive(response)
                return
            except BrokenOff as error:
                total = "?" if self._copy.total is None else f"{self._copy.total:,}"
                reason = f"at last after {self._size:,} of {total} bytes: {error}"
                if not self._copy.can_continue:
                    self.discard()
        raise DataError(
            f"{self._copy.url}: broke off {_ATTEMPTS} times ({reason}); try again (it goes on from there if the server "
            f"allows), or put the file at {self.target} by hand"
        )

    def discard(self) -> None:
        """Delete what has arrived."""
        self._copy, self._size = _Copy(self._copy.url, None, None), 0
        with writing(self.target, _WAY_OUT):
            self.note.unlink(missing_ok=True)
            self.part.unlink(missing_ok=True)

    def _load(self) -> None:
        """Take up what an earlier call left, if it is sound and of the same address."""
        try:
            copy = _Copy(**json.loads(self.note.read_text(encoding="utf-8")))
            size = self.part.stat().st_size
            if copy.url == self._copy.url and copy.total is not None and size <= copy.total:
                self._copy, self._size = copy, size
        except (OSError, ValueError, TypeError):
            return

    def _request(self) -> HTTPResponse:
        headers = {"User-Agent": "aaren-rl"}
        if self._size and self._copy.validator is not None:
            headers |= {"Range": f"bytes={self._size}-", "If-Range": self._copy.validator}
        url = self._copy.url
        try:
            return open_url(url, headers)
        except HTTPError as error:
            error.close()
            if error.code == 416 and self._size:
                self.discard()
            elif error.code < 500 or not self._received:
                raise DataError(
                    f"{url}: the server answered with HTTP status {error.code}; put the file at {self.target} by hand"
                ) from error
            raise BrokenOff(f"HTTP status {error.code}") from error
        except (OSError, HTTPException, UnicodeError) as error:
            # urllib raises URLError for what fails before the request is sent: nobody is there.
            if self._received or isinstance(error, ConnectionError | TimeoutError):
                raise BrokenOff(reason_of(error)) from error
            raise DataError(
                f"{url}: cannot be reached ({reason_of(error)}); check the network, put the file at {self.target} "
                "by hand"
            ) from error

    def _begin(self, response: HTTPResponse) -> None:
        """See from the answer's head whether it continues the part; if not, start over."""
        if response.status == 206:
            same = validator_of(response.headers) in (None, self._copy.validator)
            if not same or content_range(response.headers) != (self._size, self._copy.total):
                self.discard()
                raise BrokenOff("the server sent another range than the one asked for")
        elif response.status == 200:
            self.discard()
            length = response.headers.get("Content-Length", "")
            total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
            self._copy = _Copy(self._copy.url, validator_of(response.headers), total)
        else:
            raise DataError(
                f"{self._copy.url}: the server answered with HTTP status {response.status}; "
                f"put the file at {self.target} by hand"
            )
        self._check_room()
        if self._size == 0 and self._copy.can_continue:
            with writing(self.target, _WAY_OUT):
                write_whole(self.note, json.dumps(asdict(self._copy)).encode())

    def _check_room(self) -> None:
        total = self._copy.total
        if total is None:
            return
        self._check_limit(total)
        free = shutil.disk_usage(self.target.parent).free
        if total - self._size > free:
            raise DataError(
                f"{self._copy.url}: {total - self._size:,} bytes are to come, {self.target.parent} has room for "
                f"{free:,}; make room"
            )

    def _check_limit(self, size: int) -> None:
        if size > _MAX_BYTES:
            self.discard()
            raise DataError(
                f"{self._copy.url}: sends {size:,} bytes or more, no data set has over {_MAX_BYTES:,}; "
                "check the address"
            )

    def _receive(self, response: HTTPResponse) -> None:
        total = self._copy.total
        bar = tqdm(
            total=total,
            initial=self._size,
            desc=self.target.name,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=not self._progress,
        )
        with bar, writing(self.target, _WAY_OUT), open(self.part, "ab") as stream:
            for block in blocks(response):
                stream.write(block)
                self._received = True
                self._size += len(block)
                self._check_limit(self._size)
                bar.update(len(block))
        if total is not None and self._size != total:
            raise BrokenOff("the connection was closed")
