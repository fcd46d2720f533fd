"""Sequences of different lengths in one batch, and the rows of states."""

import io

import pytest
import torch
from policies import CONSTANT_STATE

from aaren_rl.agents.scan.rows import batch_size
from aaren_rl.nn import (
    RSA,
    Aaren,
    AarenRSA,
    Attention,
    CrossAttention,
    RemConfig,
    TreeAttention,
    TreeConfig,
    Trunk,
    join,
    select,
    state_bytes,
)

WIDTH, HEADS = 20, 4
LENGTHS = [5, 1, 9, 0, 5, 13]
MASKED = RemConfig((1, 1, 1, 1, 0, 0), dilation=2, max_power=3)


def trunk(mixer: str, **options) -> Trunk:
    return Trunk(mixer, WIDTH, 2, HEADS, mlp_width=WIDTH, **options)


CONSTANT = {
    "Aaren": lambda: Aaren(WIDTH, HEADS),
    "CrossAttention": lambda: CrossAttention(WIDTH, 3, HEADS),
    **{f"Trunk of {mixer}": lambda mixer=mixer: trunk(mixer) for mixer in CONSTANT_STATE},
}
GROWING = {
    "AarenRSA, masked": lambda: AarenRSA(WIDTH, HEADS, rems=MASKED),
    "Attention": lambda: Attention(WIDTH, HEADS),
    "RSA, masked": lambda: RSA(WIDTH, HEADS, rems=MASKED),
    "TreeAttention": lambda: TreeAttention(Attention(WIDTH, HEADS), TreeConfig(0.6, "rff")),
    "Trunk of Attention": lambda: trunk("attention", block="pre-norm"),
    "Trunk with trees": lambda: trunk("attention").with_trees(TreeConfig(0.5, "edh")),
}
constant, growing, every = (
    pytest.mark.parametrize("make", of.values(), ids=of.keys()) for of in (CONSTANT, GROWING, CONSTANT | GROWING)
)


def made(make):
    torch.manual_seed(0)
    return make().double().eval()


def batch(lengths=LENGTHS):
    """Tokens, and behind every row's length what no module may read."""
    torch.manual_seed(1)
    x = torch.randn(len(lengths), max(lengths) + 2, WIDTH, dtype=torch.float64)
    for row, n in enumerate(lengths):
        x[row, n:] = torch.nan
    return x


def close(a, b) -> None:
    """Two states, to rounding."""
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    elif isinstance(a, tuple):
        assert type(a) is type(b) and len(a) == len(b)
        for parts in zip(a, b, strict=True):
            close(*parts)


@constant
@torch.no_grad()
def test_padding_changes_neither_outputs_nor_states(make):
    """Nor that of more tokens, which go on from the states."""
    module = made(make)
    of_tokens = not isinstance(module, CrossAttention)
    after, alone = None, [None] * len(LENGTHS)
    for lengths in (LENGTHS, [3, 1, 2, 3, 0, 1]):
        x = batch(lengths)
        y, after = module(x, after, lengths=torch.tensor(lengths))
        for row, n in enumerate(lengths):
            if n:
                wanted, alone[row] = module(x[row : row + 1, :n], alone[row])
                close(y[row : row + 1, : wanted.shape[1]], wanted)
            assert not of_tokens or not y[row, n:].any()
            close(select(after, [row]), module.initial_state(1) if alone[row] is None else alone[row])


@constant
@torch.no_grad()
def test_padding_step_by_step(make):
    module, x = made(make), batch()
    state = module.initial_state(len(LENGTHS))
    for at in range(max(LENGTHS)):
        mask = torch.tensor([at < n for n in LENGTHS])
        y, state = module.step(x[:, at], state, mask=mask)
        assert y.isfinite().all() and not y[~mask].any()
    for row, n in enumerate(LENGTHS):
        close(select(state, [row]), module(x[row : row + 1, :n])[1] if n else module.initial_state(1))


@growing
@torch.no_grad()
def test_where_the_state_grows_rows_have_one_length(make):
    """Padding behind a sequence reaches none of its outputs, so nothing is lost."""
    module, x = made(make), batch().nan_to_num()
    with pytest.raises(ValueError, match="the state of this module grows with its tokens"):
        module(x, lengths=LENGTHS)
    with pytest.raises(ValueError, match="mask: the state of this module grows with every token"):
        module.step(x[:, 0], module.initial_state(6), mask=[True] * 6)
    y, _ = module(x)
    for row, n in enumerate(LENGTHS):
        if n:
            close(y[row : row + 1, :n], module(x[row : row + 1, :n])[0])
    close(module(x[:, :5], lengths=[5] * 6), module(x[:, :5]))


