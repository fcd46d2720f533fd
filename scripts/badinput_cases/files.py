"""Damaged and odd files: data sets, policies, runs, exported policies, grids and configurations."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .world import MODULE, TINY, Case, World, arrays, command, write

Spoil = Callable[[Path], object]
DATA = {2, 3, 7}
POLICY = {2, 4, 5}


def cases(world: World) -> Iterator[Case]:
    """All of them."""
    yield from _data(world)
    yield from _cards(world)
    yield from _weights(world)
    yield from _runs(world)
    yield from _onnx(world)
    yield from _grids(world)
    yield from _json(world)


def _case(name: str, of: Path, target: str, spoil: Spoil, argv: Callable[[str], list[str]], codes: set[int]) -> Case:
    """A command on a copy that is spoiled first."""

    def call() -> int:
        copy = Path.cwd() / "copy"
        (shutil.copytree if of.is_dir() else shutil.copy)(of, copy)
        spoil(copy / target if target else copy)
        first, *rest = argv(str(copy))
        return command(first, rest).call()

    return Case(name, call, frozenset(codes))


def _changed(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    content = {**arrays(), **changes}
    return {name: value for name, value in content.items() if value is not None}


def _data(world: World) -> Iterator[Case]:
    """HDF5 files: arrays of another kind, and files that hold something else."""
    good = arrays()
    o, a, r, ends = (good[name] for name in ("observations", "actions", "rewards", "timeouts"))
    changed: dict[str, dict[str, Any]] = {
        "no observations": {"observations": None},
        "no actions": {"actions": None},
        "no rewards": {"rewards": None},
        "no ends": {"terminals": None, "timeouts": None},
        "observations of text": {"observations": np.full(o.shape, b"x")},
        "observations complex": {"observations": o.astype(complex)},
        "observations in three axes": {"observations": o[:, :, None]},
        "observations flat": {"observations": o.ravel()},
        "observations of other width": {"observations": o[:, :2]},
        "observations without width": {"observations": o[:, :0]},
        "observations beyond float32": {"observations": o.astype(np.float64) * 1e200},
        "observations integers beyond": {"observations": np.full(o.shape, 2**63, np.uint64)},
        "observations boolean": {"observations": o > 0, "actions": None},
        "observations of records": {"observations": np.zeros(len(o), [("x", "f4"), ("y", "f4")])},
        "observations longer": {"observations": np.tile(o, (2, 1))},
        "one inf in observations": {"observations": np.where(np.arange(240).reshape(80, 3) == 77, np.inf, o)},
        "actions out of bounds": {"actions": a * 3},
        "actions of other width": {"actions": a[:, :1]},
        "actions flat": {"actions": a[:, 0]},
        "actions NaN": {"actions": a * np.nan},
        "actions of text": {"actions": np.full(a.shape, b"left")},
        "rewards in two axes": {"rewards": np.stack([r, r], 1)},
        "rewards shorter": {"rewards": r[:-1]},
        "rewards of text": {"rewards": np.full(r.shape, b"1.0")},
        "rewards one number": {"rewards": np.float32(1)},
        "rewards infinite": {"rewards": np.where(np.arange(80) == 3, np.inf, r)},
        "rewards beyond float32": {"rewards": r.astype(np.float64) * 1e200},
        "rewards that overflow when added": {"rewards": np.full(80, 1e308)},
        "ends of another length": {"timeouts": ends[:-1]},
        "ends that are numbers": {"timeouts": np.full(80, 0.5)},
        "ends that are NaN": {"timeouts": np.full(80, np.nan)},
        "ends of text": {"timeouts": np.full(80, b"no")},
        "no steps": {name: array[:0] for name, array in good.items()},
        "one step": {name: array[:1] for name, array in good.items()},
        "all ends": {"terminals": np.ones(80, bool)},
        "constant observations": {"observations": np.zeros_like(o)},
        "only one episode": {"timeouts": np.arange(80) == 79},
    }
    sound = {"all ends", "constant observations", "only one episode", "ends that are numbers", "one step", "no ends"}
    sound.add("observations integers beyond")  # beyond int64; not beyond float32
    own = ["--env-id", "Good-v0", "--register", MODULE, "--target-return", "4", "--out", "runs", *TINY]
    for what, changes in changed.items():

        def spoil(path: Path, changes: dict[str, Any] = changes) -> None:
            write(path, _changed(**changes))

        codes = DATA | ({0, 5, 6} if what in sound else set())
        yield _case(f"data: train, {what}", world.data, "", spoil, lambda p: ["train", "--source", p, *own], codes)
        if "ends" in what or "records" in what:
            yield _case(
                f"data: info, {what}", world.data, "", spoil, lambda p: ["datasets", "info", p, *own[:4]], codes | {0}
            )
    for what, spoil in _odd_hdf5().items():
        yield _case(f"data: train, {what}", world.data, "", spoil, lambda p: ["train", "--source", p, *own], DATA | {0})
        yield _case(f"data: verify, {what}", world.data, "", spoil, lambda p: ["datasets", "verify", p], DATA | {0})


def _odd_hdf5() -> dict[str, Spoil]:
    def edited(change: Callable[[h5py.File], object]) -> Spoil:
        def spoil(path: Path) -> None:
            with h5py.File(path, "r+") as file:
                change(file)

        return spoil

    def replaced(name: str, **options: Any) -> Callable[[h5py.File], object]:  # noqa: ANN401
        def change(file: h5py.File) -> None:
            del file[name]
            file.create_dataset(name, **options)

        return change

    huge = {"shape": (10**9, 3), "dtype": "f4", "chunks": (1000, 3)}
    vast = {"shape": (10**15, 3), "dtype": "f4", "chunks": (1000, 3)}
    strings = h5py.string_dtype()
    return {
        "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "an appendix": lambda path: path.write_bytes(path.read_bytes() + b"x" * 1000),
        "zeros in the middle": lambda path: path.write_bytes(
            path.read_bytes()[:600] + bytes(400) + path.read_bytes()[1000:]
        ),
        "a zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
        "a gigabyte of nothing": edited(replaced("observations", **huge)),
        "a petabyte of nothing": edited(replaced("observations", **vast)),
        "a bomb": edited(replaced("rewards", shape=(4 * 10**8,), dtype="f8", chunks=(10**6,), compression="gzip")),
        "a group for an array": edited(lambda file: (file.__delitem__("actions"), file.create_group("actions"))),
        "a link to nothing": edited(
            lambda file: (file.__delitem__("actions"), file.__setitem__("actions", h5py.SoftLink("/x")))
        ),
        "a link to another file": edited(
            lambda file: (
                file.__delitem__("actions"),
                file.__setitem__("actions", h5py.ExternalLink("/etc/passwd", "/")),
            )
        ),
        "a link in a circle": edited(
            lambda file: (file.__delitem__("actions"), file.__setitem__("actions", h5py.SoftLink("/actions")))
        ),
        "references": edited(replaced("rewards", shape=(80,), dtype=h5py.ref_dtype)),
        "strings": edited(replaced("rewards", shape=(80,), dtype=strings)),
        "nothing in it": edited(replaced("rewards", dtype="f4", data=h5py.Empty("f4"))),
        "an env_id of bytes": edited(lambda file: file.attrs.__setitem__("env_id", np.void(b"\xff\x00"))),
        "an env_id of arrays": edited(lambda file: file.attrs.__setitem__("env_id", np.arange(5))),
        "attributes of text": edited(
            lambda file: [
                file.attrs.__setitem__(name, "x\n\x1b[2J") for name in ("source", "origin", "format", "behaviour")
            ]
        ),
        "a million attributes": edited(
            lambda file: [file.attrs.__setitem__(f"infos/{i}", "x" * 50) for i in range(2000)]
        ),
        "infos that are odd": edited(lambda file: file.create_dataset("infos/action_log_probs", data=b"x")),
    }


def _cards(world: World) -> Iterator[Case]:
    """Values of a policy's card that cannot be."""
    odd: dict[str, list[Any]] = {
        "agent": [None, 3, "", "x" * 10_000, "\x1b[2J", ["a"]],
        "env": ["../x", "", None, "a b\n"],
        "env_id": ["", "os:system", "Nothing-v0", None, "\u202ex", 5],
        "env_kwargs": [None, [], {"xml_file": "/etc/passwd"}, {"a b": 1}, {"render_mode": "human!"}, {"x": {"y": 1}}],
        "horizon": [0, -5, 1.5, True, None, "8"],
        "action_low": [[], [1, 2], [[-1], [-1]], "ab", [None, None], [-1e400, -1]],
        "action_high": [[1], [1, 1, 1], [float("nan"), 1]],
        "reference_returns": [[1], [3, 2], [1, 2, 3], "12", [float("inf"), 1]],
        "rollout": ["", "forget", None, 1, ["carry"]],
        "rollout_context": [0, 1, -3, 1.5, None, 10**12, 10**30],
        "target_return": [float("nan"), float("inf"), 1e300, "auto", [1], {}],
        "return_scale": [0, -1, 1e-40, 1e300, None, "1"],
        "observation_mean": [[], [0, 0], [0, 0, float("nan")], [0, 0, 1e39], "abc", [0, 0, "0"], [[0, 0, 0]]],
        "observation_std": [[0, 1, 1], [1, -1, 1], [1, 1, float("inf")], [1, 1, 1e-300]],
        "model": [{}, None, [], {"width": 8}, "decision"],
        "weights": ["../weights", "", "best", None, 3],
        "context_length": [0, -1, "4", None],
        "versions": [None, {"a": 1}, []],
        "sha256": [[], {"model.safetensors": 5}, {"model.safetensors": "0" * 64}],
        "held_out": [2, -1, "x"],
        "data_returns": [{"mean": "x"}, [], {"mean": float("nan")}],
        "format": [None, 1, "99", [1]],
        "updates": [-1, "many", 1.5],
        "seed": ["x", 1.5, None],
    }
    for field, values in odd.items():
        for i, value in enumerate(values):

            def spoil(path: Path, field: str = field, value: Any = value) -> None:  # noqa: ANN401
                tree = json.loads(path.read_text())
                path.write_text(json.dumps({**tree, field: value}))

            argv = _playing if i % 2 else _exporting
            # What is only told, a line of text or a number beside the policy, need not be refused.
            told = field in ("seed", "updates", "held_out", "agent", "context_length", "versions", "data_returns")
            told |= (field, i) in (("rollout_context", 4), ("rollout_context", 5), ("return_scale", 3), ("sha256", 0))
            codes = POLICY | ({0} if told or field == "target_return" else set()) | {7}
            shown = f"{value!r:.30}".encode("ascii", "backslashreplace").decode()
            yield _case(f"card: {field} {i} {shown}", world.policy, "config.json", spoil, argv, codes)
    for name, value in {"width": 0, "layers": 10**9, "heads": 3, "mixer": "magic", "max_timestep": 10**12,
                        "dropout": 2, "observation_dim": 4, "block": "round", "rem_counts": 5, "nobody": 1}.items():  # fmt: skip

        def change(path: Path, name: str = name, value: Any = value) -> None:  # noqa: ANN401
            tree = json.loads(path.read_text())
            tree["model"][name] = value
            path.write_text(json.dumps(tree))

        yield _case(f"card: model {name} {value}", world.policy, "config.json", change, _playing, {4})
    texts = {"cut": '{"agent": ', "a list": "[]", "deep": "[" * 100_000, "a number": "1e999", "twice": '{"a":1}{"a":1}',
             "UTF-16": '{"format": "1"}'.encode("utf-16"), "long number": '{"seed": ' + "1" * 5000 + "}"}  # fmt: skip
    for what, text in texts.items():
        content = text if isinstance(text, bytes) else text.encode()
        yield _case(
            f"card: {what}", world.policy, "config.json", lambda path, c=content: path.write_bytes(c), _playing, {4}
        )
        yield _case(
            f"hub card: {what}", world.hub, "config.json", lambda path, c=content: path.write_bytes(c), _playing, {4}
        )


