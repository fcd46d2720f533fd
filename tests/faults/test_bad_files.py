"""Files that are damaged, odd, or of another layout: each ends with one line that says why."""

from __future__ import annotations

import copy
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import minari_sets
import numpy as np
import onnx
import pytest
import yaml
from bad_inputs import ANY, OWN, REGISTER, TINY, Case, World, arrays, may_be_read, must_end_well, sample, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aaren_rl.envs.data.hdf5.d4rl import read_hdf5
from aaren_rl.envs.data.hdf5.opening import check_file
from aaren_rl.envs.data.minari.read import read_minari
from aaren_rl.policies.folder import load_policy
from aaren_rl.runtime import load
from aaren_rl.sweep.grid import read_grid
from aaren_rl.train.checkpoint import load_checkpoint
from aaren_rl.train.settings import read_config

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]
Spoil = Callable[[Path], object]
RUN = "tiny/decision-aaren/seed0"
DATA, POLICY = {2, 3, 7}, {2, 4, 5, 7}
PLAY = ["evaluate", "COPY", "--episodes", "1", *REGISTER]
EXPORT = ["export", "COPY", "--out", "x.onnx", *REGISTER]
TRAIN = ["train", *OWN, "--source", "COPY", "--out", "runs", *TINY]
RESUME = ["train", *OWN, "--source", "DATA", "--out", "COPY", *TINY, "--resume"]


def case(name: str, line: list[str], spoil: Spoil, codes: Any = ANY, target: str = "") -> Case:
    """A command on a copy of what is sound, spoiled first: of a run's folder, an ONNX file or a data set."""

    def make(world: World) -> list[str]:
        of = {"run": world.root / "runs", "policy": world.run / "policy", "onnx": world.onnx}.get(
            name.partition(":")[0], world.data
        )
        path = Path("copy").absolute()
        (shutil.copytree if of.is_dir() else shutil.copy)(of, path)
        spoil(path / target)
        words = {"COPY": str(path), "DATA": str(world.data)}
        return [words.get(word, word) for word in line]

    return Case(name, make, codes)


def data_sets() -> Iterator[Case]:
    """Arrays of another kind, and files that hold something else."""
    good = arrays()
    o, a, r, ends = (good[name] for name in ("observations", "actions", "rewards", "timeouts"))
    step = np.arange(80)
    refused: dict[str, dict[str, Any]] = {
        "no observations": {"observations": None},
        "no actions": {"actions": None},
        "no rewards": {"rewards": None},
        "observations of text": {"observations": np.full(o.shape, b"x")},
        "observations complex": {"observations": o.astype(complex)},
        "observations in three axes": {"observations": o[:, :, None]},
        "observations flat": {"observations": o.ravel()},
        "observations of other width": {"observations": o[:, :2]},
        "observations without width": {"observations": o[:, :0]},
        "observations beyond float32": {"observations": o.astype(np.float64) * 1e200},
        "observations of records": {"observations": np.zeros(80, [("x", "f4"), ("y", "f4")])},
        "observations longer": {"observations": np.tile(o, (2, 1))},
        "one inf": {"observations": np.where(np.arange(240).reshape(80, 3) == 77, np.inf, o)},
        "actions out of bounds": {"actions": a * 3},
        "actions of other width": {"actions": a[:, :1]},
        "actions flat": {"actions": a[:, 0]},
        "actions NaN": {"actions": a * np.nan},
        "actions of text": {"actions": np.full(a.shape, b"left")},
        "rewards in two axes": {"rewards": np.stack([r, r], 1)},
        "rewards shorter": {"rewards": r[:-1]},
        "rewards of text": {"rewards": np.full(r.shape, b"1.0")},
        "rewards one number": {"rewards": np.float32(1)},
        "rewards infinite": {"rewards": np.where(step == 3, np.inf, r)},
        "rewards that overflow when added": {"rewards": np.full(80, 1e308)},
        "ends of another length": {"timeouts": ends[:-1]},
        "ends that are NaN": {"timeouts": np.full(80, np.nan)},
        "ends of text": {"timeouts": np.full(80, b"no")},
        "no steps": {name: array[:0] for name, array in good.items()},
    }
    odd: dict[str, dict[str, Any]] = {
        "no ends": {"terminals": None, "timeouts": None},
        "observations beyond int64": {"observations": np.full(o.shape, 2**63, np.uint64)},
        "ends that are numbers": {"timeouts": np.full(80, 0.5)},
        "one step": {name: array[:1] for name, array in good.items()},
        "all ends": {"terminals": np.ones(80, bool)},
        "constant observations": {"observations": np.zeros_like(o)},
        "only one episode": {"timeouts": step == 79},
    }
    for group, codes in ((refused, DATA), (odd, {0, *ANY})):
        for what, changes in group.items():
            yield case(f"data: {what}", TRAIN, lambda path, c=changes: write(path, arrays(**c)), codes)
    for what, spoil in HDF5.items():
        yield case(f"data: train, {what}", TRAIN, spoil, {0, *DATA})
        yield case(f"data: verify, {what}", ["datasets", "verify", "COPY"], spoil, {0, *DATA})


