"""The benchmarks of acting, training and the scan: their figures, and that they give none for what is wrong."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import peers
from benchmarks import rollout as bench_rollout
from benchmarks import scan as bench_scan
from benchmarks import train as bench_train
from benchmarks.command import main
from benchmarks.machine import torch_threads
from torch import Tensor

from aaren_rl.agents import Attention
from aaren_rl.agents.kernels import scan_numba as cpu
from aaren_rl.agents.policy.compiled import CompiledStep
from aaren_rl.base.errors import NumericsError

pytestmark = pytest.mark.slow

ROLLOUT = "rollout --steps 300 --width 16 --layers 1 --heads 2".split()
SCAN = "scan --lengths 20 40 --methods numba blocked attention --batch 1 --heads 2 --dim 4 --repeats 2".split()
TRAIN = "train --sizes 16x1 --heads 2 --batch 8 --repeats 1 --device cpu".split()

PEERS = peers.PEERS


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    for name, value in (("BLOCK", 20), ("REPEATS", 3), ("CACHED", 150)):
        monkeypatch.setattr(bench_rollout, name, value)
    monkeypatch.setattr(bench_train, "PEAK_SIZE", 64)
    monkeypatch.setattr(bench_train, "STEPS", 3000)
    monkeypatch.setattr(bench_scan, "CHECKED_LENGTH", 100)
    monkeypatch.setattr(peers, "PEERS", {})


def measured(arguments: list[str], folder: Path) -> dict[str, object]:
    files = {"json": folder / "figures.json", "plot": folder / "figures.png"}
    assert main([*arguments, *(word for name, file in files.items() for word in (f"--{name}", str(file)))]) == 0
    assert files["plot"].read_bytes().startswith(b"\x89PNG")
    return json.loads(files["json"].read_text())


def gives_no_figures(arguments: list[str], error: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json", str(folder / "figures.json")]) == 6
    out, err = capsys.readouterr()
    assert out == "" and not (folder / "figures.json").exists()
    assert err.startswith(f"error: {error} the float64 reference by") and err.count("\n") == 1


def test_table_json_and_plot(tmp_path, capsys):
    files = tmp_path / "rollout.json", tmp_path / "rollout.svg"
    with torch_threads(2):
        assert main([*ROLLOUT, "--json", str(files[0]), "--plot", str(files[1])]) == 0
        assert torch.get_num_threads() == 2
    result = json.loads(files[0].read_text())
    assert [mode["name"] for mode in result["modes"]] == list(bench_rollout.MODES)
    for mode in result["modes"]:
        cache = mode["name"] == "decision-transformer:recurrent"
        assert [cost["step"] for cost in mode["costs"]] == ([10, 100, 150] if cache else [10, 100, 150, 300])
        assert all(0 < cost["fastest_microseconds"] <= cost["microseconds"] for cost in mode["costs"])
        assert mode["costs"][0]["ratio"] == 1 and 0 <= mode["checked_difference"] <= 1e-5
    out, drawn = capsys.readouterr().out, files[1].read_text()
    assert f"torch {torch.__version__}, 1 threads" in out and "of the time of decision-transformer:window" in out
    assert "since the first action:" in out and "time since the first action" in drawn  # the paper's figure 5
    growths = {mode["name"]: mode["growth"] for mode in result["modes"]}
    assert growths["decision-aaren:recurrent"]["state_bytes_exponent"] == 0
    assert growths["decision-transformer:recurrent"]["state_bytes_exponent"] == pytest.approx(1, abs=0.02)
    sizes = {mode["name"]: [cost["state_bytes"] for cost in mode["costs"]] for mode in result["modes"]}
    rest = 8 + 3 * 4  # return-to-go in float64; the last action, 3 numbers, in float32
    state = 8 * (2 + 2 + 16)  # m and u of 2 heads, w of 16 channels, in float64
    assert sizes["decision-aaren:recurrent"] == [state + rest] * 4
    assert sizes["decision-aaren:staggered"][1:] == [2 * state + rest] * 3
    # Keys and values of 16 channels in float32, three tokens a step, less the action that is not known yet.
    assert sizes["decision-transformer:recurrent"] == [2 * 16 * 4 * (3 * t - 1) + rest for t in (10, 100, 150)]
    # 20 steps of an observation, an action and a return-to-go in float32, and a timestep in int64.
    assert sizes["decision-transformer:window"] == [20 * (4 * (11 + 3 + 1) + 8) + rest] * 4


OFF = [
    (ROLLOUT, "actions differ from", CompiledStep, "step", np.float32(2e-5)),
    *((SCAN, "the scan by numba differs from", cpu, kernel, 2e-4) for kernel in ("forward", "backward")),
]


@pytest.mark.parametrize(("arguments", "error", "owner", "name", "by"), OFF)
def test_what_is_a_little_off_gets_no_figures(arguments, error, owner, name, by, monkeypatch, tmp_path, capsys):
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: (right(*given)[0] + by, *right(*given)[1:]))
    gives_no_figures(arguments, error, tmp_path, capsys)


def test_a_cache_that_forgets_gets_no_figures(monkeypatch, tmp_path, capsys):
    forward = Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda mixer, x, state=None, **more: forward(mixer, x, None, **more))
    gives_no_figures(ROLLOUT, "actions differ from", tmp_path, capsys)


def test_scan(tmp_path):
    result = measured(SCAN, tmp_path)
    rows = [(t["length"], t["method"]) for t in result["timings"]]
    assert rows == [(n, m) for n in (20, 40) for m in ("copy", "numba", "blocked", "attention")]
    for timing in result["timings"]:
        assert timing["forward_ms"] > 0 and (timing["both_ms"] is None) == (timing["method"] == "copy")
    assert set(result["checked_difference"]) == {"numba", "blocked"}


def linear(*_: object) -> tuple[torch.nn.Module, peers.Predict]:
    """A peer of one layer."""
    layer = torch.nn.Linear(11, 3)
    return layer, lambda batch: layer(batch.observations)


def test_train(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "PEERS", {**PEERS, "linear": linear})
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torchrl.modules", None)
    (size,) = measured(TRAIN, tmp_path)["sizes"]
    agents = ["aaren, window", "aaren, episode", "aaren, mixed", "transformer, window"]
    names = [update["name"] for update in size["updates"]]
    assert names[:4] == [f"decision-{name}" for name in agents] and set(names) == {*names[:4], "linear"}
    base, peaks = size["updates"][0], {peak["precision"]: peak["gflops"] for peak in size["peaks"]}
    for update in size["updates"]:
        assert 0 < update["steps"] <= 160 or "window" not in update["name"]
        a_step = update["milliseconds"] / update["steps"]
        assert update["ratio"] == pytest.approx(a_step / (base["milliseconds"] / base["steps"]))
        rate = update["gflop"] / update["milliseconds"] * 1e3
        assert rate > 0 and update["peak_share"] == pytest.approx(rate / peaks[update["precision"]])
    # A product a weight and step forward, and one backward: the input needs no gradient.
    assert size["updates"][-1]["gflop"] == pytest.approx(160 * 2 * (2 * 11 * 3) / 1e9)
    checked = size["checked_difference"]
    assert checked.keys() == {update["precision"] for update in size["updates"]} and 0 < checked["float32"] < 1e-4
    assert checked.get("bfloat16", 0) < 5e-2
    out = capsys.readouterr().out
    assert out.count("is left out") == 2 and out.count("pip install 'aaren-rl[bench]'") == 2


@pytest.mark.parametrize(("precision", "factor"), [("float32", 1.001), ("bfloat16", 1.2)])
def test_a_wrong_gradient_gets_no_figures(precision, factor, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_train, "uses_bfloat16", lambda *_: precision == "bfloat16")  # where it is emulated, too
    right = cpu.backward

    def wrong(*tensors: Tensor) -> tuple[Tensor, ...]:
        scores, values, *state = right(*tensors)
        return scores, values * factor if values.dtype == getattr(torch, precision) else values, *state

    monkeypatch.setattr(cpu, "backward", wrong)
    gives_no_figures(TRAIN, f"gradients in {precision} differ from", tmp_path, capsys)


def test_a_nan_is_no_agreement(monkeypatch):
    """Also where it is not the first that is compared."""
    monkeypatch.setattr(bench_scan, "_apply", lambda method, scores, values: values + scores.mean() * torch.nan)
    with pytest.raises(NumericsError, match="differs from the float64 reference"):
        bench_scan.check("blocked", torch.device("cpu"))
    fast, slow = (torch.nn.Linear(2, 2) for _ in range(2))
    for module, number in ((fast, torch.nan), (slow, 1.0)):
        module.weight.grad, module.bias.grad = torch.ones(2, 2), torch.full((2,), number)
    assert np.isnan(bench_train._largest_difference(fast, slow))