def _playing(path: str) -> list[str]:
    return ["evaluate", path, "--episodes", "1", "--register", MODULE]


def _exporting(path: str) -> list[str]:
    return ["export", path, "--out", "x.onnx", "--register", MODULE]


def _header(tree: Any, body: bytes = b"") -> bytes:  # noqa: ANN401
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + body


def _weights(world: World) -> Iterator[Case]:
    """Files of weights, with the card's SHA-256 taken out."""
    contents: dict[str, bytes] = {
        "empty": b"",
        "no header": struct.pack("<Q", 10**18),
        "an empty header": _header({}),
        "a header that is a list": _header([1]),
        "an unknown type": _header({"head.bias": {"dtype": "F128", "shape": [2], "data_offsets": [0, 32]}}, bytes(32)),
        "overlapping": _header(
            {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in ("head.bias", "head.weight")}, bytes(8)
        ),
        "a negative size": _header({"head.bias": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)),
        "sizes beyond": _header(
            {"head.bias": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}, bytes(8)
        ),
        "a pickle": b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
    }

    def spoiled(content: bytes) -> Spoil:
        def spoil(folder: Path) -> None:
            card = folder / "config.json"
            card.write_text(json.dumps({**json.loads(card.read_text()), "sha256": {}}))
            for file in folder.glob("*.safetensors"):
                file.write_bytes(content)

        return spoil

    for what, content in contents.items():
        yield _case(f"weights: {what}", world.policy, "", spoiled(content), _playing, {4})
        yield _case(f"weights: hub, {what}", world.hub, "", spoiled(content), _playing, {4})

    def numbers(value: float, dtype: str = "") -> Spoil:
        def spoil(folder: Path) -> None:
            from safetensors.torch import load_file, save_file

            file = folder / "model.safetensors"
            tensors = load_file(file)
            for name, tensor in tensors.items():
                tensors[name] = (tensor.double() if dtype == "double" else tensor.long() if dtype else tensor) + value
            save_file(tensors, file)
            card = folder / "config.json"
            card.write_text(json.dumps({**json.loads(card.read_text()), "sha256": {}}))

        return spoil

    for value in (float("nan"), float("inf"), 1e30):
        yield _case(f"weights: all {value}", world.policy, "", numbers(value), _playing, {0, 4, 5})
        yield _case(f"weights: export, all {value}", world.policy, "", numbers(value), _exporting, {0, 4, 5, 6})
    yield _case("weights: doubles", world.policy, "", numbers(0, "double"), _playing, {0, 4})
    yield _case("weights: integers", world.policy, "", numbers(0, "long"), _playing, {0, 4})


