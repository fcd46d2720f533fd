"""Files that are damaged, odd, or of another layout: each ends with one line that says why.

What readers of data sets refuse is in tests/envs/data, and what the runtime refuses of a file in tests/runtime.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
from bad_inputs import ANY, OWN, REGISTER, TINY, Case, World, arrays, may_be_read, must_end_well, sample, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.envs.data.hdf5.opening import check_file
from aaren_rl.policies.folder import load_policy
from aaren_rl.runtime import load
from aaren_rl.train.settings import read_config
from aaren_rl.train.training_run import find_checkpoint

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
Spoil = Callable[[Path], object]
RUN = "tiny/decision-aaren/seed0"
DATA = {0, 2, 3, 7}
PLAY = ["evaluate", "COPY", "--episodes", "1", *REGISTER]
TRAIN = ["train", *OWN, "--source", "COPY", "--out", "runs", *TINY]
RESUME = ["train", *OWN, "--source", "DATA", "--out", "COPY", *TINY, "--resume"]
SWEEP = ["sweep", "COPY", "--jobs", "1", *REGISTER, "--", *TINY]


def case(name: str, line: list[str], spoil: Spoil, codes: Any = ANY, target: str = "") -> Case:
    """A command on a copy of what is sound, spoiled first: of a run's folder or a data set."""

    def make(world: World) -> list[str]:
        sound = {"run": world.root / "runs", "policy": world.run / "policy", "data": world.data}
        path = Path("copy").absolute()
        if of := sound.get(name.partition(":")[0]):
            (shutil.copytree if of.is_dir() else shutil.copy)(of, path)
        spoil(path / target)
        return world.fill(line, COPY=str(path))

    return Case(name, make, codes)


