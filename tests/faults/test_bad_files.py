"""Files that are damaged, odd, or of another layout: each ends with one line that says why.

What readers of data sets refuse is in tests/envs/data, and what `runtime.load_policy` rejects in tests/runtime.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_inputs import ANY, OWN, REGISTER, TINY, Case, World, may_be_read, must_end_well, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaren_rl import load_policy
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.envs.data.hdf5.opening import check_file
from aaren_rl.train.records import find_checkpoint
from aaren_rl.train.settings import read_config

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
Spoil = Callable[[Path], object]
RUN = "tiny/decision-aaren/seed0"
PLAY = ["evaluate", "COPY", "--episodes", "1", *REGISTER]
RESUME = ["train", *OWN, "--source", "DATA", "--out", "COPY", *TINY, "--resume"]
SWEEP = ["sweep", "COPY", "--jobs", "1", *REGISTER, "--", *TINY]


def case(name: str, line: list[str], spoil: Spoil, codes: Any = ANY, target: str = "") -> Case:
    """A command on a copy of what is sound, spoiled first: of a run's folder or of nothing."""

    def make(world: World) -> list[str]:
        sound = {"run": world.root / "runs", "policy": world.run / "policy"}
        path = Path("copy").absolute()
        if of := sound.get(name.partition(":")[0]):
            shutil.copytree(of, path)
        spoil(path / target)
        return world.fill(line, COPY=str(path))

    return Case(name, make, codes)


def text(content: str) -> Spoil:
    return lambda path: path.write_bytes(content.encode("utf-8", "surrogateescape"))


# For every reader of JSON or YAML.
TEXTS = [
    "", "null", "- 1", "agent", '{"agent": ', "[]", "[" * 100_000, "1e999", '{"a":1}{"a":1}', "\0{}",
    '{"s": ' + "1" * 5000,
    "\tagent: x", "agent: &a [*a]", "a: 1\n---\nb: 2", "agent: !!set {a}\nseed: 0", "? [a, b]\n: 1", "agent: d\udcff",
    f"agent: decision-aaren\nseed: {10**40}", "a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b]\nagent: *c\nseed: *c",
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
NAMES = [*(GRID.replace("tiny", env) for env in ("../../tmp/x", "..", "/tmp/x")), GRID.replace("default", "../default")]
READING = {
    "policy": (PLAY, {4}, "config.json"),
    "run": (RESUME, {2, 4}, f"{RUN}/config.yaml"),
    "grid": (SWEEP, ANY, ""),
    "scores": (["hub", "RUN", "out", *REGISTER, "--scores", "COPY"], {2, 3, 4}, ""),
    "statistics": (["import-weights", "DATA", "out", "--statistics", "COPY"], {2, 4}, ""),
}
CASES = [
    *(
        case(f"{kind}: {i} {content[:12]!a}", line, text(content), codes, target)
        for i, content in enumerate(TEXTS)
        for kind, (line, codes, target) in READING.items()
    ),
    *(case(f"grid: {content[-25:]!a}", SWEEP, text(content)) for content in NAMES),
    *(case(f"run: {what}", RESUME, spoil, {0, *ANY}, f"{RUN}/{place}") for what, (place, spoil) in LEFT.items()),
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
    "onnx": ("policy.onnx", load_policy),
    # A process of its own reads the file first: libhdf5 itself may crash.
    "hdf5": ("tiny.hdf5", lambda file: (check_file(file), read_hdf5(file))),
}


@many
@given(st.sampled_from(sorted(READERS)), damage())
def test_bytes_that_change(world: World, tmp_path_factory: Any, kind: str, changes: list[Any]) -> None:
    place, read = READERS[kind]
    folder = tmp_path_factory.mktemp("damaged")
    sound, file = world.root / place, folder / Path(place).name
    if sound.parent == world.root:
        shutil.copy(sound, file)
    else:
        shutil.copytree(sound.parent, folder, dirs_exist_ok=True)
    damaged(file, changes)
    if kind == "weights":
        card = folder / "config.json"
        card.write_text(json.dumps({**json.loads(card.read_text()), "sha256": {}}))
    may_be_read(lambda: read(file))


@pytest.mark.slow
@settings(many, max_examples=100)
@given(st.sampled_from(["policy", "run", "grid"]), st.data())
def test_values_that_change(world: World, empty: Path, kind: str, data: st.DataObject) -> None:
    line, _, target = READING[kind]

    def spoil(path: Path) -> None:
        sound = yaml.safe_load(GRID if kind == "grid" else path.read_text())  # JSON is YAML
        path.write_text((json.dumps if kind == "policy" else yaml.safe_dump)(data.draw(changed(sound))))

    try:
        must_end_well(case(f"{kind}:", line, spoil, target=target).make(world), {0, *ANY})
    finally:
        for path in empty.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