def _runs(world: World) -> Iterator[Case]:
    """What `train --resume` finds."""

    def resumed(path: str) -> list[str]:
        return ["train", "--register", MODULE, "--env-id", "Good-v0", "--source", str(world.data), "--out", path,
                "--target-return", "4", *TINY, "--resume"]  # fmt: skip

    run = "tiny/decision-aaren/seed0"
    configs = {
        "empty": "", "a list": "- 1", "a text": "agent", "tabs": "\tagent: x", "an alias": "agent: &a [*a]",
        "an object": "agent: !!python/object/apply:os.system ['true']", "no agent": "seed: 0",
        "seed of text": "agent: decision-aaren\nseed: x", "unknown section": "agent: decision-aaren\nseed: 0\nx: {}",
        "a section of text": "agent: decision-aaren\nseed: 0\ndata: x", "deep": "{" * 5000, "binary": "\x00\x01",
        "numbers": "agent: decision-aaren\nseed: 0\noptimizer: {updates: .nan}", "two documents": "a: 1\n---\nb: 2",
        "a date": "agent: decision-aaren\nseed: 2020-01-01", "a set": "agent: !!set {a}\nseed: 0",
        "a huge seed": f"agent: decision-aaren\nseed: {10**40}", "keys": "? [a, b]\n: 1",
        "laughs": "a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nagent: *c\nseed: *c",
    }  # fmt: skip
    root = world.run.parents[2]
    for what, text in configs.items():
        yield _case(f"config: {what}", root, f"{run}/config.yaml", lambda p, t=text: p.write_text(t), resumed, {2, 4})
    spoils: dict[str, tuple[str, Spoil]] = {
        "metrics that are none": ("metrics.jsonl", lambda p: p.write_text("{]\n\x00")),
        "a folder for metrics": ("metrics.jsonl", lambda p: (p.unlink(), p.mkdir())),
        "a checkpoint": ("checkpoints/00000002.pt", lambda p: p.write_bytes(b"PK\x03\x04")),
        "a checkpoint that is a folder": ("checkpoints/00000009.pt", lambda p: p.mkdir()),
        "a checkpoint beyond": ("checkpoints/99999999999999", lambda p: p.mkdir()),
        "a file for the checkpoints": ("checkpoints", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
        "a folder for the config": ("config.yaml", lambda p: (p.unlink(), p.mkdir())),
        "a folder for the lock": (".lock", lambda p: (p.unlink(missing_ok=True), p.mkdir())),
        "a file for the policy": ("policy", lambda p: (p.rename(p.with_name("old")), p.write_text("x"))),
    }
    for what, (place, spoil) in spoils.items():
        yield _case(f"run: {what}", root, f"{run}/{place}", spoil, resumed, {0, 2, 3, 4, 7})


def _onnx(world: World) -> Iterator[Case]:
    """Files for the runtime."""

    def edited(change: Callable[[Any], object]) -> Spoil:
        def spoil(path: Path) -> None:
            import onnx

            model = onnx.load(path)
            change(model)
            path.write_bytes(model.SerializeToString())

        return spoil

    def described(key: str, value: str) -> Callable[[Any], object]:
        def change(model: Any) -> None:  # noqa: ANN401
            (entry,) = (entry for entry in model.metadata_props if entry.key == key)
            entry.value = value

        return change

    def carded(**changes: Any) -> Callable[[Any], object]:  # noqa: ANN401
        def change(model: Any) -> None:  # noqa: ANN401
            (entry,) = (entry for entry in model.metadata_props if entry.key == "policy")
            entry.value = json.dumps({**json.loads(entry.value), **changes})

        return change

    def renamed(model: Any) -> None:  # noqa: ANN401
        model.graph.input[0].name = "x"

    spoils: dict[str, Spoil] = {
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-500]),
        "its begin": lambda path: path.write_bytes(path.read_bytes()[:50]),
        "bytes changed": lambda path: path.write_bytes(path.read_bytes().replace(b"Add", b"Bdd")),
        "text": lambda path: path.write_text("onnx"),
        "no description": edited(lambda model: model.ClearField("metadata_props")),
        "another format": edited(described("aaren_rl_format", "99")),
        "a card that is none": edited(described("policy", "{")),
        "a card that is a list": edited(described("policy", "[]")),
        "a deep card": edited(described("policy", "[" * 100_000)),
        "an export that is none": edited(described("export", "null")),
        "an export without precision": edited(described("export", "{}")),
        "another input": edited(renamed),
        "no output": edited(lambda model: model.graph.output.pop()),
        "no nodes": edited(lambda model: model.graph.ClearField("node")),
        "an operator set of the future": edited(lambda model: setattr(model.opset_import[0], "version", 999)),
        "an unknown operator": edited(lambda model: setattr(model.graph.node[0], "op_type", "Magic")),
        "a loop": edited(lambda model: model.graph.node[0].input.append(model.graph.node[-1].output[0])),
        "no return scale": edited(carded(return_scale=None)),
        "a return scale of text": edited(carded(return_scale="x")),
        "a return scale of 0": edited(carded(return_scale=0)),
        "a model of text": edited(carded(model="x")),
        "no model": edited(carded(model={})),
        "a rollout of numbers": edited(carded(rollout=5)),
        "weights elsewhere": edited(lambda model: _outside(model)),
        "an environment to import": edited(carded(env_id="os:path")),
    }
    for what, spoil in spoils.items():
        yield _case(f"onnx: {what}", world.onnx, "", spoil, _playing, {2, 4, 5})


