"""The checks of code for GPUs on its first use, kernels interpreted by Triton, recordings called again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from aaren_rl.agents import DecisionModel, ModelConfig, kernels, prefix_scan
from aaren_rl.agents.fast.first_use import captured_difference
from aaren_rl.agents.kernels import first_use
from aaren_rl.agents.scan.first_use import scan_is_right

triton = pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_use, "_KNOWN", {})
    yield tmp_path


def verdicts(folder: Path) -> list[str]:
    return [json.loads(file.read_text())["verdict"] for file in folder.glob("aaren_rl-*.json")]


def spoil(monkeypatch: pytest.MonkeyPatch, name: str, place: int) -> None:
    """One result of the kernels, at one position, is wrong by a hundredth."""
    module = kernels.load("triton")
    right = getattr(module, name)

    def wrong(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = right(*arguments)
        results[place][..., 200, :5] += 0.05
        return results

    monkeypatch.setattr(module, name, wrong)


def test_a_right_kernel_is_used_and_checked_once(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_is_right(CPU) and verdicts(nothing_known) == ["right"]
    first_use._KNOWN.clear()
    spoil(monkeypatch, "forward", 0)  # what was found out is not looked at again
    assert scan_is_right(CPU)


@pytest.mark.parametrize(("name", "place"), [("forward", 0), ("backward", 1)])
def test_a_kernel_that_is_wrong_is_not_used(
    name: str, place: int, nothing_known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, name, place)
    monkeypatch.setattr(kernels, "choose", lambda values: "triton")
    scores, values = torch.randn(2, 300), torch.randn(2, 300, 8)
    with pytest.warns(RuntimeWarning, match=r"the scan's kernel cannot be used on cpu \(it differs from the plain .*"):
        outputs, _ = prefix_scan(scores, values)
    assert torch.equal(outputs, prefix_scan(scores, values, method="blocked")[0])
    (verdict,) = verdicts(nothing_known)
    assert "differs from the plain formula by" in verdict
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        prefix_scan(scores, values)


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: torch.Tensor) -> None:
        raise RuntimeError("ptxas: no such target\nand more")

    monkeypatch.setattr(kernels.load("triton"), "forward", fails)
    with pytest.warns(
        RuntimeWarning, match=r"cannot be used on cpu \(RuntimeError: ptxas: no such target\): the scan runs"
    ):
        assert not scan_is_right(CPU)


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert first_use.is_right("it", CPU, lambda _: 0.0, "")


def stale(function: Callable[[], None]) -> Callable[[], None]:
    """A graph that replays what it saw when it was recorded."""
    function()
    return lambda: None


def test_a_recording_is_held_against_the_formula() -> None:
    again = captured_difference(CPU, lambda function: function)
    assert 0 < again < 1e-4
    assert captured_difference(CPU, stale) > 0.1


def test_the_check_leaves_torchs_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    DecisionModel(ModelConfig(3, 2))
    assert not torch.equal(torch.get_rng_state(), state)  # which a model's weights are drawn by
    torch.set_rng_state(state)
    captured_difference(CPU, lambda function: function)
    scan_is_right(CPU)
    assert torch.equal(torch.get_rng_state(), state)
