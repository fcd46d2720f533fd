"""Tree attention in the place of a trained model's softmax attention, at rollout.

*High Attention Scores And Where To Find Them* (Menet, Choi, de Viragh, Chettata), algorithm 1.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head, F = D + features, R = B N rows.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial

import torch
from torch import Tensor, nn

from ... import kernels
from ...kernels.draws import uniforms
from ..attention import Attention, AttentionState
from ..base import Mixer
from .blocks import DTYPE, Buds, TreeState, View
from .config import TreeConfig
from .samplers import SAMPLERS, Uniform
from .sum_heap import SumHeap

SMALLEST = 1e-290  # mass of a bud that could be expanded but has none: chosen where no other is left


class TreeAttention(Mixer):
    """The mixer contract of `Attention`, with its weights, for evaluation; the state is a tree of block sums.

    Args:
        attention: the trained mixer; its weights are used, not copied.
        config: budget, sampler and seed.
        layer: the block's number: every block draws samples of its own.
    """

    def __init__(self, attention: Attention, config: TreeConfig, layer: int = 0) -> None:
        """Draws the sampler's random features from the seed."""
        super().__init__()
        self.attention, self.config = attention, config
        self._seed = (config.seed, layer)
        generator = _generator(*self._seed)
        self.sampler: Uniform = SAMPLERS[config.sampler](attention.head_dim, generator)

    @torch.no_grad()
    def run(
        self, x: Tensor, state: TreeState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, TreeState]:
        """`forward` of rows of one length; raises ValueError for `starts`: these are for training."""
        if starts is not None:
            raise ValueError("tree attention is for rollout: one sequence a row")
        mixer = self.attention
        query, key, value = (
            layer(x).unflatten(-1, (mixer.heads, mixer.head_dim)) for layer in (mixer.query, mixer.key, mixer.value)
        )
        state = self.initial_state(len(x)) if state is None else state
        keys, root = self._with_features(key), mixer.head_dim**-0.25
        totals, first = [], state.length
        for n in range(x.shape[1]):
            state = state.append(keys[:, n], value[:, n])
            totals.append((state.key_total, state.value_total))
        wanted = torch.arange(x.shape[1])[keep if keep is not None else slice(None)]
        query = query[:, wanted]
        queries = torch.cat([query / math.sqrt(mixer.head_dim), self.sampler.transform_query(query * root)], -1)
        key_totals, value_totals = (torch.stack([totals[n][i] for n in wanted.tolist()], 1) for i in (0, 1))
        view = View(state, queries, key_totals, value_totals, (first + 1 + wanted).to(x.device))
        mixed = self.attend(view)[0].unflatten(0, (len(x), -1)).flatten(-2)
        return mixer.output(mixed.to(value.dtype)), state

    def run_one(self, x: Tensor, state: TreeState) -> tuple[Tensor, TreeState]:
        """`step` of all rows."""
        y, state = self.run(x.unsqueeze(1), state, None, None)
        return y.squeeze(1), state

    def initial_state(self, batch_size: int) -> TreeState:
        """The tree before any token."""
        heads, dim = self.attention.heads, self.attention.head_dim
        device = self.attention.key.weight.device
        return TreeState.empty(batch_size, heads, dim + self.sampler.features, dim, device)

    def from_cache(self, cache: AttentionState) -> TreeState:
        """The tree of the tokens in a key-value cache."""
        state = self.initial_state(len(cache.keys))
        keys, values = self._with_features(cache.keys.transpose(1, 2)), cache.values.transpose(1, 2)
        for n in range(keys.shape[1]):
            state = state.append(keys[:, n], values[:, n])
        return state

    def attend(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (R, H, D) of algorithm 1, and the first token and the number of tokens of every bud, (R, S).

        On the CPU compiled, draw for draw what `expand` and `View.mix` do elsewhere.
        """
        if view.lengths.device.type != "cpu" or not kernels.available("numba"):
            buds = self.expand(view)
            return view.mix(buds), buds.start, buds.tokens
        terms, at_once = self._counts(view)
        rows, heads, dim = view.value_totals.shape
        starts, sizes = (torch.empty(rows, int(terms.max()) + 1, dtype=torch.long) for _ in range(2))
        out, sampler, tree = (
            torch.empty(rows, heads, dim, dtype=DTYPE),
            self.sampler,
            kernels.load_kernels("tree_attention"),
        )
        tree.attend(
            *(part.numpy() for part in (view.keys, view.values)),
            view.rows,
            *(part.contiguous().numpy() for part in (view.base[:, 0], view.queries, view.key_totals[:, 0])),
            *(part.contiguous().numpy() for part in (view.value_totals, view.lengths[:, 0], terms, at_once)),
            sampler.form,
            sampler.by_features,
            SMALLEST,
            *self._seed,
            *(part.numpy() for part in (starts, sizes, out)),
        )
        return out, starts, sizes

    def _counts(self, view: View) -> tuple[Tensor, Tensor]:
        """T and P of every row."""
        lengths, device = view.lengths[:, 0].tolist(), view.lengths.device
        counts = (self.config.terms, self.config.at_once)
        terms, at_once = (torch.tensor([count(n) for n in lengths], device=device) for count in counts)
        return terms, at_once

    def expand(self, view: View) -> Buds:
        """Algorithm 1: the buds of every query, P expanded at once (section 2.4)."""
        terms, at_once = self._counts(view)
        lengths, device = view.lengths[:, 0], view.lengths.device
        slots, most = int(terms.max()) + 1, int(at_once.max())
        buds = view.root(slots)  # the last slot is never a bud: it takes what is not expanded
        root = buds.gather(torch.zeros_like(view.lengths))
        heap = SumHeap(len(lengths), slots, device)
        heap.put(torch.zeros_like(view.lengths), self._masses(root, root))
        size, turn = torch.ones_like(terms), 0
        while bool((size < terms).any()):
            expandable = (buds.tokens[:, :-1] > 1).sum(1)
            wanted = torch.minimum(torch.minimum(at_once, terms - size), expandable)
            picked = heap.take(wanted, at_once, partial(uniforms, most, *self._seed, lengths, turn))
            rank = torch.arange(most, device=device)
            chosen = rank < wanted.unsqueeze(1)
            left, right = view.halves(buds.gather(picked))
            fresh = (size.unsqueeze(1) + rank).where(chosen, heap.nowhere)
            # The right half takes its parent's slot, so that the newest token stays in slot 0.
            children = right.beside(left)
            place = torch.cat([picked, fresh], 1)
            buds.put(place, children)
            heap.put(place, self._masses(children, root) * chosen.repeat(1, 2))
            buds.start[:, -1] = buds.tokens[:, -1] = 0
            size, turn = size + wanted, turn + 1
        return buds

    def _masses(self, buds: Buds, root: Buds) -> Tensor:
        """The sampler's masses; none for a single token, which cannot be expanded."""
        return self.sampler.masses(buds, root).clamp(min=SMALLEST) * (buds.tokens > 1)

    def _with_features(self, key: Tensor) -> Tensor:
        return torch.cat([key, self.sampler.transform_key(key * self.attention.head_dim**-0.25)], -1)


def plant_trees(trunk: nn.Module, config: TreeConfig) -> None:
    """Puts `TreeAttention` in the place of every block's `Attention`; what is no `Attention` stays."""
    for layer, block in enumerate(trunk.get_submodule("blocks").children()):
        if isinstance(mixer := block.get_submodule("mixer"), Attention):
            block.register_module("mixer", TreeAttention(mixer, config, layer))


def _generator(*parts: int) -> torch.Generator:
    """A stream of random numbers for these integers alone."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
