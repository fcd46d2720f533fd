"""The rows of a batch: select and join states, and run sequences of different lengths in one batch.

A state is a tensor or a tuple of states, and the batch is the first dimension of all its tensors. So a few functions
serve the states of every module. Padding is never computed: sequences of one length run together, without it. In
float64, the type of tests, every sequence runs alone, because the rounding of a matrix product depends on its number of
rows. So outputs and states are bit-identical to those of the sequence alone.

Shape suffixes: B batch, N tokens, C channels.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = Any  # a tensor or a tuple of states; a module knows its own
Rows: TypeAlias = tuple[int, ...]  # batch


class Ragged(NamedTuple):
    """The state of sequences with states of different sizes, such as key-value caches of different lengths.

    Attributes:
        rows: which rows of the batch each part holds.
        parts: states of these rows.
    """

    rows: tuple[Rows, ...]
    parts: tuple[State, ...]


def each(of: Callable[[list[Tensor]], Tensor], states: Sequence[State]) -> State:
    """A state made by applying a function to matching tensors of `states`. Other values are those of the first."""
    first = states[0]
    if isinstance(first, Tensor):
        return of(list(states))
    if not isinstance(first, tuple):
        return first
    parts = [each(of, part) for part in zip(*states, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def batch_size(state: State) -> int:
    """B."""
    if isinstance(state, Ragged):
        return sum(map(len, state.rows))
    while not isinstance(state, Tensor):  # policies call it at every step: faster than `tensors`, which visits all
        state = state[0]
    return state.shape[0]  # len would make it a constant in an exported graph


def check_rows(x: Tensor, state: State | None, dims: int) -> None:
    """Raises ValueError unless tokens have `dims` dimensions, and a state as many rows as they."""
    if x.dim() != dims:
        raise ValueError(f"tokens have the shape {tuple(x.shape)}, not {'(B, N, C)' if dims == 3 else '(B, C)'}")
    if state is not None and batch_size(state) != x.shape[0]:
        raise ValueError(f"the state has {batch_size(state)} rows, and the batch {x.shape[0]}")


def tensors(state: State) -> list[Tensor]:
    """All tensors of a state, in their order."""
    if isinstance(state, Tensor):
        return [state]
    return [part for inner in state for part in tensors(inner)] if isinstance(state, tuple) else []


def select(state: State, rows: Sequence[int] | Tensor) -> State:
    """The state of these rows of the batch, in this order, as a copy.

    Args:
        state: of any module.
        rows: row numbers, with or without repetition; may be empty.

    Raises:
        IndexError: there is no such row.
        ValueError: the rows are not integers, or are a mask, which would be read as rows 0 and 1; give
            `mask.nonzero()[:, 0]`.
    """
    if torch.as_tensor(rows).dtype == torch.bool:
        raise ValueError("rows must be row numbers, not a mask; mask.nonzero()[:, 0] has the numbers")
    wanted, count = _numbers(rows), batch_size(state)
    if missing := [row for row in wanted if not 0 <= row < count]:
        raise IndexError(f"the state has {count} rows, none of them number {missing[0]}")
    if not isinstance(state, Ragged):
        return each(lambda parts: parts[0][wanted], [state])
    places = {row: (part, held.index(row)) for held, part in zip(*state, strict=True) for row in held}
    if not wanted:
        return select(state.parts[0], [])
    return join(select(part, [place]) for part, place in (places[row] for row in wanted))


def join(states: Iterable[State]) -> State:
    """The states of several batches of one module as that of a single one, in their order: undoes `select`.

    Raises ValueError if there are none.
    """
    parts, first = [], 0
    for state in states:
        whole = Ragged((tuple(range(batch_size(state))),), (state,))
        for rows, part in zip(*(state if isinstance(state, Ragged) else whole), strict=True):
            parts.append((tuple(first + row for row in rows), part))
        first += batch_size(state)
    if not parts:
        raise ValueError("there are no states to join")
    return _in_order(parts)


def state_bytes(state: State) -> int:
    """The size of a state in bytes."""
    return sum(part.numel() * part.element_size() for part in tensors(state))


def run_lengths(
    module: Callable[..., tuple[Tensor, State]],
    x: Tensor,
    state: State | None,
    lengths: Tensor | Sequence[int] | None,
    initial_state: Callable[[int], State],
    *,
    padded: bool = True,
    **options: Any,  # noqa: ANN401  the module's own
) -> tuple[Tensor, State]:
    """`module(x, state, ...)` for only the first `lengths` tokens of every row.

    Args:
        module: takes tokens, a state and `options`; gives outputs (B, N or fewer, C), or (B, Q, C), and a state.
        x: tokens (B, N, C); positions past the length of a row are ignored.
        state: of the tokens before, or None.
        lengths: integers (B,), from 0 to N; None: all N.
        initial_state: of the module.
        padded: whether outputs are per token: zeros then pad each row.
        options: of the module.

    Raises:
        ValueError: invalid lengths, `starts` beside them, or tokens or a state of other shapes.
    """
    check_rows(x, state, 3)
    batch, most = x.shape[:2]
    counts = [most] * batch if lengths is None else _numbers(lengths)
    if len(counts) != batch or not all(0 <= n <= most for n in counts):
        raise ValueError(f"lengths, or a mask, must be {batch} numbers from 0 to {most}, not {counts}")
    if options.get("starts") is not None:
        raise ValueError("starts go with rows of one length, and with a state of one size")
    if not batch:
        return module(x, initial_state(0) if state is None else state, **options)
    held = state.rows if isinstance(state, Ragged) else (tuple(range(batch)),)
    part = {row: number for number, rows in enumerate(held) for row in rows}
    # Only padding that all rows share; in float64 every row runs by itself, to have its own last bits.
    whole = len(held) == 1 and len(set(counts)) == 1 and (batch == 1 or x.dtype != torch.float64)
    groups: dict[tuple[int, ...], list[int]] = {}  # rows of one count, and of one size of state; alone in float64
    for row, count in enumerate(counts):
        groups.setdefault((count, part[row], row if x.dtype == torch.float64 else 0), []).append(row)
    outputs, states = [], []
    for (count, *_), rows in groups.items():
        # Contiguous, as the sequences alone would be: a product takes another way otherwise, and rounds otherwise.
        here = (x if whole else x[rows])[:, :count].contiguous()
        own = state if whole or state is None else select(state, rows)
        if count or not padded:
            here, own = module(here, own, **options)
        outputs.append(here)
        states.append((tuple(rows), initial_state(len(rows)) if own is None else own))
    if padded:
        longest = most if options.get("keep") is None else len(range(most)[options["keep"]])
        outputs = [nn.functional.pad(y, (0, 0, 0, longest - y.shape[1])) for y in outputs]
    order = torch.tensor([row for rows in groups.values() for row in rows], device=x.device).argsort()
    return torch.cat(outputs)[order], _in_order(states)


class RowModule(nn.Module):
    """A sequence module whose rows may be of different lengths; a subclass has `run`, `run_one` and `initial_state`."""

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        starts: Tensor | None = None,
        keep: slice | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """All tokens of a sequence in parallel.

        Args:
            x: tokens (B, N, C).
            state: of the tokens before; None where there are none.
            starts: bool (B, N), True where a new sequence begins. Do not continue from the state then if its size
                grows (Attention, RSA): it still holds the sequences before.
            keep: the positions whose outputs are wanted; all by default.
            lengths: integers (B,), see `run_lengths`: tokens of each row, the rest is padding. `keep` counts in them:
                `slice(-1, None)` is each row's own last position.

        Returns:
            Outputs (B, N or fewer, C) and the state after the last token.
        """
        if lengths is not None or isinstance(state, Ragged):
            return run_lengths(self, x, state, lengths, self.initial_state, starts=starts, keep=keep)
        check_rows(x, state, 3)
        return self.run(x, state, starts, keep)

    def step(self, x: Tensor, state: State, *, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """One token (B, C) with the state of those before: its output (B, C), the new state.

        If `mask`, bool (B,), is False, the output of a row is zeros and its state is unchanged.
        """
        if mask is None and not isinstance(state, Ragged):
            check_rows(x, state, 2)
            return self.run_one(x, state)

        def run(x: Tensor, state: State) -> tuple[Tensor, State]:
            y, after = self.run_one(x.squeeze(1), state)
            return y.unsqueeze(1), after

        present = None if mask is None else torch.as_tensor(mask, dtype=torch.bool)
        y, after = run_lengths(run, x.unsqueeze(1), state, present, self.initial_state)
        return y.squeeze(1), after

    def run(self, x: Tensor, state: State | None, starts: Tensor | None, keep: slice | None) -> tuple[Tensor, State]:
        """`forward` of rows of one length."""
        raise NotImplementedError

    def run_one(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """`step` of all rows."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """The state before any token."""
        raise NotImplementedError


def _in_order(states: Sequence[tuple[Rows, State]]) -> State:
    """Join the states of these rows: `Ragged` if their sizes differ."""
    by_size: dict[Any, list[tuple[Rows, State]]] = {}
    for rows, state in states:
        by_size.setdefault(_size(state), []).append((rows, state))
    parts = []
    for group in by_size.values():
        rows = tuple(row for own, _ in group for row in own)
        order = sorted(range(len(rows)), key=rows.__getitem__)
        whole = group[0][1] if len(group) == 1 else each(torch.cat, [part for _, part in group])
        parts.append((tuple(sorted(rows)), whole if list(rows) == sorted(rows) else select(whole, order)))
    return parts[0][1] if len(parts) == 1 else Ragged(*zip(*parts, strict=True))


def _size(state: State) -> Any:  # noqa: ANN401  whatever can be compared
    """The properties that two states must share to be joined."""
    if isinstance(state, Tensor):
        return state.shape[1:]
    return tuple(_size(part) for part in state) if isinstance(state, tuple) else state


def _numbers(values: Tensor | Sequence[int]) -> list[int]:
    found = torch.as_tensor(values)
    if found.is_floating_point() and found.numel():  # an empty list is one of floats
        raise ValueError(f"expected integers, not {found.dtype}")
    if found.dim() != 1:
        raise ValueError(f"expected one number per row, a shape (B,), not {tuple(found.shape)}")
    return found.long().tolist()
