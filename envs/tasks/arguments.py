"""Arguments of environments that a file or a command line gives: plain values, which name no file and no module."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ...base.errors import one_line

# Arguments that name files to read or modules to import.
_FORBIDDEN_KEY = re.compile(r"(^|_)(xml|file|path|dir|folder|module|entry_point|id)s?(_|$)", re.IGNORECASE)
_FORBIDDEN_TEXT = re.compile(r"[/\\:~]|\.\.|\.xml$", re.IGNORECASE)


def is_plain_argument(key: str, value: object) -> bool:
    """Whether an environment's argument that a file gives is harmless: plain values that name no file or module."""
    return key.isidentifier() and not _FORBIDDEN_KEY.search(key) and _is_plain(value)


def _is_plain(value: object, depth: int = 4) -> bool:
    if isinstance(value, str):
        return not _FORBIDDEN_TEXT.search(value)
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    # A policy's card is JSON, which has no infinity.
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def env_kwargs(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of an environment that JSON text or a mapping gives; None: none.

    ValueError: it is no object of JSON, or an argument could not be kept on a policy's card.
    """
    if given is None:
        return {}
    like = "give a JSON object such as '{\"frame_skip\": 5}'"
    try:
        found = json.loads(given if isinstance(given, str) else json.dumps(dict(given)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({one_line(error, 100)}); {like}") from error
    if not isinstance(found, dict):
        raise ValueError(f"is a {type(found).__name__}; {like}")
    for key, value in found.items():
        if not is_plain_argument(key, value):
            raise ValueError(
                f"has {ascii(key)[:40]} = {ascii(value)[:60]}; only finite numbers, words and lists of them are kept "
                "with a policy, and nothing that names files or modules; register the environment with it"
            )
    return found