def edited(change: Callable[[h5py.File], object]) -> Spoil:
    def spoil(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return spoil


def replaced(name: str, value: Any = None, **options: Any) -> Spoil:
    """A dataset or a link in another's place."""

    def change(file: h5py.File) -> None:
        del file[name]
        if options:
            file.create_dataset(name, **options)
        elif value is None:
            file.create_group(name)
        else:
            file[name] = value

    return edited(change)


def cut_out(path: Path, begin: int, end: int | None, put: bytes = b"") -> None:
    content = path.read_bytes()
    path.write_bytes(content[:begin] + put + (b"" if end is None else content[end:]))


HDF5: dict[str, Spoil] = {
    "cut in the middle": lambda path: cut_out(path, path.stat().st_size // 2, None),
    "an appendix": lambda path: path.write_bytes(path.read_bytes() + b"x" * 1000),
    "zeros in the middle": lambda path: cut_out(path, 600, 1000, bytes(400)),
    "a zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
    "gigabytes of nothing": replaced("observations", shape=(10**9, 3), dtype="f4", chunks=(1000, 3)),
    "a petabyte of nothing": replaced("observations", shape=(10**15, 3), dtype="f4", chunks=(1000, 3)),
    "a bomb": replaced("rewards", shape=(4 * 10**8,), dtype="f8", chunks=(10**6,), compression="gzip"),
    "a group for an array": replaced("actions"),
    "a link to nothing": replaced("actions", h5py.SoftLink("/x")),
    "a link to another file": replaced("actions", h5py.ExternalLink("/etc/passwd", "/")),
    "a link in a circle": replaced("actions", h5py.SoftLink("/actions")),
    "references": replaced("rewards", shape=(80,), dtype=h5py.ref_dtype),
    "strings": replaced("rewards", shape=(80,), dtype=h5py.string_dtype()),
    "nothing in it": replaced("rewards", dtype="f4", data=h5py.Empty("f4")),
    "an env_id of bytes": edited(lambda file: file.attrs.__setitem__("env_id", np.void(b"\xff\x00"))),
    "an env_id of arrays": edited(lambda file: file.attrs.__setitem__("env_id", np.arange(5))),
    "attributes of text": edited(lambda file: file.attrs.update(dict.fromkeys(("source", "origin"), "x\n\x1b[2J"))),
    "many attributes": edited(lambda file: file.attrs.update({f"infos/{i}": "x" * 50 for i in range(2000)})),
    "infos that are odd": edited(lambda file: file.create_dataset("infos/action_log_probs", data=b"x")),
}
CARD: dict[str, list[Any]] = {
    "env": ["../x", "", None, "a b\n"],
    "env_id": ["", "os:system", "Nothing-v0", None, "\u202ex", 5],
    "env_kwargs": [None, [], {"xml_file": "/etc/passwd"}, {"a b": 1}, {"render_mode": "human!"}, {"x": {"y": 1}}],
    "horizon": [0, -5, 1.5, True, None, "8"],
    "action_low": [[], [1, 2], [[-1], [-1]], "ab", [None, None], [-1e400, -1]],
    "action_high": [[1], [1, 1, 1], [float("nan"), 1]],
    "reference_returns": [[1], [3, 2], [1, 2, 3], "12", [float("inf"), 1]],
    "rollout": ["", "forget", None, 1, ["carry"]],
    "rollout_context": [0, 1, -3, 1.5],
    "return_scale": [0, -1, 1e-40, None, "1"],
    "observation_mean": [[], [0, 0], [0, 0, float("nan")], [0, 0, 1e39], "abc", [0, 0, "0"], [[0, 0, 0]]],
    "observation_std": [[0, 1, 1], [1, -1, 1], [1, 1, float("inf")], [1, 1, 1e-300]],
    "model": [{}, None, [], {"width": 8}, "decision"],
    "weights": ["../weights", "", "best", None, 3],
    "sha256": [[], {"model.safetensors": 5}, {"model.safetensors": "0" * 64}],
    "format": [None, 1, "99", [1]],
    # What is only told, and need not be refused.
    "agent": [None, 3, "", "x" * 10_000, "\x1b[2J", ["a"]],
    "target_return": [float("nan"), float("inf"), 1e300, "auto", [1], {}],
    "context_length": [0, -1, "4", None],
    "versions": [None, {"a": 1}, []],
    "held_out": [2, -1, "x"],
    "data_returns": [{"mean": "x"}, [], {"mean": float("nan")}],
    "updates": [-1, "many", 1.5],
    "seed": ["x", 1.5, None],
}
TOLD = ("agent", "target_return", "context_length", "versions", "held_out", "data_returns", "updates", "seed", "sha256")
MODEL = {"width": 0, "layers": 10**9, "heads": 3, "mixer": "magic", "max_timestep": 10**12, "dropout": 2,
         "observation_dim": 4, "block": "round", "rem_counts": 5, "nobody": 1}  # fmt: skip
TEXTS = ['{"agent": ', "[]", "[" * 100_000, "1e999", '{"a":1}{"a":1}', "\0{}", '{"seed": ' + "1" * 5000 + "}"]


def amended(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def header(tree: Any, body: bytes = b"") -> bytes:
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


WEIGHTS: dict[str, bytes] = {
    "empty": b"",
    "no header": struct.pack("<Q", 10**18),
    "an empty header": header({}),
    "a header that is a list": header([1]),
    "an unknown type": header({"head.bias": tensor("F128", [2], 32)}, bytes(32)),
    "overlapping": header(dict.fromkeys(("head.bias", "head.weight"), tensor("F32", [2], 8)), bytes(8)),
    "a negative size": header({"head.bias": tensor("F32", [-2], 8)}, bytes(8)),
    "sizes beyond": header({"head.bias": tensor("F32", [2**62, 2**62], 8)}, bytes(8)),
    "a pickle": b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
}


def without_sha256(folder: Path) -> None:
    amended(folder / "config.json", lambda card: card.update(sha256={}))


def policies() -> Iterator[Case]:
    """Cards."""
    for field, values in CARD.items():
        for i, value in enumerate(values):
            line = PLAY if i % 2 else EXPORT

            def set_field(path: Path, field: str = field, value: Any = value) -> None:
                amended(path, lambda card: card.update({field: value}))

            codes = {0, *POLICY} if field in TOLD else POLICY
            yield case(f"policy: {field} {value!a:.30}", line, set_field, codes, "config.json")
    for name, value in MODEL.items():

        def set_model(path: Path, name: str = name, value: Any = value) -> None:
            amended(path, lambda card: card["model"].update({name: value}))

        yield case(f"policy: model {name}", PLAY, set_model, {4}, "config.json")
    for text in TEXTS:
        yield case(f"policy: {text[:12]!a}", PLAY, lambda path, t=text: path.write_text(t), {4}, "config.json")


def weights() -> Iterator[Case]:
    """Files of weights, without a SHA-256 to tell them by."""

    def overwritten(content: bytes) -> Spoil:
        def spoil(folder: Path) -> None:
            without_sha256(folder)
            (folder / "model.safetensors").write_bytes(content)

        return spoil

    def computed(change: Callable[[Any], Any]) -> Spoil:
        def spoil(folder: Path) -> None:
            without_sha256(folder)
            file = folder / "model.safetensors"
            save_file({name: change(weights) for name, weights in load_file(file).items()}, file)

        return spoil

    for what, content in WEIGHTS.items():
        yield case(f"policy: weights, {what}", PLAY, overwritten(content), {4})
    for value in (float("nan"), float("inf"), 1e30):
        for line in (PLAY, EXPORT):
            yield case(f"policy: {line[0]}, all {value}", line, computed(lambda x, v=value: x + v), {0, 4, 5, 6})
    yield case("policy: doubles", PLAY, computed(lambda x: x.double()), {0, 4})
    yield case("policy: integers", PLAY, computed(lambda x: x.long()), {0, 4})


CONFIGS = [
    "", "- 1", "agent", "\tagent: x", "agent: &a [*a]", "agent: !!python/object/apply:os.system ['true']", "seed: 0",
    "agent: decision-aaren\nseed: x", "agent: decision-aaren\nseed: 0\nx: {}",
    "agent: decision-aaren\nseed: 0\ndata: x",
    "{" * 5000, "\x00\x01", "agent: decision-aaren\nseed: 0\noptimizer: {updates: .nan}", "a: 1\n---\nb: 2",
    "agent: decision-aaren\nseed: 2020-01-01", "agent: !!set {a}\nseed: 0", f"agent: decision-aaren\nseed: {10**40}",
    "? [a, b]\n: 1", "a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nagent: *c\nseed: *c",
]  # fmt: skip


def runs() -> Iterator[Case]:
    """What `train --resume` finds."""
    for i, text in enumerate(CONFIGS):
        yield case(
            f"run: config {i} {text[:25]!a}",
            RESUME,
            lambda path, t=text: path.write_text(t),
            {2, 4},
            f"{RUN}/config.yaml",
        )
    spoils: dict[str, tuple[str, Spoil]] = {
        "metrics that are none": ("metrics.jsonl", lambda p: p.write_text("{]\n\x00")),
        "a folder for metrics": ("metrics.jsonl", lambda p: (p.unlink(), p.mkdir())),
        "a checkpoint": ("checkpoints/00000002.pt", lambda p: p.write_bytes(b"PK\x03\x04")),
        "a checkpoint that is a folder": ("checkpoints/00000009.pt", Path.mkdir),
        "a checkpoint beyond": ("checkpoints/99999999999999", Path.mkdir),
        "a file for the checkpoints": ("checkpoints", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
        "a folder for the config": ("config.yaml", lambda p: (p.unlink(), p.mkdir())),
        "a folder for the lock": (".lock", lambda p: (p.unlink(missing_ok=True), p.mkdir())),
        "a file for the policy": ("policy", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
    }
    for what, (place, spoil) in spoils.items():
        yield case(f"run: {what}", RESUME, spoil, {0, *ANY}, f"{RUN}/{place}")


def model(change: Callable[[Any], object]) -> Spoil:
    def spoil(path: Path) -> None:
        loaded = onnx.load(path)
        change(loaded)
        path.write_bytes(loaded.SerializeToString())

    return spoil


def described(key: str, value: str | dict[str, Any]) -> Spoil:
    """Metadata; a dict changes those that are there."""

    def change(loaded: Any) -> None:
        (entry,) = (entry for entry in loaded.metadata_props if entry.key == key)
        entry.value = value if isinstance(value, str) else json.dumps({**json.loads(entry.value), **value})

    return model(change)


def outside(loaded: Any) -> None:
    tensor = loaded.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


ONNX: dict[str, Spoil] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-500]),
    "its begin": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "bytes changed": lambda path: path.write_bytes(path.read_bytes().replace(b"Add", b"Bdd")),
    "text": lambda path: path.write_text("onnx"),
    "no description": model(lambda loaded: loaded.ClearField("metadata_props")),
    "another format": described("aaren_rl_format", "99"),
    "a card that is none": described("policy", "{"),
    "a card that is a list": described("policy", "[]"),
    "a deep card": described("policy", "[" * 100_000),
    "an export that is none": described("export", "null"),
    "an export without precision": described("export", "{}"),
    "another input": model(lambda loaded: setattr(loaded.graph.input[0], "name", "x")),
    "no output": model(lambda loaded: loaded.graph.output.pop()),
    "no nodes": model(lambda loaded: loaded.graph.ClearField("node")),
    "an operator set of the future": model(lambda loaded: setattr(loaded.opset_import[0], "version", 999)),
    "an unknown operator": model(lambda loaded: setattr(loaded.graph.node[0], "op_type", "Magic")),
    "a loop": model(lambda loaded: loaded.graph.node[0].input.append(loaded.graph.node[-1].output[0])),
    "weights elsewhere": model(outside),
    **{f"card {value}": described("policy", value) for value in (
        {"return_scale": None}, {"return_scale": "x"}, {"return_scale": 0}, {"model": "x"}, {"model": {}},
        {"rollout": 5}, {"env_id": "os:path"},
    )},
}  # fmt: skip


def grids_and_json() -> Iterator[Case]:
    """Grids of `sweep`, scores and statistics."""
    good = "preset: default\nenvs: [tiny]\nagents: [decision-aaren]\nseeds: [0]\n"
    texts = [
        "", "paper", "5", "null", "[1, 2]", "preset: default", good.replace("[tiny]", "[1]"),
        good.replace("[tiny]", "tiny"), good.replace("[tiny]", "[]"), good.replace("[decision-aaren]", "[]"),
        *(good.replace("[0]", seeds) for seeds in (
            "[]", "[a]", "[-1]", "[.nan]", f"[{10**30}]", "[true]", "[2020-01-01]",
        )),
        *(good.replace("[tiny]", f"['{env}']") for env in ("../../tmp/x", "..", "", "/tmp/elsewhere")),
        good.replace("decision-aaren", "magic"), good.replace("default", "../default"),
        *(good + more for more in (
            "more: 1", "settings: {magic: 1}", "settings: [1]", "settings: {updates: [1, 2]}",
            "settings: {updates: null}", "settings: {width: {a: 1}}", "settings: {updates: -5}",
            "settings: {learning_rate: .nan}", "data: {other: {}}", "data: [1]", "---\n" + good, "preset: other",
        )),
        "!!python/object/apply:os.system ['true']", "preset: &a [*a]", "[" * 5000, "\t- x", "? [1, 2]\n: x",
        "preset: d\udcff",
    ]  # fmt: skip

    def written(name: str, text: str, line: list[str]) -> Callable[[World], list[str]]:
        def make(world: World) -> list[str]:
            Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
            words = {"RUN": str(world.run), "DATA": str(world.data)}
            return [words.get(word, word) for word in line]

        return make

    for i, text in enumerate(texts):
        line = ["sweep", "g.yaml", "--jobs", "1", *REGISTER, "--", *TINY]
        yield Case(f"grid: {i} {text[-25:]!a}", written("g.yaml", text, line))
    for text in ("", "[]", "{}", "null", "[1]", "[{}]", '["a"]', "[" * 100_000, '[{"return_mean": "x"}]', "[NaN]"):
        line = ["hub", "RUN", "out", *REGISTER, "--scores", "s.json"]
        yield Case(f"scores: {text[:25]}", written("s.json", text, line), {2, 3, 4})
    for text in ('{"mean": 1, "std": 2}', '{"mean": [1], "std": [NaN]}', '{"mean": {}, "std": []}', "[" * 9999):
        line = ["import-weights", "DATA", "out", "--statistics", "s.json"]
        yield Case(f"statistics: {text[:25]}", written("s.json", text, line), {2, 4})


OF_ONNX = [case(f"onnx: {what}", PLAY, spoil, {2, 4, 5}) for what, spoil in ONNX.items()]
CASES = [*data_sets(), *policies(), *weights(), *runs(), *OF_ONNX, *grids_and_json()]


@pytest.mark.parametrize("case", sample(CASES, 15))
def test_a_file(case: Case, world: World, empty: Path) -> None:
    must_end_well(case.make(world), case.codes)


def test_there_are_more_than_300_files() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 300 and len(set(names)) == len(names)


ODD = [None, True, -1, 0, 1.5, 1e308, 2**63, 10**400, float("nan"), "", "x" * 5000, "\x1b[2J", "../x", [], {}, [[]]]
EDGES = [bytes([value]) * size for value in (0, 1, 127, 128, 255) for size in (1, 2, 4, 8)]
many = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, int, bytes]]:
    """Where, how many bytes go, and what comes there. Most formats have their headers at the begin, zip at the end."""
    places = st.floats(0, 0.02) | st.floats(0, 0.999) | st.floats(0.95, 0.999)
    sizes, put = st.sampled_from([0, 1, 2, 4, 8, 200, 10**9]), st.sampled_from([b"", *EDGES]) | st.binary(max_size=8)
    return draw(st.lists(st.tuples(places, sizes, put), min_size=1, max_size=4))