def edited(change: Callable[[h5py.File], object]) -> Spoil:
    def spoil(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return spoil


def replaced(name: str, **options: Any) -> Spoil:
    """A dataset in another's place."""
    return edited(lambda file: (file.__delitem__(name), file.create_dataset(name, **options)))


def of(**changes: Any) -> Spoil:
    return lambda path: write(path, arrays(**changes))


HDF5: dict[str, Spoil] = {
    "gigabytes of nothing": replaced("observations", shape=(10**9, 3), dtype="f4", chunks=(1000, 3)),
    "references": replaced("rewards", shape=(80,), dtype=h5py.ref_dtype),
    "nothing in it": replaced("rewards", dtype="f4", data=h5py.Empty("f4")),
    "an env_id of bytes": edited(lambda file: file.attrs.__setitem__("env_id", np.void(b"\xff\x00"))),
    "an env_id of arrays": edited(lambda file: file.attrs.__setitem__("env_id", np.arange(5))),
    "many attributes": edited(lambda file: file.attrs.update({f"infos/{i}": "x" * 50 for i in range(2000)})),
    "records": of(observations=np.zeros(80, [("x", "f4"), ("y", "f4")])),
    "observations beyond int64": of(observations=np.full((80, 3), 2**63, np.uint64)),
    "constant observations": of(observations=np.zeros((80, 3))),
    "rewards that overflow when added": of(rewards=np.full(80, 1e308)),
    "all ends": of(terminals=np.ones(80, bool)),
    "one step": of(**{name: array[:1] for name, array in arrays().items()}),
}
TEXTS = ['{"agent": ', "[]", "[" * 100_000, "1e999", '{"a":1}{"a":1}', "\0{}", '{"seed": ' + "1" * 5000 + "}"]


def text(content: str) -> Spoil:
    return lambda path: path.write_bytes(content.encode("utf-8", "surrogateescape"))


CONFIGS = [
    "", "- 1", "agent", "\tagent: x", "agent: &a [*a]", "{" * 5000, "\x00\x01", "a: 1\n---\nb: 2",
    "agent: decision-aaren\nseed: 2020-01-01", "agent: !!set {a}\nseed: 0", f"agent: decision-aaren\nseed: {10**40}",
    "? [a, b]\n: 1", "a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nagent: *c\nseed: *c",
]  # fmt: skip
LEFT: dict[str, tuple[str, Spoil]] = {
    "metrics that are none": ("metrics.jsonl", text("{]\n\x00")),
    "a folder for metrics": ("metrics.jsonl", lambda p: (p.unlink(), p.mkdir())),
    "a checkpoint that is a folder": ("checkpoints/00000009.pt", Path.mkdir),
    "a checkpoint beyond": ("checkpoints/99999999999999", Path.mkdir),
    "a file for the checkpoints": ("checkpoints", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
    "a folder for the config": ("config.yaml", lambda p: (p.unlink(), p.mkdir())),
    "a folder for the lock": (".lock", lambda p: (p.unlink(missing_ok=True), p.mkdir())),
    "a file for the policy": ("policy", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
}


GRID = "preset: default\nenvs: [tiny]\nagents: [decision-aaren]\nseeds: [0]\n"
GRIDS = [
    "", "null", "[1, 2]", "preset: default", "preset: &a [*a]", "[" * 5000, "\t- x", "? [1, 2]\n: x", "preset: d\udcff",
    *(GRID.replace("tiny", env) for env in ("../../tmp/x", "..", "/tmp/x")), GRID.replace("default", "../default"),
    GRID + "settings: {updates: [1, 2]}",
]  # fmt: skip
HUB = ["hub", "RUN", "out", *REGISTER, "--scores", "COPY"]
IMPORT = ["import-weights", "DATA", "out", "--statistics", "COPY"]
CASES = [
    *(case(f"data: train, {what}", TRAIN, spoil, DATA) for what, spoil in HDF5.items()),
    *(case(f"data: verify, {what}", ["datasets", "verify", "COPY"], spoil, DATA) for what, spoil in HDF5.items()),
    *(case(f"policy: {t[:12]!a}", PLAY, text(t), {4}, "config.json") for t in TEXTS),
    *(case(f"run: {i} {t[:25]!a}", RESUME, text(t), {2, 4}, f"{RUN}/config.yaml") for i, t in enumerate(CONFIGS)),
    *(case(f"run: {what}", RESUME, spoil, {0, *ANY}, f"{RUN}/{place}") for what, (place, spoil) in LEFT.items()),
    *(case(f"grid: {i} {t[-25:]!a}", SWEEP, text(t)) for i, t in enumerate(GRIDS)),
    *(case(f"scores: {t[:25]}", HUB, text(t), {2, 3, 4}) for t in ("", "null", '["a"]', "[" * 100_000, "[NaN]")),
    *(case(f"statistics: {t[:25]}", IMPORT, text(t), {2, 4}) for t in ('{"mean": 1, "std": 2}', "[" * 9999)),
]


@pytest.mark.parametrize("case", sample(CASES, 15))
def test_a_file(case: Case, world: World, empty: Path) -> None:
    must_end_well(case.make(world), case.codes)


ODD = [None, True, -1, 0, 1.5, 1e308, 2**63, 10**400, float("nan"), "", "x" * 5000, "\x1b[2J", "../x", [], {}, [[]]]
EDGES = [bytes([value]) * size for value in (0, 1, 127, 128, 255) for size in (1, 2, 4, 8)]
many = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, int, bytes]]:
    """Where, how many bytes go, and what comes there. Most formats have their headers at the begin, zip at the end."""
    places = st.floats(0, 0.02) | st.floats(0, 0.999) | st.floats(0.95, 0.999)
    sizes, put = st.sampled_from([0, 1, 2, 4, 8, 200, 10**9]), st.sampled_from([b"", *EDGES]) | st.binary(max_size=8)
    return draw(st.lists(st.tuples(places, sizes, put), min_size=1, max_size=4))


def damaged(file: Path, changes: list[tuple[float, int, bytes]]) -> None:
    content = file.read_bytes()
    for place, size, put in changes:
        at = int(place * len(content))
        content = content[:at] + put + content[at + size :]
    file.write_bytes(content)


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of plain values in which one is replaced, removed or renamed."""
    tree = copy.deepcopy(tree)
    node: Any = tree
    while True:
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not (isinstance(node[key], dict | list) and node[key] and draw(st.booleans())):
            break
        node = node[key]
    what = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
    value = node.pop(key)
    if what == "replace" or (what == "rename" and not isinstance(node, dict)):
        other = draw(st.sampled_from(ODD))
        node.update({key: other}) if isinstance(node, dict) else node.insert(key, other)
    elif what == "rename":
        node[draw(st.sampled_from(["", "x", "__class__", f"{key}s"]))] = value
    return tree


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "checkpoint": (f"runs/{RUN}/checkpoints/00000002.pt", lambda file: find_checkpoint(file.parent)),
    "card": (f"runs/{RUN}/policy/config.json", lambda file: load_policy(file.parent)),
    "weights": (f"runs/{RUN}/policy/model.safetensors", lambda file: load_policy(file.parent)),
    "config": (f"runs/{RUN}/config.yaml", read_config),
    "onnx": ("policy.onnx", load),
}


@many
@given(st.sampled_from(sorted(READERS)), damage())
def test_bytes_that_change(world: World, tmp_path_factory: Any, kind: str, changes: list[Any]) -> None:
    place, read = READERS[kind]
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree((world.root / place).parent, folder, dirs_exist_ok=True)
    file = folder / Path(place).name
    damaged(file, changes)
    if kind == "weights":
        card = folder / "config.json"
        card.write_text(json.dumps({**json.loads(card.read_text()), "sha256": {}}))
    may_be_read(lambda: read(file))


VALUES = {
    "policy": ("config.json", PLAY),
    "run": (f"{RUN}/config.yaml", RESUME),
    "grid": ("", SWEEP),
}


@pytest.mark.slow
@settings(many, max_examples=100)
@given(st.sampled_from(sorted(VALUES)), st.data())
def test_values_that_change(world: World, empty: Path, kind: str, data: st.DataObject) -> None:
    target, line = VALUES[kind]

    def spoil(path: Path) -> None:
        sound = yaml.safe_load(GRID if kind == "grid" else path.read_text())  # JSON is YAML
        path.write_text((json.dumps if kind == "policy" else yaml.safe_dump)(data.draw(changed(sound))))

    try:
        must_end_well(case(f"{kind}:", line, spoil, target=target).make(world), {0, *ANY})
    finally:
        for path in empty.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
@many
@given(
    damage(), st.sampled_from([{}, {"compression": "gzip", "chunks": True, "fletcher32": True}, {"libver": "latest"}])
)
def test_hdf5_whose_bytes_change(tmp_path_factory: Any, changes: list[Any], how: dict[str, Any]) -> None:
    """A process of its own reads the file first: libhdf5 itself may crash."""
    path, options = tmp_path_factory.mktemp("hdf5") / "x.hdf5", dict(how)
    with h5py.File(path, "w", libver=options.pop("libver", "earliest")) as file:
        for name, array in arrays().items():
            file.create_dataset(name, data=array, **options)
    damaged(path, changes)
    may_be_read(lambda: (check_file(path), read_hdf5(path)))