def _outside(model: Any) -> None:  # noqa: ANN401
    """Weights that are said to be in another file."""
    import onnx

    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def _grids(world: World) -> Iterator[Case]:
    """YAML files of `sweep`."""
    good = "preset: default\nenvs: [tiny]\nagents: [decision-aaren]\nseeds: [0]\n"
    texts = {
        "empty": "", "a text": "paper", "a number": "5", "null": "null", "a list": "[1, 2]", "no envs": "preset: default",
        "envs of numbers": good.replace("[tiny]", "[1]"), "envs a text": good.replace("[tiny]", "tiny"),
        "no env": good.replace("[tiny]", "[]"), "no agent": good.replace("[decision-aaren]", "[]"),
        "no seed": good.replace("[0]", "[]"), "a seed of text": good.replace("[0]", "[a]"),
        "a seed below": good.replace("[0]", "[-1]"), "a seed of NaN": good.replace("[0]", "[.nan]"),
        "a huge seed": good.replace("[0]", f"[{10**30}]"), "a boolean seed": good.replace("[0]", "[true]"),
        "an env above": good.replace("[tiny]", "['../../tmp/x']"), "an env of dots": good.replace("[tiny]", "['..']"),
        "an empty env": good.replace("[tiny]", "['']"), "an absolute env": good.replace("[tiny]", f"['{world.root.parent / 'elsewhere'}']"),
        "unknown agent": good.replace("decision-aaren", "magic"), "unknown key": good + "more: 1",
        "unknown setting": good + "settings: {magic: 1}", "settings a list": good + "settings: [1]",
        "a setting of lists": good + "settings: {updates: [1, 2]}", "a setting of null": good + "settings: {updates: null}",
        "a setting of maps": good + "settings: {width: {a: 1}}", "a setting out of range": good + "settings: {updates: -5}",
        "a setting of NaN": good + "settings: {learning_rate: .nan}", "data of another": good + "data: {other: {}}",
        "data a list": good + "data: [1]", "an object": "!!python/object/apply:os.system ['true']",
        "an alias": "preset: &a [*a]", "deep": "[" * 5000, "tabs": "\t- x", "two documents": good + "---\n" + good,
        "keys twice": good + "preset: other", "a key of lists": "? [1, 2]\n: x", "not UTF-8": "preset: d\udcff",
        "a preset above": good.replace("default", "../default"), "a date": good.replace("[0]", "[2020-01-01]"),
        "a missing file": good + "data: {tiny: {env_id: Good-v0, source: nothing.hdf5}}",
    }  # fmt: skip
    for what, text in texts.items():

        def call(text: str = text) -> int:
            Path("grid.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
            given = ["grid.yaml", "--jobs", "1", "--register", MODULE]
            return command("sweep", [*given, "--", *TINY]).call()

        # A run of its own, of a process of its own, is what fails there.
        yield Case(f"grid: {what}", call, frozenset({2, 3, 4, 5, 7} | ({1} if what == "a missing file" else set())))


def _json(world: World) -> Iterator[Case]:
    """Scores and statistics."""
    scores = [
        "",
        "[]",
        "{}",
        "null",
        "[1]",
        "[{}]",
        '["a"]',
        "[" * 100_000,
        '[{"return_mean": "x"}]',
        "[NaN]",
        "\ufeff[]",
    ]
    for i, text in enumerate(scores):

        def call(text: str = text) -> int:
            Path("scores.json").write_text(text)
            return command("hub", [str(world.run), "out", "--register", MODULE, "--scores", "scores.json"]).call()

        yield Case(f"scores: {i} {text[:20]!a}", call, frozenset({2, 3, 4}))
    for i, text in enumerate(
        ('{"mean": 1, "std": 2}', '{"mean": [1], "std": [NaN]}', '{"mean": {}, "std": []}', "[" * 9999)
    ):

        def read(text: str = text) -> int:
            Path("s.json").write_text(text)
            return command("import-weights", [str(world.data), "out", "--statistics", "s.json"]).call()

        yield Case(f"statistics: {i} {text[:20]!a}", read, frozenset({2, 4}))
