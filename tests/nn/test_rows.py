"""Sequences of different lengths in one batch, and the rows of states; in float64 to the last bit."""

import io

import pytest
import torch
from mixers import CONSTANT_STATE

from aaren_rl.agents.scan.rows import batch_size
from aaren_rl.nn import (
    RSA,
    Aaren,
    AarenRSA,
    Attention,
    CrossAttention,
    Ragged,
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


MODULES = {
    "Aaren": lambda: Aaren(WIDTH, HEADS),
    "AarenRSA, masked": lambda: AarenRSA(WIDTH, HEADS, rems=MASKED),
    "Attention": lambda: Attention(WIDTH, HEADS),
    "RSA, masked": lambda: RSA(WIDTH, HEADS, rems=MASKED),
    "TreeAttention": lambda: TreeAttention(Attention(WIDTH, HEADS), TreeConfig(0.6, "rff")),
    "CrossAttention": lambda: CrossAttention(WIDTH, 3, HEADS),
    "Trunk of Aaren": lambda: trunk("aaren"),
    "Trunk of AarenRSA": lambda: trunk("aaren-rsa"),
    "Trunk of Attention": lambda: trunk("attention", block="pre-norm"),
    "Trunk of GRU": lambda: trunk("gru"),
    "Trunk of minGRU": lambda: trunk("mingru"),
    "Trunk with trees": lambda: trunk("attention").with_trees(TreeConfig(0.5, "edh")),
}
EVERY = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())


def made(make, dtype=torch.float64):
    torch.manual_seed(0)
    return make().to(dtype).eval()


def batch(lengths=LENGTHS, dtype=torch.float64):
    """Tokens, and behind every row's length what no module may read."""
    torch.manual_seed(1)
    x = torch.randn(len(lengths), max(lengths) + 2, WIDTH, dtype=dtype)
    for row, n in enumerate(lengths):
        x[row, n:] = torch.nan
    return x


