"""The one reader of JSON and YAML: what it takes, what it refuses, and the line it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from aaren_rl.typed import read


@dataclass(frozen=True)
class Part:
    size: int = 1


@dataclass(frozen=True)
class Whole:
    name: str
    share: float
    limit: float | None = None
    counts: list[int] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    part: Part = field(default_factory=Part)


def test_plain_values_become_a_dataclass() -> None:
    tree = {"name": "x", "share": 2, "limit": None, "counts": [1, 2], "values": {"a": [None]}, "part": {"size": 3}}
    whole = read(Whole, tree)
    assert whole == Whole("x", 2.0, None, [1, 2], {"a": [None]}, Part(3))
    assert type(whole.share) is float
    assert read(Whole, {"name": "x", "share": 0.5}) == Whole("x", 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": 1}, "unknown key nam"),
        ({"share": True}, "share: True is not float"),
        ({"share": float("nan")}, "share: must be finite, not nan"),
        ({"share": 2**53}, "share: 9007199254740992 is not float"),
        ({"limit": "1"}, "limit: '1' is not float or NoneType"),
        ({"counts": [1, 2.0]}, "counts: must be a list of int"),
        ({"values": {1: 2}}, "values: {1: 2} is not dict"),
        ({"part": [1]}, "part: must be a mapping"),
        ({"part": {"size": "x" * 99}}, "part.size: 'xxxxxxxxxxxx...xxxxxxxxxxxxx' is not int"),
        ({"part": {"sizes": 1}}, "part: unknown key sizes"),
        (None, "missing key share"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object] | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(Whole, {"name": "x"} if change is None else {"name": "x", "share": 0.5} | change)
