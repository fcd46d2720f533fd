"""What the tests of scans and mixers share: tolerances, how inputs are drawn, references, the comparison with them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from aaren_rl.agents import ScanState, prefix_scan
from aaren_rl.agents.mixers.rsa import Recurrence, Regular

METHODS = ("sequential", "blocked", "hillis_steele", "ladner_fischer", "numba")

# dtype of scores and values: (rtol, atol of outputs and final state), (rtol, atol of gradients). The float32 entries
# leave room for sums of a thousand terms. Half types are computed in float32 and rounded once, to half a unit in the
# last place: 2^-8 and 2^-11 relative, plus float32's own error.
TOLERANCES = {
    torch.float64: ((1e-13, 1e-13), (1e-12, 1e-12)),
    torch.float32: ((2e-6, 1e-6), (1e-5, 1e-5)),
    torch.bfloat16: ((2**-8, 2e-6), (2**-8, 2e-5)),
    torch.float16: ((2**-11, 2e-6), (2**-11, 2e-5)),
}

Scan = Callable[..., tuple[Tensor, ScanState]]


def random_inputs(
    length: int, *, batch: tuple[int, ...] = (2,), dim: int = 3, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Scores 3 N(0, 1) of shape (*batch, length) and values N(0, 1) of shape (*batch, length, dim)."""
    generator = torch.Generator().manual_seed(seed + length)
    scores = 3 * torch.randn(*batch, length, generator=generator)
    return scores.to(dtype), torch.randn(*batch, length, dim, generator=generator).to(dtype)


def random_state(batch: tuple[int, ...] = (2,), dim: int = 3) -> ScanState:
    generator = torch.Generator().manual_seed(99)
    draw = torch.randn(*batch, dim + 2, generator=generator, dtype=torch.float64)
    return ScanState(3 * draw[..., 0], draw[..., 1].abs() + 0.5, draw[..., 2:])


def random_mask(length: int, batch: tuple[int, ...] = (2,)) -> Tensor:
    """Three of four positions kept; the second row begins with masked ones."""
    mask = torch.rand(*batch, length, generator=torch.Generator().manual_seed(7)) < 0.75
    mask[-1, : min(3, length)] = False
    return mask


def random_starts(length: int, batch: tuple[int, ...] = (2,), rate: float = 0.1) -> Tensor:
    return torch.rand(*batch, length, generator=torch.Generator().manual_seed(8)) < rate


def random_decays(length: int, batch: tuple[int, ...] = (2,), dtype: torch.dtype = torch.float32) -> Tensor:
    """log f of gates from nearly 0 (1e-9) to nearly 1 (1 - 1e-9)."""
    gates = 8 * torch.randn(*batch, length, generator=torch.Generator().manual_seed(9 + length))
    return torch.nn.functional.logsigmoid(gates.double()).to(dtype)


