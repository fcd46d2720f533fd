"""The benchmarks of scan and training: what they give, and that they give nothing for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aaren_rl.agents.kernels import scan_numba as cpu
from aaren_rl.bench import command as bench
from aaren_rl.bench import harness
from aaren_rl.bench import peers as bench_peers
from aaren_rl.bench import scan as bench_scan
from aaren_rl.bench import train as bench_train
from aaren_rl.train.acceleration import MIN_TORCH_TO_COMPILE
from aaren_rl.train.contexts.batches import Batch

SCAN = "scan --lengths 20 40 --methods numba blocked attention --batch 1 --heads 2 --dim 4 --repeats 2".split()
TRAIN = "train --sizes 16x1 --heads 2 --batch 8 --repeats 1 --device cpu".split()

PEERS = bench_peers.PEERS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_train, "PEAK_SIZE", 64)
    monkeypatch.setattr(harness, "FEWEST", 1)
    monkeypatch.setattr(bench_train, "STEPS", 3000)
    monkeypatch.setattr(bench_scan, "CHECKED_LENGTH", 100)
    monkeypatch.setattr(bench_peers, "PEERS", {})


def measured(arguments: list[str], folder: Path) -> dict[str, object]:
    files = {"json": folder / "figures.json", "plot": folder / "figures.png"}
    assert bench.main([*arguments, *(word for name, file in files.items() for word in (f"--{name}", str(file)))]) == 0
    assert files["plot"].read_bytes().startswith(b"\x89PNG")
    return json.loads(files["json"].read_text())


def test_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(SCAN, tmp_path)
    rows = [(t["length"], t["method"]) for t in result["timings"]]
    assert rows == [(n, m) for n in (20, 40) for m in ("copy", "numba", "blocked", "attention")]
    for timing in result["timings"]:
        assert timing["forward_ms"] > 0 and timing["forward_copies"] > 0
        assert (timing["both_ms"] is None) == (timing["method"] == "copy")
        assert (timing["bandwidth_share"] is None) == (timing["method"] == "attention")
    assert set(result["checked_difference"]) == {"numba", "blocked"} and result["bandwidth"] > 0
    assert "1 x 2 heads of 4 channels" in capsys.readouterr().out


@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_a_wrong_scan_gets_no_figures(
    kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(cpu, kernel)
    monkeypatch.setattr(cpu, kernel, lambda *tensors: (right(*tensors)[0] + 2e-4, *right(*tensors)[1:]))
    assert bench.main([*SCAN, "--json", str(tmp_path / "scan.json")]) == 6
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "scan.json").exists()
    assert err.startswith("error: the scan by numba differs from the float64 reference by") and err.count("\n") == 1


def test_train_without_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_peers, "PEERS", PEERS)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torchrl.modules", None)
    result = measured(TRAIN, tmp_path)
    (size,) = result["sizes"]
    names = [update["name"] for update in size["updates"]]
    agents = [
        "decision-aaren, window",
        "decision-aaren, episode",
        "decision-aaren, mixed",
        "decision-transformer, window",
    ]
    assert names[:4] == agents and set(names) == set(agents)
    for update in size["updates"]:
        assert update["milliseconds"] > 0 and update["gflop"] > 0 and update["peak_share"] > 0 and update["steps"] > 0
    assert size["updates"][0]["ratio"] == 1 and size["fastest_peer_ratio"] is None
    checked = size["checked_difference"]
    assert checked.keys() == {update["precision"] for update in size["updates"]} and 0 < checked["float32"] < 1e-4
    assert checked.get("bfloat16", 0) < 5e-2
    out = capsys.readouterr().out
    assert out.count("is left out") == 2 and out.count("pip install 'aaren-rl[bench]'") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's tracing uses what torch deprecates
@pytest.mark.skipif(torch.__version__ < MIN_TORCH_TO_COMPILE, reason="torch is too old for --compile")
def test_train_compiled_beside_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    make = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: make(model, backend="aot_eager"))
    (size,) = measured([*TRAIN, "--compile"], tmp_path)["sizes"]
    updates = {update["name"]: update for update in size["updates"]}
    for agent in ("decision-aaren, window", "decision-transformer, window"):
        compiled = updates[f"{agent}, compiled"]
        assert compiled["gflop"] == updates[agent]["gflop"] and compiled["milliseconds"] > 0


def linear_peer(real: int) -> bench_train.Measured:
    """Updates of one layer on 8 steps, of which `real` are no padding."""
    layer = torch.nn.Linear(11, 3)
    x, mask = torch.randn(1, 8, 14), torch.arange(8).unsqueeze(0) < real
    batch = Batch(x[..., :11], x[..., 11:], x[..., 0], mask.long(), mask, None)
    predict = lambda given: layer(given.observations)  # noqa: E731
    return bench_train.Measured(bench_peers.make_update(layer, predict, [batch], bfloat16=False, device=harness.CPU))


def test_operations_are_those_of_all_steps_and_ratios_those_of_real_ones() -> None:
    works = {("whole", "float32"): linear_peer(8), ("padded", "float32"): linear_peer(4)}
    harness.in_turns(works, repeats=3, device=harness.CPU, untimed=bench_train.UNTIMED)
    times, peaks = {pair: [1.0, 2.0, 3.0] for pair in works}, {"float32": [3e3, 1e3, 1e3]}
    whole, padded = bench_train.tabulate(times, peaks, works, ("whole", "float32"))
    # A product a weight and step forward, and one backward: the input needs no gradient.
    product = 8 * 2 * (2 * 11 * 3)
    for update, steps, ratio in ((whole, 8, 1), (padded, 4, 2)):
        assert (update["steps"], update["ratio"], update["milliseconds"]) == (steps, ratio, 2000)
        assert update["gflop"] == pytest.approx(product / 1e9)
        assert update["peak_share"] == pytest.approx(product / 3 / 1e3)


@pytest.mark.parametrize(("precision", "factor"), [("float32", 1.001), ("bfloat16", 1.2)])
def test_a_wrong_gradient_gets_no_figures(
    precision: str, factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_train, "uses_bfloat16", lambda *_: precision == "bfloat16")  # where it is emulated, too
    right = cpu.backward

    def wrong(*tensors: Tensor) -> tuple[Tensor, ...]:
        scores, values, *state = right(*tensors)
        return scores, values * factor if values.dtype == getattr(torch, precision) else values, *state

    monkeypatch.setattr(cpu, "backward", wrong)
    assert bench.main(TRAIN) == 6
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: gradients in {precision} differ from the float64 reference by")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SCAN, "--plot", "x.doc"], "--plot x.doc: cannot draw a doc; use .png, .svg or .pdf"),
        ([*SCAN, "--plot", "/nowhere/x.png"], "--plot /nowhere/x.png: its folder does not exist; make it first"),
        ([*TRAIN, "--sizes", "128"], "--sizes 128: not WIDTHxLAYERS, for example 128x3"),
        ([*TRAIN, "--heads", "3"], "configuration: width 16 is not a multiple of heads 3"),
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(arguments) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_works_take_turns_and_slow_ones_drop_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "FEWEST", 2)
    monkeypatch.setattr(harness, "BUDGET", 10)
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    monkeypatch.setattr(harness, "seconds", lambda work, device: (work(), {"a": 1.0, "b": 9.0}[calls[-1]])[1])
    times = harness.in_turns(works, repeats=4, device=harness.CPU)
    assert "".join(calls) == "ab" + "abba" + "aa" and times == {"a": [1.0] * 4, "b": [9.0] * 2}
    assert harness.ratio(times["b"], times["a"]) == 9
