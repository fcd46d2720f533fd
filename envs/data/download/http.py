"""HTTP as far as a download needs it: opening an address, the body in blocks, what the headers say of the copy."""

import re
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException, HTTPResponse
from urllib import request
from urllib.parse import urlsplit

from ...errors import UsageError, one_line

_TIMEOUT_S = 30.0  # without a byte
_BLOCK_BYTES = 2**18


class BrokenOff(Exception):
    """A transfer that ended early, for a reason that another attempt may not meet."""


def open_url(url: str, headers: dict[str, str]) -> HTTPResponse:
    """Send a request; raises what urllib raises."""
    response: HTTPResponse = _opener().open(request.Request(url, headers=headers), timeout=_TIMEOUT_S)
    return response


def blocks(response: HTTPResponse) -> Iterator[bytes]:
    """The body, as it comes. Errors of the network become BrokenOff, so that an OSError is one of the disk."""
    try:
        # Not read(), which would lose what it has when the connection breaks.
        while block := response.read1(_BLOCK_BYTES):
            yield block
    except (OSError, HTTPException) as error:
        raise BrokenOff(reason_of(error)) from error


def validator_of(headers: Message) -> str | None:
    """What identifies this copy of the file: RFC 9110, section 13.1.5, does not admit weak ETags for ranges."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def content_range(headers: Message) -> tuple[int, int] | None:
    """First byte and total size of a partial answer."""
    match = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})", headers.get("Content-Range", ""))
    return None if match is None else (int(match[1]), int(match[2]))


def _opener() -> request.OpenerDirector:
    """urllib's, without the handlers of file:, data: and ftp: addresses, to which a server could redirect."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def require_http(url: str) -> None:
    """Raise UsageError where an address is not one of http or https."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(f"{url!r} is not an http or https address; correct D4RL_BASE_URL")


def reason_of(error: Exception) -> str:
    """An error's text in one line, without what a server may have put there for the terminal."""
    # URLError wraps the error that says more.
    return one_line(getattr(error, "reason", error)) or type(error).__name__
