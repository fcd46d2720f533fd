"""The CUDA kernels against the full softmax in float64: on a GPU or, without one, in Triton's interpreter."""

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scan_checks import check, random_decays, random_inputs, random_mask, random_starts, random_state
from small_run import ROOT
from torch import Tensor

from aaren_rl.agents import ScanState, kernels, prefix_scan

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
from triton import language as tl
from triton.runtime import interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest.py turns the interpreter on
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def scan_by_slices(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The same combinations of the same numbers, all columns at once."""
    arrays, types = [x.handle.data for x in inputs], [x.dtype for x in inputs]
    found = [np.empty_like(array) for array in arrays]
    so_far: tuple[Any, ...] | None = None
    for i in range(arrays[0].shape[self.axis]):
        place = tuple(slice(i, i + 1) if axis == self.axis else slice(None) for axis in range(arrays[0].ndim))
        here = tuple(self.to_tensor(array[place], type_) for array, type_ in zip(arrays, types, strict=True))
        if so_far is not None:
            joined = self.combine_fn.fn(*so_far, *here)
            here = joined if isinstance(joined, tuple) else (joined,)
        for array, x in zip(found, here, strict=True):
            array[place] = x.handle.data
        so_far = tuple(self.to_tensor(array[place], type_) for array, type_ in zip(found, types, strict=True))
    return [self.to_tensor(array, type_) for array, type_ in zip(found, types, strict=True)]


def truncate(self: Any, source: Any, to: Any) -> Any:
    """Rounds a float32 to a bfloat16, as a GPU does; the interpreter cuts its lower half off."""
    if to.scalar is tl.bfloat16 and source.dtype.scalar == tl.float32:
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return interpreter.TensorHandle(rounded.view(torch.uint16).numpy(), to.scalar)
    return self.cast_impl(source, to)


if os.environ.get("TRITON_INTERPRET") == "1":  # as slow as it has to be, and no slower
    patched = interpreter.InterpretedFunction.__call__
    interpreter.ScanOps.generic_scan = scan_by_slices
    interpreter.InterpretedFunction.__call__ = lambda self, *x, **y: (
        # Of Triton's own functions the language is another module, which a launch has not patched yet.
        patched(self, *x, **y) if self.fn.__module__.startswith("triton.") else self.rewrite()(*x, **y)
    )
    interpreter.InterpreterBuilder.create_fp_trunc = truncate


def scan(
    scores: Tensor,
    values: Tensor,
    state: ScanState | None = None,
    *,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
    log_decay: Tensor | None = None,
) -> tuple[Tensor, ScanState]:
    there = [None if x is None else x.to(DEVICE) for x in (scores, values, log_decay, mask, starts)]
    before = None if state is None else ScanState(*(part.to(DEVICE) for part in state))
    outputs, after = prefix_scan(*there[:2], before, "triton", there[2], mask=there[3], starts=there[4])
    return outputs.cpu(), ScanState(*(part.cpu() for part in after))


@pytest.fixture
def small(monkeypatch) -> None:
    """Chunks of 4 positions, 2 a turn, and carries of 4 chunks: the borders of long rows, in short ones."""
    for name, value in {"CHUNK": 4, "TURN": 2, "CARRIED": 2}.items():
        monkeypatch.setattr(kernels.load("scan_triton"), name, value)


@pytest.mark.parametrize("length", [1, 65, pytest.param(130, marks=pytest.mark.slow)])
def test_every_length(length):
    check(scan, *random_inputs(length, batch=(1,)), decay=random_decays(length, (1,)))


@pytest.mark.parametrize("length", [1, 4, 5, 17, pytest.param(35, marks=pytest.mark.slow)])
def test_small_chunks_with_state_mask_and_starts(length, small):
    """Heads side by side, NaN under the mask."""
    batch = (1, 2)
    scores, values = random_inputs(length, batch=batch, dim=5)
    mask, starts = random_mask(length, batch), random_starts(length, batch)
    side_by_side = values.transpose(1, 2).contiguous().transpose(1, 2)
    hidden = side_by_side.masked_fill(~mask.unsqueeze(-1), torch.nan)
    for decay in (None, random_decays(length, batch)):
        check(scan, scores, hidden, state=random_state(batch, 5), mask=mask, starts=starts, decay=decay)


def test_starts_everywhere_in_small_chunks(small):
    """Alone and side by side, at the first and last position of a chunk and of a turn; the last two rows' are masked.

    A masked start forgets what was before at once, not at the first position that counts; the last row has none.
    """
    scores, values = random_inputs(13, batch=(5,))
    starts, mask = torch.zeros(5, 13, dtype=torch.bool), torch.ones(5, 13, dtype=torch.bool)
    for row, begins in enumerate(([1, 4], [3, 5, 6, 12], [2, 8, 9, 10], [6], [12])):
        starts[row, begins] = True
    mask[3, 6:9] = mask[4, 12] = False
    check(scan, scores, values, state=random_state((5,)), mask=mask, starts=starts)


def test_a_state_whose_maximum_is_no_float32(small):
    """Near 10,000 float32 has steps of 1e-3."""
    (scores, values), state = random_inputs(9, batch=(1,)), random_state((1,))
    state = state._replace(m=state.m + 1e4 + 4e-4)
    check(scan, scores + 1e4, values, state=state, decay=random_decays(9, (1,)))


def test_three_batch_dimensions(small):
    scores, values = random_inputs(6, batch=(2, 2, 1))
    check(scan, scores.transpose(0, 1), values.transpose(0, 1), starts=random_starts(6, (2, 1, 1), 0.5))


@pytest.mark.parametrize("kind", ["+1e4", "rising", "falling", "loud, then quiet"])
def test_extreme_scores(kind):
    scores, values = random_inputs(70, batch=(1,))
    ramp, starts = torch.linspace(-200, 200, 70), None
    if kind == "loud, then quiet":
        starts = torch.arange(70).eq(40).expand(1, 70)
        scores = torch.where(starts.cumsum(-1) > 0, scores - 1e4, scores + 1e4)
    else:
        scores = scores + {"+1e4": 1e4, "rising": ramp, "falling": -ramp}[kind]
    check(scan, scores, values, state=random_state((1,)), starts=starts)
    # Without the state: faded by 110 in one chunk to the scores' size, it is rounded to 1e-5 as float32 rounds 110.
    # So is what is left of falling scores near 200 that decays bring down to 12: here they fall from 20.
    scores = scores + 0.9 * ramp if kind == "falling" else scores
    check(scan, scores, values, starts=starts, decay=random_decays(70, (1,)))


def test_all_masked_is_zero_with_finite_gradients():
    scores = torch.full((1, 70), -torch.inf, requires_grad=True)
    values = torch.full((1, 70, 3), torch.nan, requires_grad=True)
    outputs, state = scan(scores, values)
    assert torch.equal(outputs, torch.zeros(1, 70, 3)) and not state.u.any()
    (outputs.sum() + state.w.sum() + state.u.sum()).backward()
    assert not scores.grad.any() and not values.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype, small):
    scores, values = random_inputs(13, dtype=dtype)
    check(scan, scores, values, starts=random_starts(13), mask=random_mask(13))


@pytest.mark.parametrize("where", ["score", "value", "gradient"])
def test_nan_stays_in_its_sequence(where, small):
    """Of a row's sequences: 0 to 4, 5 to 11, 12, 13 to 21; only the second, or none, may notice."""
    starts = torch.zeros(1, 22, dtype=torch.bool)
    starts[0, [0, 5, 12, 13]] = True
    results = []
    for ill in (False, True):
        scores, values = random_inputs(22, batch=(1,))
        up = torch.ones_like(values)
        if ill:
            {"score": scores, "value": values, "gradient": up}[where][0, 6] = torch.nan
        leaves = [scores.requires_grad_(), values.requires_grad_()]
        outputs, state = scan(*leaves, starts=starts)
        results.append([*torch.autograd.grad(outputs, leaves, up), outputs.detach(), *state])
    others = (starts.cumsum(-1) != 2)[0]
    for mine, true in zip(*results, strict=True):
        inside = mine.dim() > 1 and mine.shape[1] == 22
        assert torch.equal(mine[:, others] if inside else mine, true[:, others] if inside else true)
    assert any(x.isnan().any() for x in results[1])


def test_counting_does_not_stop_at_two_to_the_24():
    state = ScanState(*(torch.tensor(part, dtype=torch.float64) for part in ([2.0], [2.0**24], [[0.0]])))
    for _ in range(3):
        _, state = scan(torch.full((1, 1), 2.0), torch.ones(1, 1, 1), state)
    assert float(state.u) == 2**24 + 3 and float(state.w) == 3


def test_what_it_cannot_compute_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="computes in float32"):
        scan(*random_inputs(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"computes in float32, not torch\.float64"):  # not rounded without a word
        scan(random_inputs(4)[0].double(), random_inputs(4)[1])
    monkeypatch.setattr(kernels.load("scan_triton"), "scan_outputs", None)  # outside the interpreter
    with pytest.raises(ValueError, match="needs a CUDA device, not cpu"):
        prefix_scan(*random_inputs(4), method="triton")


@pytest.mark.slow
def test_the_kernels_compile_to_machine_code():
    """In a process that does not interpret them."""
    few = ("--targets", "90", "--dims", "64", "--types", "float32", "--instructions")
    command, environment = [sys.executable, "scripts/check_gpu_kernels", *few], {**os.environ, "PYTHONPATH": "scripts"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    row = r"^\| (\w+\.\w+(?: with decays)?), \w+, float32, 64 \| (\d+), 0, \d+(?:; ([\d.]+))? \|$"
    lines = re.findall(row, done.stdout, re.M)
    assert len({kernel for kernel, _, _ in lines}) == 6 + 4  # sums of gradients are without decays
    for decays, most in ((False, 1.3), (True, 1.5)):
        counts = [float(count) for kernel, _, count in lines if count and ("decays" in kernel) == decays]
        assert len(counts) >= 4 and all(0.2 < count < most for count in counts)
