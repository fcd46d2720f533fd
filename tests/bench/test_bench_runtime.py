"""The benchmark "runtime": what it shows, and that it shows nothing for an exported policy that is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aaren_rl.bench import command as bench
from aaren_rl.bench import runtime as bench_runtime

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SMALL = ["runtime", "--sizes", "16x1", "32x2", "--steps", "60"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("REPEATS", 2), ("BLOCK", 5), ("CHECKED_STEPS", 20), ("CHUNK", 25)):
        monkeypatch.setattr(bench_runtime, name, value)


def test_it_shows_every_size_and_the_long_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*SMALL, "--json", str(tmp_path / "runtime.json")]) == 0
    out = capsys.readouterr().out
    assert "16x1" in out and "32x2" in out and "60 steps of 16x1" in out
    figures = json.loads((tmp_path / "runtime.json").read_text())
    for size in figures["sizes"]:
        assert [cost["name"] for cost in size["costs"]] == ["compiled", "PyTorch", "float32", "int8"]
        differences = [cost["difference"] for cost in size["costs"]]
        assert differences[1] == 0 and 0 < differences[0] < 1e-5 and 0 < differences[2] < 1e-5 < differences[3]
        assert size["compiled_ratio"] > 0 and size["float32_ratio"] > 0 and size["int8_ratio"] > 0
    assert 0 < figures["long"]["difference"] < 1e-5 and figures["long"]["steps"] == 60


@pytest.mark.parametrize(
    ("limit", "message"), [("TOLERANCE", "compiled: the actions differ"), ("INT8_TOLERANCE", "int8")]
)
def test_a_wrong_result_is_not_fast(monkeypatch, capsys, limit: str, message: str) -> None:
    monkeypatch.setattr(bench_runtime, limit, 1e-12)
    assert bench.main(SMALL) == 6
    captured = capsys.readouterr()
    assert message in captured.err and "no figures" in captured.err and captured.out == ""


def test_a_drift_in_the_long_episode_is_noticed(monkeypatch, capsys) -> None:
    """The runner's memory loses a part in a hundred at every step from the 30th on."""
    play = bench_runtime._Player.play

    def leaking(self, steps: int):
        if self.step >= 30:
            self.state.memory[..., :-1] *= 0.99
        return play(self, steps)

    monkeypatch.setattr(bench_runtime, "CHECKED_STEPS", 5)
    monkeypatch.setattr(bench_runtime._Player, "play", leaking)
    monkeypatch.setattr(bench_runtime, "measure_size", lambda *_: None)
    assert bench.main(["runtime", "--sizes", "16x1", "--steps", "60"]) == 6
    assert "the actions differ from float64's" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["16", "x3", "17x2", "ax3", "16x0"])
def test_a_size_that_cannot_be(size: str, capsys) -> None:
    assert bench.main(["runtime", "--sizes", size]) == 2
    assert f"--sizes {size}" in capsys.readouterr().err


def test_without_onnx_the_extra_is_named(monkeypatch, capsys) -> None:
    for name in ("onnx", "aaren_rl.export.onnx_graph", "aaren_rl.export.onnx_nodes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert bench.main(["runtime"]) == 7
    assert "pip install 'aaren-rl[export]'" in capsys.readouterr().err