@every
@torch.no_grad()
def test_rows_of_a_state_can_be_taken_put_together_and_saved(make):
    _, state = (module := made(make))(batch([4] * 6)[:, :4])
    close(join([select(state, [0]), select(state, [1, 2]), select(state, range(3, 6))]), state)
    swapped = select(state, torch.tensor([4, 4, 0]))
    close(select(swapped, [1]), select(state, [4]))
    close(select(swapped, [2]), select(state, [0]))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    close(torch.load(file), state)  # which reads data alone
    assert batch_size(select(state, [])) == 0
    for mask in ([True] * 6, torch.ones(6, dtype=torch.bool)):
        with pytest.raises(ValueError, match="not a mask"):
            select(state, mask)
    for row in (6, -1):
        with pytest.raises(IndexError, match=f"the state has 6 rows, none of them number {row}"):
            select(state, [row])
    for rows in (1, 5):
        for run in (module, lambda x, state: module.step(x[:, 0], state)):
            with pytest.raises(ValueError, match=f"the state has {rows} rows, and the batch 6"):
                run(batch(), module.initial_state(rows))


def test_a_batch_of_none_and_the_last_position_of_every_row():
    module, x = made(CONSTANT["Aaren"]), batch()
    assert module(x[:0], lengths=torch.tensor([], dtype=torch.long))[0].shape == (0, 15, WIDTH)
    assert module(x, lengths=[0] * 6, keep=slice(-1, None))[0].shape == (6, 1, WIDTH)
    y, last = module(x, lengths=LENGTHS)[0], module(x, lengths=LENGTHS, keep=slice(-1, None))[0]
    wanted = torch.stack([y[row, n - 1] if n else torch.zeros(WIDTH, dtype=y.dtype) for row, n in enumerate(LENGTHS)])
    torch.testing.assert_close(last, wanted.unsqueeze(1))


@pytest.mark.parametrize(
    ("how", "said"),
    [({"mixer": "foo"}, "mixer 'foo' is not one of"), ({"block": "x"}, "block 'x'"), ({"heads": 0}, "heads 0")],
)
def test_a_trunk_names_what_it_does_not_know(how, said):
    with pytest.raises(ValueError, match=said):
        Trunk(**{"mixer": "aaren", "width": 8, "layers": 1, "heads": 2, **how})


@pytest.mark.parametrize("mixer", CONSTANT_STATE)
def test_a_state_does_not_hold_the_sequence(mixer):
    """Neither in memory nor in a file."""
    module = made(lambda: trunk(mixer))
    _, state = module(torch.randn(1, 500, WIDTH, dtype=torch.float64))
    saved = io.BytesIO()
    torch.save(state, saved)
    assert saved.tell() < 500 * WIDTH * 8 and state_bytes(state) == state_bytes(module.initial_state(1))


def test_what_cannot_be_meant_is_refused():
    module, x = made(CONSTANT["Aaren"]), batch()
    for lengths, message in (
        ([1, 2], "6 numbers from 0 to 15"),
        ([16] * 6, "from 0 to 15"),
        ([-1] * 6, "from 0"),
        ([[1] * 6], "shape"),
        ([2.5] * 6, r"expected integers, not torch\.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            module(x, lengths=lengths)
    with pytest.raises(ValueError, match="starts go with rows of one length"):
        module(x, lengths=LENGTHS, starts=torch.zeros(x.shape[:2], dtype=torch.bool))
    with pytest.raises(ValueError, match="not both"):
        made(CONSTANT["CrossAttention"])(x, lengths=LENGTHS, mask=torch.ones(x.shape[:2], dtype=torch.bool))
    with pytest.raises(ValueError, match="mask must be 6 booleans"):
        module.step(x[:, 0], module.initial_state(6), mask=[True])
    for shape in ((4, WIDTH), (4, WIDTH, 1, 1)):
        with pytest.raises(ValueError, match=r"not \(B, N, C\)"):
            module(torch.zeros(shape, dtype=x.dtype))
    with pytest.raises(ValueError, match="no states to join"):
        join([])
    two, state = made(lambda: trunk("aaren")), Trunk("aaren", WIDTH, 3, HEADS).initial_state(6)
    for run in (two, lambda x, state: two.step(x[:, 0], state)):
        with pytest.raises(ValueError, match="the state is of 3 blocks, and the trunk has 2"):
            run(x, state)
    with pytest.raises(ValueError, match="none"):
        trunk("aaren").with_trees(TreeConfig())
