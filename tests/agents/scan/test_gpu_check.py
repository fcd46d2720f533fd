"""The check of what GPUs alone do on its first use; kernels interpreted by Triton, recordings called again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import interpreter
import pytest
import torch
from torch import Tensor

from aaren_rl.agents import kernels, prefix_scan
from aaren_rl.agents.scan import gpu_check

triton = pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
interpreter.prepare()
Run = Callable[[], list[Tensor]]


def again(function: Run) -> Run:
    return function


def stale(function: Run) -> Run:
    """A graph that replays what it saw when it was recorded."""
    found = function()
    return lambda: found


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu_check, "difference", partial(gpu_check.difference, record=again))
    monkeypatch.setattr(kernels, "choose", lambda scores, values: "triton")
    gpu_check.gpu_is_right.cache_clear()
    yield
    gpu_check.gpu_is_right.cache_clear()


def test_a_right_kernel_is_used_and_leaves_torchs_random_numbers_alone() -> None:
    state, inputs = torch.get_rng_state(), (torch.zeros(2, 300), torch.zeros(2, 300, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(gpu_check.choose_method(*inputs, decays=decays) == "triton" for decays in (False, True))
    assert torch.equal(torch.get_rng_state(), state)  # which a model's weights are drawn by


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("forward", 0, "it differs from the plain .* by"),
        ("backward", 1, "it differs from the plain .* by"),
        ("forward", None, r"RuntimeError: ptxas: no such target\): the scan runs"),
    ],
)
def test_a_kernel_that_is_wrong_or_does_not_compile_is_not_used(
    name: str, place: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong by a hundredth, in one result at one position."""
    module = kernels.load("triton")
    right = getattr(module, name)

    def wrong(*arguments: Tensor) -> tuple[Tensor, ...]:
        if place is None:
            raise RuntimeError("ptxas: no such target\nand more")
        results = right(*arguments)
        results[place][..., 200, :5] += 0.05
        return results

    monkeypatch.setattr(module, name, wrong)
    scores, values = torch.randn(2, 300), torch.randn(2, 300, 8)
    with pytest.warns(RuntimeWarning, match=rf"kernel cannot be used on cpu \({message}"):
        outputs, _ = prefix_scan(scores, values)
    assert torch.equal(outputs, prefix_scan(scores, values, method="blocked")[0])
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        prefix_scan(scores, values)


def test_a_recording_that_replays_what_it_saw_is_noticed() -> None:
    assert gpu_check.difference(torch.device("cpu"), decays=False, record=stale) > 0.1