def expected(
    scores: Tensor,
    values: Tensor,
    state: ScanState | None,
    mask: Tensor | None,
    starts: Tensor | None,
    decay: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the log of the last position's sum of exponentials and whether it has seen anything, in float64.

    A state is one more token before the others: score m + log u, value w / u. Decays are sums over the positions
    between two: a matrix of them, with no difference of large sums.
    """
    scores, values, batch = scores.double(), values.double(), scores.shape[:-1]
    decay = torch.zeros_like(scores) if decay is None else decay.double()
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    starts = torch.zeros_like(scores, dtype=torch.bool) if starts is None else starts.expand(scores.shape)
    if state is not None:
        scores = torch.cat([(state.m + state.u.log()).unsqueeze(-1), scores], -1)
        values = torch.cat([(state.w / state.u.unsqueeze(-1)).unsqueeze(-2), values], -2)
        mask = torch.cat([torch.ones(*batch, 1, dtype=torch.bool), mask], -1)
        decay = torch.cat([torch.zeros(*batch, 1), decay], -1)
        starts = torch.cat([torch.zeros(*batch, 1, dtype=torch.bool), starts], -1)
    segments, present = starts.cumsum(-1), mask & (scores > -torch.inf)
    allowed = torch.ones_like(scores[..., None] + scores[..., None, :], dtype=torch.bool).tril()
    allowed &= present.unsqueeze(-2) & (segments.unsqueeze(-1) == segments.unsqueeze(-2))
    # Row i, column k: the decays of i + 1 to k.
    later = torch.ones(scores.shape[-1], scores.shape[-1], dtype=torch.bool).triu(1)
    fading = decay.masked_fill(~present, 0.0).unsqueeze(-2).where(later, 0.0).cumsum(-1).mT
    every = (scores.masked_fill(~present, 0.0).unsqueeze(-2) + fading).masked_fill(~allowed, -torch.inf)
    anything = allowed.any(-1, keepdim=True)
    weights = torch.where(anything, every, 0.0).softmax(-1) * anything
    outputs = weights @ values.masked_fill(~present.unsqueeze(-1), 0.0)
    counted = present & (segments == segments[..., -1:])
    seen = counted.any(-1)
    # Rows that have seen nothing get a harmless 0, which the comparison leaves out.
    last = (scores + fading[..., -1, :]).masked_fill(~counted, -torch.inf)
    rows = torch.where(seen.unsqueeze(-1), last, torch.zeros_like(scores))
    return outputs if state is None else outputs[..., 1:, :], rows.logsumexp(-1), seen


def check(
    scan: Scan | tuple[str, ...],
    scores: Tensor,
    values: Tensor,
    *,
    state: ScanState | None = None,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
    decay: Tensor | None = None,
) -> None:
    """Raises AssertionError unless outputs, final state and every gradient are the reference's.

    Of a scan, or of `prefix_scan` by each of several methods.
    """
    given = (scores, values) if decay is None else (scores, values, decay)
    rest = {"state": state, "mask": mask, "starts": starts}
    # The reference gets the very numbers that the scan gets, rounded to their type or not.
    want = _results(None, [x.double() for x in given], **rest)
    scans = {"scan": scan} if callable(scan) else {name: partial(prefix_scan, method=name) for name in scan}
    for name, one in scans.items():
        _compare(name, values.dtype, _results(one, list(given), **rest), want)


def _results(
    scan: Scan | None, given: list[Tensor], state: ScanState | None, mask: Tensor | None, starts: Tensor | None
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Outputs, the last output and log sum; where anything was seen; the gradients. Of the reference: None."""
    inputs = [x.detach().clone().requires_grad_() for x in given]
    values, before = given[1], None if state is None else ScanState(*(x.clone().requires_grad_() for x in state))
    if scan is None:
        outputs, log_sum, seen = expected(*inputs[:2], before, mask, starts, *inputs[2:])
        final = outputs[..., -1, :]
    else:
        keywords = {"log_decay": inputs[2]} if len(inputs) == 3 else {}
        outputs, last = scan(*inputs[:2], before, mask=mask, starts=starts, **keywords)
        assert outputs.dtype == values.dtype and outputs.shape == values.shape
        assert all(part.dtype == torch.float64 for part in last)
        seen, final = last.u > 0, last.output()
        log_sum = torch.where(seen, last.m + torch.where(seen, last.u, 1.0).log(), 0.0)
    # Upstream gradients that every type represents exactly, so that only the scan's own rounding is compared.
    up = torch.randn(values.shape, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16).double()
    log_sum = log_sum * seen
    loss = (outputs.double() * up).sum() + (final * up[..., 0, :]).sum() + (log_sum * up[..., 0, 0]).sum()
    leaves = inputs if before is None else [*inputs, *before]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)  # None: a graph that never touches the input
    none = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]
    return [x.detach().double() for x in (outputs, final, log_sum)], seen, [g.double() for g in none]


def _compare(name: str, dtype: torch.dtype, got: tuple, want: tuple) -> None:
    (rtol, atol), (grad_rtol, grad_atol) = TOLERANCES[dtype]
    for mine, true in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(mine, true, rtol=rtol, atol=atol, msg=lambda said: f"{name}: {said}")
    assert torch.equal(got[1], want[1]), name
    for mine, true in zip(got[2], want[2], strict=True):
        # Gradients are sums over later positions: their error is measured against the largest of them.
        scale = max(1.0, float(true.abs().max()))
        torch.testing.assert_close(
            mine / scale, true / scale, rtol=grad_rtol, atol=grad_atol, msg=lambda said: f"{name}: {said}"
        )


def recurrence_encoding_matrix(
    length: int,
    decay: Tensor,
    angle: Tensor | None = None,
    *,
    sine: bool = False,
    dilation: int = 1,
    max_power: int = 0,
) -> Tensor:
    """One causal REM (T, T), entry by entry as equation (3) of Huang et al. 2023 and its P (x) I_d for dilation d say.

    `decay` is lambda or gamma, `angle` theta, None for a regular REM. Entries of larger powers than `max_power` are 0
    (appendix D.1); where it is 0, none are.
    """
    decay = decay.double()

    def f(power: int) -> Tensor:
        if power == 0 or (max_power and power > max_power):
            return torch.zeros_like(decay)
        if angle is None:
            return decay**power
        return decay**power * (torch.sin if sine else torch.cos)(power * angle.double())

    blocks = -(-length // dilation)
    distance = torch.arange(blocks).unsqueeze(1) - torch.arange(blocks)
    undilated = torch.stack([f(power) for power in range(blocks)])[distance.clamp(min=0)] * (distance > 0)
    return torch.kron(undilated, torch.eye(dilation, dtype=torch.float64))[:length, :length]


def matrices(group: Recurrence, length: int) -> Tensor:
    """The REMs of a group's heads, (R, T, T), entry by entry."""
    form = {"dilation": group.dilation, "max_power": group.max_power}
    if isinstance(group, Regular):
        return torch.stack([recurrence_encoding_matrix(length, x.tanh(), **form) for x in group.eta])
    pairs, heads = list(zip(group.nu.sigmoid(), group.theta, strict=True)), []
    for sine, count in ((False, group.cosines), (True, group.sines)):
        heads += [recurrence_encoding_matrix(length, *pair, sine=sine, **form) for pair in pairs[:count]]
    return torch.stack(heads)
