"""Pickled trajectories: read where they are trusted, by a process that runs none of their code."""

from __future__ import annotations

import collections
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaren_rl.datasets.command import main as datasets
from aaren_rl.envs import DataError
from aaren_rl.envs.data import pickles
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5

RNG = np.random.default_rng(0)
LENGTHS = [5, 9, 1]


def kzl(**changes: Any) -> list[dict[str, Any]]:
    """What kzl/decision-transformer's data scripts dump."""
    return [
        {
            "observations": np.arange(3 * n, dtype=np.float32).reshape(n, 3) / 7,
            "next_observations": np.zeros((n, 3), np.float32),
            "actions": np.linspace(-1, 1, 2 * n).reshape(n, 2),
            "rewards": np.ones(n, np.float32),
            "terminals": np.arange(n) == (n - 1 if n > 5 else -1),
            **changes,
        }
        for n in LENGTHS
    ]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fortran(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "observations": np.asfortranarray(one["observations"])} for one in data]


READ: dict[str, Callable[[Any], bytes]] = {
    **{f"protocol {p}": (lambda data, p=p: pickle.dumps(data, protocol=p)) for p in range(6)},  # type: ignore[misc]
    "Fortran's order": lambda data: pickle.dumps(fortran(data)),
    "big-endian": lambda data: pickle.dumps([{**one, "rewards": one["rewards"].astype(">f8")} for one in data]),
    "an array of dicts": lambda data: pickle.dumps(np.array(data, dtype=object)),
    "lists": lambda data: pickle.dumps([{key: value.tolist() for key, value in one.items()} for one in data]),
    "scalars": lambda data: pickle.dumps([{**one, "terminals": np.bool_(one["terminals"][-1])} for one in data]),
    "NumPy 1": lambda data: pickle.dumps(data, protocol=2).replace(b"numpy._core", b"numpy.core"),
}


@pytest.mark.parametrize("name", READ)
def test_trajectories_are_converted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("set.pkl").write_bytes(READ[name](kzl()))
    assert datasets(["convert", "set.pkl", "set.hdf5"]) == 3
    assert "datasets convert set.pkl set.hdf5 --trust-pickle" in capsys.readouterr().err
    assert datasets(["convert", "set.pkl", "set.hdf5", "--trust-pickle"]) == 0
    episodes = read_hdf5("set.hdf5")
    assert (episodes.lengths.tolist(), episodes.terminated.tolist()) == (LENGTHS, [False, True, False])
    for key in ("observations", "actions", "rewards"):
        wanted = np.concatenate([one[key] for one in kzl()]).astype(np.float32)
        np.testing.assert_array_equal(getattr(episodes, key), wanted)


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


TOUCH = "import pathlib; pathlib.Path('EXECUTED').touch()"
EVIL: dict[str, Any] = {
    "system": pickle.dumps([Evil(os.system, "touch EXECUTED")]),
    "exec": pickle.dumps([*kzl(), Evil(exec, TOUCH)]),
    "eval in a key that is not read": pickle.dumps(kzl(extra=Evil(eval, f"exec({TOUCH!r})"))),
    "protocol 0": pickle.dumps(Evil(exec, TOUCH), protocol=0),
    "an instance": b"(S'touch EXECUTED'\nios\nsystem\n.",
    "a name alone": b"\x80\x04cbuiltins\ngetattr\n.",
    "a name with dots": b"\x80\x04\x8c\x05numpy\x8c\x1amultiarray.os.system.__call__\x93.",
    "numpy's own loader": b"\x80\x04cnumpy\nload\n(S'x.npy'\nNI01\ntR.",
    "state of a function": b"\x80\x04c_codecs\nencode\n}(S'__code__'\nS'x'\nu}b.",
    "a persistent id": b"Pexecute\n.",
    "an extension": b"\x80\x04\x82\x01.",
    "a class of collections": pickle.dumps([collections.OrderedDict(one) for one in kzl()]),
    "a dtype of objects": b"\x80\x04cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntRS'\x00'\ntR.",
    "a dtype of structures": pickle.dumps([{"observations": np.zeros(3, "f4,i4")}]),
    "an array that is called": b"\x80\x04cnumpy\nndarray\n(I9\ntR.",
    "a memo of 32 GB": b"\x80\x04Nr\xff\xff\xff\xff.",
    "text of an exabyte": b"\x80\x04\x8d" + b"\xff" * 8 + b"x.",
    "a deep list": b"\x80\x04" + b"]" * 5000 + b"a" * 4999 + b".",
    "itself": b"\x80\x04]q\x00h\x00a.",
    "half": pickle.dumps(kzl())[:300],
    "an end": b"\x80\x04.",
    "nothing": b"",
    "text": b"\x80abc",
    "a number": pickle.dumps(3),
    "None": pickle.dumps(None),
    "a set": pickle.dumps({1, 2}),
    "words": pickle.dumps(["a", "b"]),
    "no rewards": pickle.dumps([{"observations": np.zeros((3, 1)), "actions": np.zeros((3, 1))}]),
    "other shapes": pickle.dumps(kzl(rewards=np.zeros((2, 2)))),
    "text for rewards": pickle.dumps(kzl(rewards=["a"] * 5)),
    "a shape beyond the bytes": pickle.dumps([{"observations": np.zeros((4, 2))}]).replace(
        b"K\x04K\x02", b"K\x7fK\x7f"
    ),
}


@pytest.mark.faults(33)
@pytest.mark.parametrize("name", EVIL)
def test_33_nothing_else_is_executed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("set.pkl").write_bytes(EVIL[name])
    assert datasets(["convert", "set.pkl", "set.hdf5", "--trust-pickle"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: set.pkl: ") and said.count("\n") == 1 and "; " in said, said
    assert [path.name for path in Path().iterdir()] == ["set.pkl"]


def test_the_check_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pickles above do execute where they are loaded plainly."""
    for name in ("system", "exec", "eval in a key that is not read", "protocol 0", "an instance"):
        pickle.loads(EVIL[name])
        Path("EXECUTED").unlink()


@pytest.mark.parametrize("code", ["import os; os.abort()", "while True: pass"])
def test_a_process_that_dies_or_hangs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("set.pkl").write_bytes(pickle.dumps(kzl()))
    monkeypatch.setattr(pickles, "_CONVERT", code)
    monkeypatch.setattr(pickles, "_SECONDS", 1)
    with pytest.raises(DataError, match=r"set\.pkl: cannot be read: .*; "):
        pickles.read_pickle(Path("set.pkl"))


def test_columns_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"obs": np.zeros((12, 2)), "acts": np.zeros(12, int), "rews": np.ones(12), "dones": np.arange(12) % 4 == 3}
    Path("set.pickle").write_bytes(pickle.dumps(data))
    assert datasets(["convert", "set.pickle", "set.h5", "--trust-pickle"]) == 0
    assert read_hdf5("set.h5").lengths.tolist() == [4, 4, 4] and read_hdf5("set.h5").discrete
    assert datasets(["convert", "set.pickle", "set.h5", "--trust-pickle"]) == 2
    assert datasets(["convert", "set.pickle", "set.npz", "--trust-pickle"]) == 2
    assert datasets(["convert", "none.pkl", "new.h5", "--trust-pickle"]) == 3
    assert all("; " in line for line in capsys.readouterr().err.splitlines())