def same(a, b) -> bool:
    """To the last bit, whatever is inside; of a tree its own tokens: its successors share the memory for more."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if hasattr(a, "written"):
        a, b = ([s.length, s.key_total, s.keys[:, : s.length], s.values[:, : s.length]] for s in (a, b))
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@EVERY
def test_padding_changes_neither_outputs_nor_states(make):
    """Nor that of more tokens, where the state holds sequences of different lengths already."""
    module = made(make)
    of_tokens = not isinstance(module, CrossAttention)
    after, alone = None, [None] * len(LENGTHS)
    with torch.no_grad():
        for lengths in (LENGTHS, [3, 1, 2, 3, 0, 1]):
            x = batch(lengths)
            y, after = module(x, after, lengths=torch.tensor(lengths))
            for row, n in enumerate(lengths):
                if n:
                    wanted, alone[row] = module(x[row : row + 1, :n], alone[row])
                    assert same(y[row : row + 1, : wanted.shape[1]], wanted)
                assert not of_tokens or not y[row, n:].any()
                assert same(select(after, [row]), module.initial_state(1) if alone[row] is None else alone[row])


@EVERY
def test_padding_step_by_step(make):
    module, x = made(make), batch()
    state = module.initial_state(len(LENGTHS))
    alone = [module.initial_state(1) for _ in LENGTHS]
    with torch.no_grad():
        for at in range(max(LENGTHS)):
            mask = torch.tensor([at < n for n in LENGTHS])
            y, state = module.step(x[:, at], state, mask=mask)
            for row, here in enumerate(mask.tolist()):
                if here:
                    wanted, alone[row] = module.step(x[row : row + 1, at], alone[row])
                assert same(y[row : row + 1], wanted) if here else not y[row].any()
    for row in range(len(LENGTHS)):
        assert same(select(state, [row]), alone[row])


@EVERY
@torch.no_grad()
def test_in_float32_to_rounding(make):
    """Rows of one length run together."""
    module, x = made(make, torch.float32), batch(dtype=torch.float32)
    step, _ = module.step(torch.ones(len(LENGTHS), WIDTH), module(x, lengths=LENGTHS)[1])
    for row, n in enumerate(LENGTHS):
        after = module(x[row : row + 1, :n])[1] if n else module.initial_state(1)
        wanted, _ = module.step(torch.ones(1, WIDTH), after)
        torch.testing.assert_close(step[row : row + 1], wanted, rtol=1e-5, atol=1e-5)


@EVERY
def test_rows_of_a_state_can_be_taken_put_together_and_saved(make):
    module, x = made(make), batch()
    with torch.no_grad():
        _, state = module(x, lengths=LENGTHS)
    again = join([select(state, [0]), select(state, [1, 2]), select(state, range(3, 6))])
    for row in range(len(LENGTHS)):
        assert same(select(again, [row]), select(state, [row]))
    swapped = select(state, torch.tensor([4, 4, 0]))
    assert same(select(swapped, [1]), select(state, [4])) and same(select(swapped, [2]), select(state, [0]))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert same(torch.load(file), state)  # which reads data alone


def test_no_rows_and_masks():
    for name in ("Aaren", "Attention"):
        _, state = made(MODULES[name])(batch(), lengths=LENGTHS)
        assert batch_size(select(state, [])) == 0
        for mask in ([True] * 6, torch.ones(6, dtype=torch.bool)):
            with pytest.raises(ValueError, match="not a mask"):
                select(state, mask)


def test_a_batch_of_none_and_rows_of_one_length():
    trunk = Trunk("aaren", 8, 1, 2).double()
    assert trunk(torch.zeros(0, 5, 8).double(), lengths=torch.tensor([], dtype=torch.long))[0].shape == (0, 5, 8)
    x = torch.randn(3, 7, 8, dtype=torch.float64)
    y, _ = trunk(x, lengths=torch.tensor([7, 7, 7]))
    assert all(torch.equal(y[row], trunk(x[row : row + 1])[0][0]) for row in range(3))  # to the last bit


@pytest.mark.parametrize(
    ("how", "said"),
    [({"mixer": "foo"}, "mixer 'foo' is not one of"), ({"block": "x"}, "block 'x'"), ({"heads": 0}, "heads 0")],
)
def test_a_trunk_names_what_it_does_not_know(how, said):
    with pytest.raises(ValueError, match=said):
        Trunk(**{"mixer": "aaren", "width": 8, "layers": 1, "heads": 2, **how})


@pytest.mark.parametrize("mixer", CONSTANT_STATE)
def test_states_of_constant_size_stay_tensors(mixer):
    _, state = made(lambda: trunk(mixer))(batch(), lengths=LENGTHS)
    assert not isinstance(state, Ragged)
    assert state_bytes(state) == state_bytes(made(lambda: trunk(mixer)).initial_state(len(LENGTHS)))


def test_the_last_position_of_every_row():
    module, x = made(lambda: trunk("attention")), batch()
    y, last = module(x, lengths=LENGTHS)[0], module(x, lengths=LENGTHS, keep=slice(-1, None))[0]
    wanted = torch.stack([y[row, n - 1] if n else torch.zeros(WIDTH) for row, n in enumerate(LENGTHS)])
    torch.testing.assert_close(last, wanted.unsqueeze(1))


@EVERY
def test_tokens_and_states_of_other_shapes_are_refused(make):
    """Unbatched tokens would attend over channels, and a state of one row would serve all."""
    module, x = made(make), batch()
    for shape in ((4, WIDTH), (4, WIDTH, 1, 1)):
        with pytest.raises(ValueError, match=r"not \(B, N, C\)"):
            module(torch.zeros(shape, dtype=x.dtype))
    for rows in (1, 5):
        with pytest.raises(ValueError, match=f"the state has {rows} rows, and the batch 6"):
            module(x, module.initial_state(rows))
        with pytest.raises(ValueError, match=f"the state has {rows} rows, and the batch 6"):
            module.step(x[:, 0], module.initial_state(rows))


def test_a_batch_of_empty_rows_has_as_many_outputs_as_another():
    module, x = made(MODULES["Aaren"]), batch()
    assert module(x, lengths=[0] * 6, keep=slice(-1, None))[0].shape == (6, 1, WIDTH)


@pytest.mark.parametrize("mixer", CONSTANT_STATE)
def test_a_state_does_not_hold_the_sequence(mixer):
    """Neither in memory nor in a file."""
    _, state = made(lambda: trunk(mixer))(torch.randn(1, 500, WIDTH, dtype=torch.float64))
    saved = io.BytesIO()
    torch.save(state, saved)
    assert saved.tell() < 500 * WIDTH * 8


def test_what_cannot_be_meant_is_refused():
    module, x = made(MODULES["Aaren"]), batch()
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
        made(MODULES["CrossAttention"])(x, lengths=LENGTHS, mask=torch.ones(x.shape[:2], dtype=torch.bool))
    with pytest.raises(ValueError, match="6 numbers from 0 to 1"):
        module.step(x[:, 0], module.initial_state(6), mask=[True])
    with pytest.raises(ValueError, match="rows"):
        module(x, module.initial_state(5), lengths=LENGTHS)
    for state in (made(MODULES["Attention"])(x, lengths=LENGTHS)[1], module.initial_state(6)):
        for row in (6, -1):
            with pytest.raises(IndexError, match=f"the state has 6 rows, none of them number {row}"):
                select(state, [row])
    with pytest.raises(ValueError, match="no states to join"):
        join([])
    two = made(MODULES["Trunk of Aaren"])
    state = Trunk("aaren", WIDTH, 3, HEADS).initial_state(6)
    for run in (two, lambda x, state: two.step(x[:, 0], state)):
        with pytest.raises(ValueError, match="the state is of 3 blocks, and the trunk has 2"):
            run(x, state)
    with pytest.raises(ValueError, match="none"):
        trunk("aaren").with_trees(TreeConfig())
