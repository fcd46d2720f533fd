"""Every token mixer: one result in parallel, in pieces, packed and token by token."""

import copy
import math

import pytest
import torch
from scan_checks import matrices
from torch import Tensor
from torch.nn import functional as F

from aaren_rl.agents import MIXERS, Aaren, Attention, Block, Encoded, RemConfig, ScanState, Trunk
from aaren_rl.agents.mixers.base import MixerConfig
from aaren_rl.agents.mixers.gru import GRU, MinGRU
from aaren_rl.agents.model.decision import Dropout, PreNormBlock

WIDTH, HEADS = 16, 4
every_mixer = pytest.mark.parametrize("name", MIXERS)
Mixer = Aaren | Attention | Encoded | GRU | MinGRU

# Every kind of REM but the plain ones, which are the default; and a mask that 70 tokens meet.
REMS = RemConfig((0, 1, 1, 1, 0, 1), max_power=20)
OTHERS = {
    "aaren-rsa cyclical": ("aaren-rsa", MixerConfig(WIDTH, HEADS, rems=REMS)),
    "rsa cyclical": ("rsa", MixerConfig(WIDTH, HEADS, rems=REMS)),
    "aaren with a gate": ("aaren", MixerConfig(WIDTH, HEADS, forget_gate=True)),
    "aaren-rsa with a gate": ("aaren-rsa", MixerConfig(WIDTH, HEADS, forget_gate=True)),
}
every_encoding = pytest.mark.parametrize("name", [*MIXERS, *OTHERS])


def make(name: str, dtype: torch.dtype = torch.float32) -> Mixer:
    torch.manual_seed(0)
    kind, config = OTHERS.get(name, (name, MixerConfig(WIDTH, HEADS)))
    return MIXERS[kind].build(config).to(dtype).eval()


def comparable(state: object) -> list[Tensor]:
    """A state's tensors, of a scan's its output: m may differ where u and w differ as well. A cache is left out."""
    if isinstance(state, ScanState):
        assert all(part.dtype == torch.float64 for part in state)
        return [state.output()]
    return [state] if isinstance(state, Tensor) else [tensor for part in state for tensor in comparable(part)]


def tokens(length: int, dtype: torch.dtype = torch.float32, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(length)).to(dtype)


