"""Numbers, names and paths that a command line may give; all that is written lands in the folder of the case."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .world import MODULE, TINY, Case, World, command

NUMBERS = ("nan", "-inf", "1e400", "-1", "", " ", "1,5", "0x10", "1e3x", "--", "½", "None", "1" * 5000)
INTEGERS = ("1.5", "1e3", "99999999999999999999999", "-0x1", "²", "true", "[]")
NAMES = ("", " ", "hopper medium", "höpper-médium", "../hopper-medium", "hopper-medium/", "\u202ehopper", "h\nopper")
ODD_NAMES = ("-", "~", "a" * 5000, "\x1b[2J", "🤖", "hopper-medium;rm", "%s%n", "{env}")


# What is made in a path's place; three kinds name another one.
PATHS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty file": Path.touch,
    "folder": Path.mkdir,
    "binary": lambda path: path.write_bytes(os.urandom(3000)),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to("odd"),
    "pipe": os.mkfifo,
    "below a file": Path.touch,
    "zeros without end": lambda path: None,
    "not readable": lambda path: None,
}


BELOW_0 = (
    "--target-return",
    "--target-returns",
    "--ref-min-score",
    "--ref-max-score",
    "--stop-at-return",
    "--rem-gate",
)


def _numbers(name: str, base: list[str], floats: str, integers: str) -> Iterator[Case]:
    """A few values for every option, other ones for each, so that all values and all options are there."""
    options = [(option, NUMBERS) for option in floats.split()]
    options += [(option, NUMBERS + INTEGERS) for option in integers.split()]
    for i, (option, values) in enumerate(options):
        for j in range(3):
            value = values[(3 * i + j * 7) % len(values)]
            if value == "-1" and option in BELOW_0:
                value = "1e16"
            yield command(name, [*base, f"{option}={value}"], 2, what=f"{option}={value[:30]!r}")


def cases(world: World) -> Iterator[Case]:
    """All of them."""
    run, data = str(world.run), str(world.data)
    own = ["--env-id", "Good-v0", "--register", MODULE, "--source", data, *TINY]
    train = [*own, "--target-return", "4", "--out", "runs"]
    yield from _numbers(
        "train",
        train,
        "--learning-rate --weight-decay --clip-norm --dropout --held-out --best-fraction --return-scale --average-decay "
        "--ref-min-score --timestep-std --rem-gate --tree-budget",
        "--updates --seed --width --layers --heads --eval-every --steps-per-update --context-length --rollout-context "
        "--warmup-updates --eval-seed --rem-dilation --threads --max-episode-steps",
    )
    yield from _numbers("evaluate", [run], "--target-return --budget --guidance", "--episodes --seed --rollout-context")
    yield from _numbers(
        "compare", own[:6], "--target-returns --ref-max-score --gpus-per-run", "--seeds --jobs --episodes"
    )
    yield from _numbers("collect", ["--env", "Good-v0"], "--stop-at-return --updates-per-step", "--steps --envs --seed")
    yield from _numbers("export", [run, "--out", "x.onnx"], "", "--episodes --seed --rollout-context")
    yield from _numbers("hub", [run, "hub"], "--target-return", "--episodes --seed")
    yield from _numbers("import-weights", [data, "p"], "--return-scale --target-return", "--heads --context")
    yield from _numbers("bench", ["rollout"], "", "--steps --threads --width")
    yield from _numbers("bench", ["vector"], "", "--envs --layers")
    yield from _numbers("sweep", ["paper"], "--gpus-per-run", "--jobs")
    yield from _names(world, own)
    yield from _together(world, train)
    yield from _paths(world)


def _names(world: World, own: list[str]) -> Iterator[Case]:
    data = str(world.data)
    for name in (*NAMES, *ODD_NAMES):
        yield command(
            "train", ["--env", name, *own, "--target-return", "4", "--out", "r"], 2, what=f"--env {name[:20]!r}"
        )
    for name in NAMES[2:6] + ODD_NAMES[:6]:
        yield command("datasets", ["info", name], 2, 3, 7, what=f"info {name[:20]!r}")
        yield command("train", ["--env", "hopper-medium", "--source", name], 2, 3, 7, what=f"--source {name[:20]!r}")
    for name in (
        "minari:",
        "minari:x",
        "minari:../../x-v0",
        "minari:a/b-v99",
        "minari:" + "x" * 300 + "-v0",
        "minari:é-v0",
    ):
        yield command("datasets", ["info", name], 2, 3, 7, what=f"info {name[:30]!r}")
        codes = (0, 2, 3, 5, 7) if name.startswith("minari:a") else (2, 3, 5, 7)  # a fine name to write to
        given = ["convert", data, name, "--env-id", "Good-v0"]
        yield command("datasets", given, *codes, what=f"convert {name[:30]!r}")
    for module in ("", ".", "..", "os.path.nothing", "a b", "1", "énv", "json.decoder.", "antigravity1", "-m"):
        given = [str(world.run), f"--register={module}"]
        yield command("evaluate", given, 2, what=f"--register {module!r}")
    for device in ("", "cuda:99", "mps", "cpu:-1", "meta", "cuda:x", "gpu", "xla"):
        yield command("evaluate", [str(world.run), f"--device={device}"], 2, what=f"--device {device!r}")
    for option in ("--rollout", "--weights", "--attention", "--sampler"):
        yield command("evaluate", [str(world.run), f"{option}=Nothing"], 2)
    for option in ("--agent", "--preset", "--context", "--rollout", "--optimizer", "--schedule", "--precision"):
        yield command("train", ["--env", "hopper-medium", f"{option}=../default"], 2)


def _together(world: World, train: list[str]) -> Iterator[Case]:
    """Settings of which each may be."""
    for more in (
        "--width 7 --heads 2",
        "--heads 3 --width 8",
        "--rem-counts 1,2,3 --agent decision-rsa",
        "--rem-counts 9,0,0,0,0,0 --agent decision-rsa",
        "--rem-gate 4 --agent decision-rsa",
        "--rem-dilation 1 --agent decision-aaren-rsa",
        "--tree-budget 2 --agent decision-transformer-tree",
        "--tree-sampler none --agent decision-transformer-tree",
        "--ref-min-score 5",
        "--ref-min-score 5 --ref-max-score 5",
        "--ref-min-score 5 --ref-max-score 1",
        "--source nothing.hdf5",
        "--best-fraction 1e-30 --held-out 0.5 --max-episode-steps 0",
        "--resume",
        "--width 1000000 --layers 1000",
        "--steps-per-update 9007199254740992",
        "--layers 9007199254740992",
        "--width 9007199254740992",
        "--context episode --steps-per-update 1000000000000",
        "--learning-rate 1e30 --updates 30 --precision float32",
        "--context-length 9007199254740992",
        "--rollout window --rollout-context 9007199254740992",
        "--env-id",
        "--register nobody_has_this",
        "--seed 3 --seed x",
        "--optimizer",
        "--no-such",
        "positional",
    ):
        yield command("train", [*train, *more.split()], what=more)
    run = str(world.run)
    for more in (
        "--attention tree",
        "--budget 0.5",
        "--sampler edh",
        "--target-return 1 two",
        "--json x.json --episodes 0",
        "--video x.avi",
        "--video missing/x.gif --json missing/x.json",
        "--held-out missing.hdf5",
        "--record-minari nothing",
        "--record-minari ../x-v0",
        "--rollout window --rollout-context 9007199254740992",
        "--rollout rolling --rollout-context 1",
        "--env-id CartPole-v1",
        "--env-id Hopper-v4",
        "--env-id gymnasium:Hopper-v4",
        "--env-id Pendulum-v1",
    ):
        yield command("evaluate", [run, "--register", MODULE, *more.split()], what=more)
    for more in (
        "--seeds 1 --updates 0",
        "--agents nobody",
        "--source a.hdf5 b.hdf5",
        "--env a --source a b --env-id Good-v0",
    ):
        yield command("compare", ["--out", "c", *more.split()], what=more)
    for more in (
        "",
        "nothing",
        "rollout --modes x:y",
        "rollout --steps 3",
        "scan --lengths 0",
        "scan --lengths x",
        "tree missing",
        "steering missing",
        "runtime --sizes 1",
        "runtime --sizes 0x0",
        "learning --plot x.xyz",
        "data --steps 1",
        "vector --modes a",
        "vector --width 7 --heads 2",
        "rollout --plot missing/x.png",
        "rollout --json /",
        "train --threads 0",
        "evaluate --episodes 0",
    ):
        yield command("bench", more.split(), what=more or "no benchmark")  # fmt: skip


def _paths(world: World) -> Iterator[Case]:
    """What stands where a file or a folder is asked for."""

    places: dict[str, Callable[[str], tuple[str, list[str]]]] = {
        "evaluate": lambda path: ("evaluate", [path]),
        "held-out": lambda path: ("evaluate", [str(world.run), "--register", MODULE, "--held-out", path]),
        "export": lambda path: ("export", [path, "--out", "x.onnx"]),
        "hub": lambda path: ("hub", [path, "out"]),
        "scores": lambda path: ("hub", [str(world.run), "out", "--register", MODULE, "--scores", path]),
        "import": lambda path: ("import-weights", [path, "out"]),
        "statistics": lambda path: ("import-weights", [path, "out", "--statistics", path]),
        "sweep": lambda path: ("sweep", [path]),
        "info": lambda path: ("datasets", ["info", path]),
        "convert": lambda path: ("datasets", ["convert", path, "x.hdf5"]),
        "source": lambda path: ("train", ["--env", "hopper-medium", "--source", path, *TINY]),
        "steering": lambda path: ("bench", ["steering", path]),
    }
    for place, argv in places.items():
        for kind in PATHS:
            yield Case(f"path: {place}, {kind}", _at(argv, kind))
    out: dict[str, Callable[[str], tuple[str, list[str]]]] = {
        "export --out": lambda path: ("export", [str(world.run), "--register", MODULE, "--out", path, "--force"]),
        "hub FOLDER": lambda path: ("hub", [str(world.run), path, "--register", MODULE, "--episodes", "1"]),
        "train --out": lambda path: ("train", ["--env", "hopper-medium", "--source", str(world.data), "--out", path]),
        "evaluate --json": lambda path: ("evaluate", [str(world.run), "--register", MODULE, "--json", path]),
        "info --picture": lambda path: ("datasets", ["info", str(world.data), "--picture", path]),
        "convert to": lambda path: ("datasets", ["convert", str(world.data), path]),
    }
    for place, argv in out.items():
        # Never a device of the machine's: what is written takes the place of what is there.
        for kind in ("below a file", "pipe"):
            yield Case(f"path: {place}, {kind}", _at(argv, kind))
        codes = frozenset({0, *range(2, 8)})  # the link itself may be replaced
        yield Case(f"path: {place}, link to itself", _at(argv, "link to itself"), codes)


def _at(argv: Callable[[str], tuple[str, list[str]]], kind: str) -> Callable[[], int]:
    def call() -> int:
        path = Path.cwd() / "odd"
        PATHS[kind](path)
        shown = {"below a file": str(path / "x"), "zeros without end": "/dev/zero", "not readable": "/proc/self/mem"}
        name, arguments = argv(shown.get(kind, str(path)))
        return command(name, arguments).call()

    return call
