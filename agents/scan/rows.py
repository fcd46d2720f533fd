"""The rows of a batch: select and join states, and run sequences of different lengths in one batch.

A state is a tensor or a tuple of states, and the batch is the first dimension of all its tensors. So a few functions
serve the states of every module. Padding is never computed: sequences of one length run together, without it.

Shape suffixes: B batch, N tokens, C channels.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = Any  # a tensor or a tuple of states; a module knows its own


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
    return each(lambda parts: parts[0][wanted], [state])


def join(states: Iterable[State]) -> State:
    """The states of several batches of one module as that of a single one, in their order: undoes `select`.

    Raises ValueError if there are none, or if their sizes differ, as those of key-value caches of other lengths.
    """
    parts = list(states)
    if not parts:
        raise ValueError("there are no states to join")
    if any(_size(part) != _size(parts[0]) for part in parts):
        raise ValueError(
            "states of different sizes cannot be joined: the state of this module grows with its tokens, so its "
            "sequences must have equally many"
        )
    return parts[0] if len(parts) == 1 else each(torch.cat, parts)


def state_bytes(state: State) -> int:
    """The size of a state in bytes."""
    return sum(part.numel() * part.element_size() for part in tensors(state))


class RowModule(nn.Module):
    """A sequence module whose rows may be of different lengths; a subclass has `run`, `run_one` and `initial_state`."""

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        starts: Tensor | None = None,
        keep: slice | None = None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> tuple[Tensor, State]:
        """All tokens of a sequence in parallel.

        Args:
            x: tokens (B, N, C).
            state: of the tokens before; None where there are none.
            starts: bool (B, N), True where a new sequence begins. Do not continue from the state then if its size
                grows (Attention, RSA): it still holds the sequences before.
            keep: the positions whose outputs are wanted; all by default.
            lengths: integers (B,), from 0 to N: tokens of each row, the rest is padding. Outputs in it are zeros, and
                the state is that after a row's own tokens. `keep` counts in them: `slice(-1, None)` is each row's own
                last position. No `starts` beside it.

        Returns:
            Outputs (B, N or fewer, C) and the state after the last token.

        Raises:
            ValueError: tokens, a state or lengths of other shapes; or lengths that differ, of a module whose state
                grows: padding on the right reaches no output before it, so leave them out.
        """
        check_rows(x, state, 3)
        if lengths is None:
            return self.run(x, state, starts, keep)
        if starts is not None:
            raise ValueError("starts go with rows of one length, and with a state of one size")
        return self._run_lengths(x, state, row_lengths(lengths, x), keep)

    def step(self, x: Tensor, state: State, *, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """One token (B, C) with the state of those before: its output (B, C), the new state.

        If `mask`, bool (B,), is False, the output of a row is zeros and its state is unchanged. Raises ValueError for a
        mask where the size of the state grows: step all rows, and leave out the outputs that are not wanted.
        """
        check_rows(x, state, 2)
        y, after = self.run_one(x, state)
        return (y, after) if mask is None else masked(y, after, state, mask)

    def run(self, x: Tensor, state: State | None, starts: Tensor | None, keep: slice | None) -> tuple[Tensor, State]:
        """`forward` of rows of one length."""
        raise NotImplementedError

    def run_one(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """`step` of all rows."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """The state before any token."""
        raise NotImplementedError

    def _run_lengths(
        self, x: Tensor, state: State | None, counts: list[int], keep: slice | None
    ) -> tuple[Tensor, State]:
        batch, most = x.shape[:2]
        longest = most if keep is None else len(range(most)[keep])
        outputs, states, order = [], [], []
        for count in dict.fromkeys(counts):  # one pass per length
            rows = [row for row, n in enumerate(counts) if n == count]
            y, own = x[rows, :0], self.initial_state(len(rows)) if state is None else select(state, rows)
            if count:
                y, own = self.run(x[rows, :count], None if state is None else own, None, keep)
            outputs.append(nn.functional.pad(y, (0, 0, 0, longest - y.shape[1])))
            states.append(own)
            order += rows
        if not batch:
            return x[:, :longest], self.initial_state(0) if state is None else state
        back = torch.tensor(order, device=x.device).argsort()
        return torch.cat(outputs)[back], select(join(states), back)


def row_lengths(lengths: Tensor | Sequence[int], x: Tensor) -> list[int]:
    """The numbers of tokens of the rows of x (B, N, C); ValueError unless they are B integers from 0 to N."""
    counts, (batch, most) = _numbers(lengths), x.shape[:2]
    if len(counts) != batch or not all(0 <= n <= most for n in counts):
        raise ValueError(f"lengths must be {batch} numbers from 0 to {most}, not {counts}")
    return counts


def masked(y: Tensor, after: State, before: State, mask: Tensor) -> tuple[Tensor, State]:
    """Outputs (B, ...) of zeros, and the state before, in the rows where `mask`, bool (B,), is False."""
    present = torch.as_tensor(mask, dtype=torch.bool, device=y.device)
    if present.shape != y.shape[:1]:
        raise ValueError(f"mask must be {len(y)} booleans, not of the shape {tuple(present.shape)}")
    if _size(after) != _size(before):
        raise ValueError("mask: the state of this module grows with every token, so every row must have one")

    return where(present, y, torch.zeros_like(y)), where(present, after, before)


def where(chosen: Tensor, part: State, other: State) -> State:
    """Rows of one part of a state if `chosen`, bool (B,), of another otherwise."""
    return each(lambda pair: torch.where(chosen.view(-1, *[1] * (pair[0].dim() - 1)), pair[0], pair[1]), [part, other])


def _size(state: State) -> Any:  # whatever can be compared
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