def steps(mixer: Mixer | Trunk, x: Tensor) -> tuple[Tensor, object]:
    outputs, state = [], mixer.initial_state(len(x))
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@every_encoding
@torch.no_grad()
def test_parallel_is_recurrent(name):
    """Outputs and final state."""
    mixer, x = make(name), tokens(400, batch=1)
    parallel, last = mixer(x)
    recurrent, state = steps(mixer, x)
    torch.testing.assert_close(parallel, recurrent, rtol=0, atol=1e-5)
    for mine, stepped in zip(comparable(last), comparable(state), strict=True):
        torch.testing.assert_close(mine, stepped, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@torch.no_grad()
def test_a_forget_gate_over_many_tokens(dtype, tolerance):
    """Heads with gates of 2e-9, 1/2 and 1 - 2e-9, and one as before training: in parallel as token by token."""
    mixer, x = make("aaren with a gate", dtype), tokens(2000, dtype, batch=1)
    mixer.forget.bias[:3] = torch.tensor([-20.0, 0.0, 20.0])
    parallel, last = mixer(x)
    recurrent, state = steps(mixer, x)
    torch.testing.assert_close(parallel, recurrent, rtol=0, atol=tolerance)
    torch.testing.assert_close(last.output(), state.output(), rtol=0, atol=tolerance)


def test_a_forget_gate_begins_with_heads_of_all_spans():
    """The last head keeps 90 % through a million tokens; alone it is all there is."""
    kept = torch.sigmoid(Aaren(WIDTH, 4, forget_gate=True).forget.bias.double())
    torch.testing.assert_close(1 / (1 - kept[:3]), torch.tensor([2.0, 20.0, 200.0]).double(), rtol=1e-4, atol=0)
    assert kept[3].item() ** 1_000_000 > 0.9
    assert torch.sigmoid(Aaren(WIDTH, 1, forget_gate=True).forget.bias.double()).item() ** 1_000_000 > 0.9


@every_encoding
@pytest.mark.parametrize("keep", [slice(1, None, 3), slice(-1, None)])
@torch.no_grad()
def test_keep_is_slicing(name, keep):
    mixer, x = make(name, torch.float64), tokens(12, torch.float64)
    _, state = mixer(tokens(4, torch.float64))
    starts = torch.arange(12).eq(7).expand(2, 12)
    for keywords in ({}, {"state": state}, {"starts": starts}, {"state": state, "starts": starts}):
        whole, last = mixer(x, **keywords)
        kept, same = mixer(x, keep=keep, **keywords)
        torch.testing.assert_close(kept, whole[:, keep], rtol=0, atol=1e-13)
        torch.testing.assert_close(comparable(same), comparable(last), rtol=0, atol=1e-13)


def recurrence(mixer: GRU | MinGRU, x: Tensor, starts: Tensor) -> Tensor:
    """h_t of a GRU or minGRU, token by token, straight from the parameters."""
    h, outputs = torch.zeros_like(x[:, 0]), []
    for token, begins in zip(x.unbind(1), starts.unbind(1), strict=True):
        h = h * ~begins.unsqueeze(1)
        if isinstance(mixer, MinGRU):
            z, new = torch.sigmoid(mixer.gate(token)), mixer.candidate(token)
            h = (1 - z) * h + z * new
        else:
            of_token = (token @ mixer.gru.weight_ih_l0.T + mixer.gru.bias_ih_l0).chunk(3, 1)
            of_h = (h @ mixer.gru.weight_hh_l0.T + mixer.gru.bias_hh_l0).chunk(3, 1)
            reset, z = torch.sigmoid(of_token[0] + of_h[0]), torch.sigmoid(of_token[1] + of_h[1])
            h = (1 - z) * torch.tanh(of_token[2] + reset * of_h[2]) + z * h
        outputs.append(h)
    return torch.stack(outputs, 1)


def plain(mixer: Mixer, x: Tensor, starts: Tensor) -> Tensor:
    """W_o of weights times values, straight from the parameters, every matrix of weights written out.

    Softmax of q k^T / sqrt(D) over the same sequence's earlier tokens, where Aaren's q is W_q of its query token, and a
    forget gate multiplies exp of a score by the gates of all later tokens; with recurrence encoding equation (4):
    {[1 - sigmoid(mu)] softmax + sigmoid(mu) P} V.
    """
    if isinstance(mixer, GRU | MinGRU):
        return recurrence(mixer, x, starts)
    inner, n = (mixer.inner if isinstance(mixer, Encoded) else mixer), x.shape[1]

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(-3, -2)

    asking = inner.query_token.expand(x.shape) if isinstance(inner, Aaren) else x
    scores = split(inner.query(asking)) @ split(inner.key(x)).transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    segments = starts.cumsum(-1)
    same = (segments.unsqueeze(-1) == segments.unsqueeze(-2)).unsqueeze(1)
    if isinstance(inner, Aaren) and inner.forget is not None:
        gates = torch.sigmoid(inner.forget(x)).mT  # token i has the product of those of i + 1 to k
        later = torch.ones(n, n).triu(1).bool()
        scores = scores + torch.where(later, gates.unsqueeze(-2), 1.0).cumprod(-1).mT.log()
    weights = torch.softmax(scores.masked_fill(~(same & torch.ones(n, n).tril().bool()), -torch.inf), -1)
    if isinstance(mixer, Encoded):
        rems = torch.cat([matrices(group, n) for group in mixer.encoding.groups])
        gate, encoded = torch.sigmoid(mixer.encoding.mu), len(rems)
        gated = (1 - gate) * weights[:, :encoded] + gate * rems * same
        weights = torch.cat([gated, weights[:, encoded:]], 1)
    return inner.output((weights @ split(inner.value(x))).transpose(1, 2).flatten(-2))


@every_encoding
def test_it_is_the_papers_equation_and_so_are_its_gradients(name):
    """In float64 to rounding, and in float32 against float64, to inputs and every parameter; sequences packed."""
    starts = torch.zeros(2, 90, dtype=torch.bool)
    starts[0, 0] = starts[0, 30] = starts[1, 71] = True
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        fast, slow = make(name, dtype), make(name, dtype).double()
        x, up = tokens(90, dtype).requires_grad_(), tokens(91, dtype)[:, :90]
        exact = x.detach().double().requires_grad_()
        mine, true = fast(x, starts=starts)[0], plain(slow, exact, starts)
        torch.testing.assert_close(mine.double(), true, rtol=0, atol=tolerance)
        gradients = torch.autograd.grad((mine * up).sum(), [x, *fast.parameters()])
        expected = torch.autograd.grad((true * up.double()).sum(), [exact, *slow.parameters()])
        for (parameter, _), got, want in zip([("x", x), *fast.named_parameters()], gradients, expected, strict=True):
            scale = max(1.0, float(want.abs().max()))
            torch.testing.assert_close(got.double() / scale, want / scale, rtol=0, atol=tolerance, msg=parameter)
            # A key's bias adds the same to all scores of a query, which softmax does not see.
            assert bool(want.abs().gt(1e-9).any()) or parameter.endswith("key.bias")


@pytest.mark.faults
@pytest.mark.parametrize("way", ["parallel", "recurrent"])
@torch.no_grad()
def test_aaren_under_bfloat16_autocast(way):
    """After 2,000 tokens the state is float64 and near that of a float64 run.

    Scores are computed and summed in float32 at least, so the sums of exponentials agree to float32's rounding; summed
    in bfloat16 they would be off by 4e-3 or stop growing at 256. Values are bfloat16 products, each off by half a unit
    in the last place, 2^-9 of its size, in the input, the weights and the result: 3 * 2^-9 of the largest.
    """
    mixer, x = make("aaren"), tokens(2000, batch=1)
    _, exact = make("aaren", torch.float64)(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if way == "recurrent":
            y, state = steps(mixer, x)
        else:
            state = None
            for part in x.split(500, 1):
                y, state = mixer(part, state)
    assert y.dtype == torch.bfloat16 and all(part.dtype == torch.float64 for part in state)
    torch.testing.assert_close(state.m + state.u.log(), exact.m + exact.u.log(), rtol=0, atol=1e-5)
    largest = float(make("aaren", torch.float64).value(x.double()).abs().max())
    torch.testing.assert_close(state.output(), exact.output(), rtol=0, atol=3 * 2**-9 * largest)


@pytest.mark.parametrize("block", [Block, PreNormBlock])
@pytest.mark.parametrize("silent", ["mixer", "mlp"])
def test_dropout_after_the_mixer_and_after_the_mlp(block, silent):
    torch.manual_seed(0)
    module, x = block("gru", MixerConfig(WIDTH, HEADS, 0.5)), tokens(5)
    for weight in getattr(module, silent).parameters():
        torch.nn.init.zeros_(weight)  # what is left to drop is the other's
    assert not torch.equal(module(x, None)[0], module(x, None)[0])


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    dropped, kept = Dropout(probability)(torch.ones(400, 1001)), round(256 * (1 - probability)) / 256
    zeros = (dropped == 0).double().mean()
    assert float(zeros) == pytest.approx(1 - kept, abs=4 * math.sqrt(0.25 / 400_400))
    torch.testing.assert_close(dropped[dropped > 0], torch.full_like(dropped[dropped > 0], 1 / kept))


@pytest.mark.parametrize("name", [*MIXERS, "its weights alone"])
def test_dropout_only_in_training(name):
    torch.manual_seed(0)
    module, x = (
        Block(name, MixerConfig(WIDTH, HEADS, 0.5)) if name in MIXERS else Attention(WIDTH, HEADS, 0.5),
        tokens(5),
    )
    assert not torch.equal(module(x, None)[0], module(x, None)[0])
    module.eval()
    assert torch.equal(module(x, None)[0], module(x, None)[0])


@pytest.mark.parametrize(("name", "scale"), [("gru", 1), ("mingru", 8)])
@torch.no_grad()
def test_gated_units_over_long_rows_of_sequences(name, scale):
    """2,000 tokens from a state on, under bfloat16 autocast too, which must not add up.

    minGRU's gates open and shut: the sum of log(1 - z) is below -1,800. A GRU of such weights is chaotic.
    """
    mixer, x, starts = make(name), tokens(2000), torch.zeros(2, 2000, dtype=torch.bool)
    starts[0, 17] = starts[0, 18] = starts[1, 0] = starts[1, 1800] = True
    for weight in mixer.parameters():
        weight *= scale
    given, exact = tokens(1)[:, 0].to(mixer.initial_state(2).dtype), copy.deepcopy(mixer).double()
    h, outputs = given.double(), []
    for token, begins in zip(x.double().unbind(1), starts.unbind(1), strict=True):
        y, h = exact.step(token, h * ~begins.unsqueeze(1))
        outputs.append(y)
    true = torch.stack(outputs, 1)
    largest = max(1.0, float(true.abs().max()))
    if name == "mingru":
        assert float(F.logsigmoid(-exact.gate(x.double())).sum(1).max()) < -1_800
    torch.testing.assert_close(exact(x.double(), given.double(), starts=starts)[0], true, rtol=0, atol=1e-10)
    for bfloat16, tolerance in ((False, 1e-5), (True, 2**-7)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            y, after = mixer(x, given, starts=starts)
        torch.testing.assert_close(y.double(), true, rtol=0, atol=tolerance * largest)
        torch.testing.assert_close(after.double(), h, rtol=0, atol=tolerance * largest)


@every_mixer
def test_a_mixer_says_what_it_takes(name):
    softmax = name in ("attention", "tree", "rsa")
    known = {"heads": "gru" not in name, "rems": "rsa" in name, "forget_gate": "aaren" in name, "dropout": softmax}
    assert MIXERS[name].takes == {setting for setting, taken in known.items() if taken}


def test_which_mixers_a_cuda_graph_may_hold():
    """A mixer says so itself; those that do not are trained without one."""
    assert {name for name, mixer in MIXERS.items() if mixer.capturable} == {"aaren", "attention", "tree", "mingru"}