def damaged(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for place, size, put in changes:
        at = int(place * len(content))
        content = content[:at] + put + content[at + size :]
    return content


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
    "checkpoint": ("runs/" + RUN + "/checkpoints/00000002.pt", lambda file: load_checkpoint(file.parent)),
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
    file.write_bytes(damaged(file.read_bytes(), changes))
    if kind == "weights":
        without_sha256(folder)
    may_be_read(lambda: read(file))


@many
@given(st.data())
def test_values_that_change(world: World, tmp_path_factory: Any, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["card", "config", "grid"]))
    folder = tmp_path_factory.mktemp("changed")
    if kind == "card":
        shutil.copytree(world.run / "policy", folder, dirs_exist_ok=True)
        file = folder / "config.json"
        file.write_text(json.dumps(data.draw(changed(json.loads(file.read_text())))))
        may_be_read(lambda: load_policy(folder))
        return
    good = {
        "preset": "default",
        "envs": ["tiny"],
        "agents": ["decision-aaren"],
        "seeds": [0],
        "settings": {"updates": 2},
    }
    tree = good if kind == "grid" else yaml.safe_load((world.run / "config.yaml").read_text())
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(data.draw(changed(tree))))
    may_be_read(lambda: read_grid(str(file)) if kind == "grid" else read_config(file))


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
    path.write_bytes(damaged(path.read_bytes(), changes))
    may_be_read(lambda: (check_file(path), read_hdf5(path)))


@pytest.mark.slow
@many
@given(damage(), st.sampled_from(["main_data.hdf5", "metadata.json"]))
def test_a_minari_set_whose_bytes_change(
    minari_recorded: Path, tmp_path_factory: Any, changes: list[Any], name: str
) -> None:
    root = tmp_path_factory.mktemp("minari")
    shutil.copytree(minari_recorded, root, dirs_exist_ok=True)
    file = root / minari_sets.ID / "data" / name
    file.write_bytes(damaged(file.read_bytes(), changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        may_be_read(lambda: read_minari(minari_sets.ID, download=False, progress=False))
