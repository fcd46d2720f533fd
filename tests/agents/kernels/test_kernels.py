"""The scan's kernels beyond what every method is tested for: layouts in memory, threads, when they are chosen."""

import errno
import runpy
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numba
import pytest
import torch
from policies import ACTION, OBSERVATION, make_model
from scan_checks import check, random_decays, random_inputs, random_mask, random_starts, random_state
from torch import Tensor

from aaren_rl.agents import ScanState, kernels, prefix_scan
from aaren_rl.agents.kernels import compiled
from aaren_rl.agents.kernels import scan_numba as cpu

traces = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's tracing uses what torch deprecates
# The compiler of torch 2.10 gave a wrong gradient of the key weights.
compiles = pytest.mark.skipif(torch.__version__ < "2.13", reason="a compiler with a wrong gradient of the keys")
numba_scan = partial(prefix_scan, method="numba")


def heads_side_by_side(x: Tensor) -> Tensor:
    """The same numbers, (B, H, N, ...), as the mixer has them in memory: (B, N, H, ...)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def channels_apart(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("layout", [heads_side_by_side, channels_apart])
def test_any_layout_in_memory(layout):
    batch = (3, 2)
    scores, values = random_inputs(70, batch=batch)

    def run(scores: Tensor, values: Tensor, *rest: object, **keywords: object) -> tuple[Tensor, ScanState]:
        outputs, state = numba_scan(heads_side_by_side(scores), layout(values), *rest, **keywords)
        return outputs, state

    mask, starts = random_mask(70, batch), random_starts(70, batch)
    check(numba_scan, scores, torch.cat([values, values], -1)[:1, ..., 2:5].expand(values.shape))
    check(run, scores, values, state=random_state(batch), mask=mask, starts=starts)
    with torch.no_grad():
        moved = heads_side_by_side(values)
        assert numba_scan(scores, moved)[0].stride() == moved.stride()  # the mixer joins its heads without a copy


def shared_starts(batch: tuple[int, ...]) -> Tensor:
    return torch.isin(torch.arange(50), torch.tensor([0, 9, 28, 31])).expand(*batch, 50)


@pytest.mark.parametrize(
    ("batch", "layout", "begin"),
    [
        ((5, 2), heads_side_by_side, None),
        ((5, 2), torch.Tensor.contiguous, partial(random_starts, 50)),
        ((1, 4), heads_side_by_side, shared_starts),
        ((1, 4), torch.Tensor.contiguous, shared_starts),
        ((1, 1), torch.Tensor.contiguous, partial(random_starts, 50)),
    ],
)
def test_threads_share_rows_and_stretches(layout, batch, begin, monkeypatch):
    monkeypatch.setattr(cpu, "SHARED", 1)
    scores, values = random_inputs(50, batch=batch)
    starts, before = None if begin is None else begin(batch), random_state(batch)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            leaves = [scores.clone().requires_grad_(), layout(values).requires_grad_()]
            leaves += [part.clone().requires_grad_() for part in before[1:]]
            decay = random_decays(50, batch).requires_grad_()
            before_them = ScanState(before.m, *leaves[2:])
            outputs, state = numba_scan(*leaves[:2], state=before_them, log_decay=decay, starts=starts)
            leaves.append(decay)
            gradients = torch.autograd.grad(outputs.square().sum() + state.output().sum(), leaves)
            results.append((outputs, *state, *gradients))
        check(numba_scan, scores, layout(values), state=before, starts=starts, decay=random_decays(50, batch))
    finally:
        torch.set_num_threads(threads)
    for alone, *shared in zip(*results, strict=True):
        assert all(torch.equal(alone, other) for other in shared)


def test_where_nothing_can_be_kept_a_kernel_is_compiled_every_time():
    assert compiled()(eval("lambda x: x + 1"))(1) == 2  # Numba keeps nothing of a function without a file


DOUBLE = """
from aaren_rl.agents.kernels import compiled

@compiled()
def double(x):
    return 2 * x
"""


def test_a_damaged_cache_is_compiled_again_and_a_full_one_does_without(tmp_path, monkeypatch):
    """As after a power cut: the index is empty, or what it names is cut off; then nothing can be written."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "double.py").write_text(DOUBLE)

    def doubled() -> int:
        return runpy.run_path(str(tmp_path / "double.py"))["double"](21)

    def files() -> list[Path]:
        return sorted((tmp_path / "cache").rglob("*.nb[ic]"))

    assert doubled() == 42 and len(files()) == 2
    for damaged in range(2):
        files()[damaged].write_bytes(b"")
        assert doubled() == 42 and all(file.stat().st_size for file in files())
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)
    for file in files():
        file.unlink()
    assert doubled() == 42 and full.called and not files()


def test_a_second_derivative_is_refused():
    scores, values = (x.requires_grad_() for x in random_inputs(5))
    (gradient,) = torch.autograd.grad(numba_scan(scores, values)[0].square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_without_numba_the_scan_is_done_in_torch_and_says_so(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name.removeprefix('scan_')!r}")

    monkeypatch.setattr(kernels, "load", missing)
    kernels.available.cache_clear()
    try:
        scores, values = random_inputs(70)
        with pytest.warns(RuntimeWarning, match="No module named 'numba'.*plain torch.*pip install numba") as warned:
            outputs, _ = prefix_scan(scores, values)
            prefix_scan(scores, values)
        assert len(warned) == 1
        assert torch.equal(outputs, prefix_scan(scores, values, method="blocked")[0])
    finally:
        kernels.available.cache_clear()


@compiles
@traces
@pytest.mark.parametrize(("mixer", "bfloat16"), [("aaren", False), ("aaren-rsa", True)])
@pytest.mark.slow
def test_a_compiled_model_is_one_graph_with_the_same_gradients(mixer, bfloat16):
    """By "aot_eager", which traces as every back end does, and needs no compiler."""
    torch.compiler.reset()
    model, times, results = make_model(mixer, dropout=0.0).train(), torch.arange(25).expand(2, 25), []
    observations, actions, returns = (torch.rand(2, 25, *c) for c in ((OBSERVATION,), (ACTION,), ()))
    starts = None if bfloat16 else times.remainder(9).eq(0)
    for call in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            predicted, _ = call(observations, actions, returns, times, starts=starts)
        (predicted - actions).square().mean().backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    mine, true = results
    assert mine.keys() == true.keys() and len(mine) > 20
    floor = max(float(value.abs().max()) for value in true.values())  # some gradients are zero but for rounding
    for name, value in true.items():
        allowed = (2**-5 if bfloat16 else 1e-5) * max(float(value.abs().max()), 1e-2 * floor)
        assert float((mine[name] - value).abs().max()) <= allowed, name


@traces
def test_what_is_exported_has_no_kernel_in_it():
    scores, values = random_inputs(10)

    class Scan(torch.nn.Module):
        def forward(self, scores: Tensor, values: Tensor) -> Tensor:
            return prefix_scan(scores, values)[0]

    program = torch.export.export(Scan(), (scores, values))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aten.cummax.default" in called  # of "blocked"
    others = {name for name in called if not name.startswith("aten.")}
    assert others == {"<built-in function getitem>", "wrap_with_autocast"}
    torch.testing.assert_close(program.module()(scores, values), prefix_scan(scores, values)[0])
