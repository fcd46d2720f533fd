"""Tree attention in the place of a trained model's softmax attention, at rollout.

*High Attention Scores And Where To Find Them* (Menet, Choi, de Viragh, Chettata), algorithm 1, over keys and values in
a binary tree of block sums (sections 2.1, 2.2 and 2.4), which `kernels/tree_attention.py` looks into. A node
holds the sum of the keys and of the values of a block of neighboring tokens (equation 1). Algorithm 1 keeps a set of
disjoint blocks, the buds; it replaces one by its halves until there are T of them, and then gives every token of a bud
the same score, the mean of their true ones (so the geometric mean of the attention weights). With as many buds as
tokens this is softmax attention.

Where the paper's text leaves something open, or is misprinted:

* Any number of tokens. Only blocks of 2^h tokens that begin at a multiple of 2^h are stored, each written once, when
  its last token arrives. The one bud that need not be such a block holds the newest token: it is what the others leave
  of the whole, by equation (2) for keys and likewise for values. Its left half is always a stored block.
* The weights of the leaves add up to 1: a bud of |n| tokens counts |n| times in the denominator too. As algorithm 1 is
  printed, it counts once, and a constant value would not come out as itself.
* Sums and alignments are float64: a leaf's alignment comes from its block's by subtraction, and float32 would leave the
  error of the whole sum in the one score.

A sampler says which bud is expanded next, by the probability masses of section 2.3. Masses are not normalized, and are
sums over the heads (section 2.4). A sampler may transform queries and keys, each scaled by D^(-1/4), to features; the
sum of <phi(q), phi(k)> over a bud's tokens is then its transformed alignment. As printed, equations (4) and (7) have
-(x)+ as their second half; equation (4)'s own right-hand side and the kernel of equation (8) follow from (-x)+, which
is meant. The sum in equation (3) runs from l - t - 1 to l - s - 1.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head, K features (R in the paper), F = D +
K, R = B N rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ...base.fields import Range, check_limits, setting
from .. import kernels
from ..kernels import HORIZON, LARGEST, MEAN, POSITIVE, UNIFORM
from .attention import Attention
from .base import Mixer

DTYPE = torch.float64
SMALLEST = 1e-290  # mass of a bud that could be expanded but has none: chosen where no other is left


Phi: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]  # x, its part along every direction, and K, to features


class Sampler:
    """Which bud is expanded next: the form of the masses, and the features of queries and keys that they are of.

    Args:
        dim: D; there are K = 2 D features, as in the paper's experiments, or none.
        generator: of random directions.
        form: of the masses, which `kernels/tree_attention.py` computes: UNIFORM, HORIZON, MEAN or POSITIVE.
        phi: makes the features, whose alignments the masses are then of.
        lengths: "chi" or "equal", of D random directions that are orthogonal: each is standard normal, or all are of
            length sqrt(D); None: there are none.
    """

    def __init__(
        self, dim: int, generator: torch.Generator, form: int, phi: Phi | None = None, lengths: str | None = None
    ) -> None:
        self.form, self.phi, self.by_features = form, phi, phi is not None
        self.features = 2 * dim if self.by_features else 0
        self.directions: Tensor | None = None
        if lengths is not None:
            size = torch.full((1, 1), math.sqrt(dim), dtype=DTYPE)
            if lengths == "chi":
                size = torch.randn(dim, dim, generator=generator, dtype=DTYPE).square().sum(1, keepdim=True).sqrt()
            q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=DTYPE))
            # Uniform (Haar): QR's signs alone depend on its algorithm.
            self.directions = size * (q * r.diagonal().sign())

    def transform(self, x: Tensor) -> Tensor:
        """phi of a query or key, (..., D) -> (..., K)."""
        if self.phi is None:
            return x[..., :0]
        along = x if self.directions is None else x.to(DTYPE) @ self.directions.T
        return self.phi(x, along, self.features)


def _parts(x: Tensor, along: Tensor, count: int) -> Tensor:
    return torch.cat([along.clamp(min=0), (-along).clamp(min=0)], -1)  # the positive and the negative one


def _fourier(x: Tensor, along: Tensor, count: int) -> Tensor:
    size = (x.to(DTYPE).square().sum(-1, keepdim=True) / 2).clamp(max=LARGEST).exp()
    return torch.cat([along.sin(), along.cos()], -1) * size / math.sqrt(count / 2)


def _hyperbolic(x: Tensor, along: Tensor, count: int) -> Tensor:
    size = x.to(DTYPE).square().sum(-1, keepdim=True) / 2
    return (torch.cat([along, -along], -1) - size).clamp(max=LARGEST).exp() / math.sqrt(count)


def _rectified(x: Tensor, along: Tensor, count: int) -> Tensor:
    return _parts(x, along, count) / math.sqrt(count)


SAMPLERS: dict[str, Callable[[int, torch.Generator], Sampler]] = {
    # The unselective baseline: every bud has the same mass.
    "uniform": partial(Sampler, form=UNIFORM),
    # Exponentially decaying horizon, equation (3): a token that is k tokens old has the mass b^k.
    "edh": partial(Sampler, form=HORIZON),
    # The geometric mean of the bud's attention weights, exp(A_n / |n|).
    "align": partial(Sampler, form=MEAN),
    # Equation (4): exp of the mean of what is positive in the inner products, the sum of the positive q_i k_i.
    "pos-align": partial(Sampler, form=MEAN, phi=_parts),
    # Random Fourier features, equation (5): an unbiased estimate of exp(q . k) that may be negative. Of this and the
    # next two the mass is the positive part of the features' sum.
    "rff": partial(Sampler, form=POSITIVE, phi=_fourier, lengths="chi"),
    # FAVOR+, equation (6): positive hyperbolic features, an unbiased estimate of exp(q . k).
    "favor": partial(Sampler, form=POSITIVE, phi=_hyperbolic, lengths="chi"),
    # FAVOR+ReLU, equation (7): a kernel that grows with the norms and with the cosine of the angle.
    "favor-relu": partial(Sampler, form=POSITIVE, phi=_rectified, lengths="equal"),
}


class TreeState(NamedTuple):
    """The blocks of B sequences of one length, all heads in one tree, in the processor's memory.

    A value, though it shares the memory of its blocks with its successor.

    Attributes:
        keys, values: sums of keys and their features (B, 2 M, H, F), and of values (B, 2 M, H, D), M a power of two and
            at least `length`; the block of c tokens that begins with token s is in row 2 s + c - 1, between its halves.
        key_total, value_total: sums over all tokens, (B, H, F) and (B, H, D).
        written: tokens that are in the shared memory, (B,), of this state or one that followed it.
        length: tokens in this state.
    """

    keys: Tensor
    values: Tensor
    key_total: Tensor
    value_total: Tensor
    written: Tensor
    length: int

    @staticmethod
    def empty(batch: int, heads: int, key_dim: int, dim: int) -> TreeState:
        """The tree before any token."""
        keys, values = (torch.zeros(batch, 2, heads, size, dtype=DTYPE) for size in (key_dim, dim))
        totals = torch.zeros_like(keys[:, 0]), torch.zeros_like(values[:, 0])
        return TreeState(keys, values, *totals, torch.zeros(batch, dtype=torch.long), 0)

    def append(self, keys: Tensor, values: Tensor) -> TreeState:
        """The tree with one more token, keys (B, H, F) and values (B, H, D): two blocks are written on average."""
        state = self._writable()
        for nodes, token in ((state.keys, keys), (state.values, values)):
            row, half = 2 * self.length, 1
            nodes[:, row] = token.to(DTYPE)
            while (self.length + 1) % (2 * half) == 0:
                row -= half
                nodes[:, row] = nodes[:, row - half] + nodes[:, row + half]
                half *= 2
        state.written.fill_(self.length + 1)
        return state._replace(
            key_total=self.key_total + keys, value_total=self.value_total + values, length=self.length + 1
        )

    def _writable(self) -> TreeState:
        full = 2 * self.length == self.keys.shape[1]
        if not full and bool((self.written == self.length).all()):
            return self
        keys, values = (
            torch.cat([nodes, torch.zeros_like(nodes)], 1) if full else nodes.clone()
            for nodes in (self.keys, self.values)
        )
        return self._replace(keys=keys, values=values, written=self.written.clone())


@dataclass(frozen=True)
class TreeConfig:
    """How tree attention is computed; raises ValueError naming the field that does not fit.

    Attributes:
        budget: E; with l tokens, attention is approximated by T = ceil(l^E) terms. 1 is exact.
        sampler: a name in SAMPLERS.
        seed: of the samples; the same seed gives the same output.
    """

    budget: float = setting(0.5, limits=Range(0, 1))
    sampler: str = "edh"
    seed: int = setting(0, limits=Range(0, 2**63 - 1))

    def __post_init__(self) -> None:
        check_limits(self)
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler {self.sampler!r} is not one of {', '.join(SAMPLERS)}")

    def __str__(self) -> str:
        return f"tree attention, E = {self.budget:g}, sampler {self.sampler}, seed {self.seed}"

    def terms(self, length: int) -> int:
        """T = ceil(l^E)."""
        # Rounded first: 1000^(1/3) is 9.99...98, and 1000^1 must not become 1001.
        return min(length, math.ceil(round(math.pow(length, self.budget), 9)))

    def at_once(self, length: int) -> int:
        """P = 2^floor(log2 l^(E/2)): buds expanded at once (section 3, with the tokens so far for L)."""
        return 1 << math.floor(math.log2(length) * self.budget / 2 + 1e-9)


class TreeAttention(Mixer):
    """The mixer contract of `Attention`, with its weights, for evaluation; raises ValueError without Numba.

    Args:
        attention: the trained mixer; its weights are used, not copied.
        config: budget, sampler and seed.
        layer: the block's number: every block draws samples of its own.
    """

    def __init__(self, attention: Attention, config: TreeConfig, layer: int = 0) -> None:
        super().__init__()
        if not kernels.INSTALLED["numba"]:
            raise ValueError("tree attention is computed by Numba: pip install numba")
        self.attention, self.config = attention, config
        self._seed = (config.seed, layer)
        digest = hashlib.blake2b(repr(self._seed).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        self.sampler = SAMPLERS[config.sampler](attention.head_dim, generator)

    @torch.no_grad()
    def run(
        self, x: Tensor, state: TreeState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, TreeState]:
        if starts is not None:
            raise ValueError("tree attention is for rollout: one sequence a row")
        mixer = self.attention
        layers = mixer.query, mixer.key, mixer.value
        query, key, value = (mixer.split(layer(x)).transpose(1, 2).cpu() for layer in layers)
        keys, states = self._with_features(key), [self.initial_state(len(x)) if state is None else state]
        for n in range(x.shape[1]):
            states.append(states[-1].append(keys[:, n], value[:, n]))
        state, seen = states[-1], states[1:][keep if keep is not None else slice(None)]
        query = query if keep is None else query[:, keep]
        queries = torch.cat([query / math.sqrt(mixer.head_dim), self._features(query)], -1)
        totals = torch.stack([s.key_total for s in seen], 1), torch.stack([s.value_total for s in seen], 1)
        mixed, _, _ = self.attend(state, queries, *totals, torch.tensor([s.length for s in seen]))
        return mixer.output(mixed.unflatten(0, (len(x), -1)).flatten(-2).to(x.device, value.dtype)), state

    def run_one(self, x: Tensor, state: TreeState) -> tuple[Tensor, TreeState]:
        y, state = self.run(x.unsqueeze(1), state, None, None)
        return y.squeeze(1), state

    def initial_state(self, batch_size: int) -> TreeState:
        heads, dim = self.attention.heads, self.attention.head_dim
        return TreeState.empty(batch_size, heads, dim + self.sampler.features, dim)

    def attend(
        self, state: TreeState, queries: Tensor, key_totals: Tensor, value_totals: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Algorithm 1: the outputs of R = B N queries, query n of which sees the first l_n tokens of those in `state`.

        Takes the scaled queries and the sums of the first l_n keys, with features (B, N, H, F), those of values
        (B, N, H, D), and l_n, (N,). Returns outputs (R, H, D), and every bud's first token and size, (R, S), 0: no bud.
        """
        batch, count = queries.shape[:2]
        base, seen = torch.arange(batch).repeat_interleave(count) * state.keys.shape[1], lengths.repeat(batch)
        counts = (self.config.terms, self.config.at_once)
        terms, at_once = (torch.tensor([of(n) for n in seen.tolist()]) for of in counts)
        starts, sizes = (torch.empty(len(seen), int(terms.max()) + 1, dtype=torch.long) for _ in range(2))
        out = torch.empty(len(seen), *value_totals.shape[2:], dtype=DTYPE)
        of_rows = base, *(x.to(DTYPE).flatten(0, 1) for x in (queries, key_totals, value_totals)), seen, terms, at_once
        kernels.load("tree_attention").attend(
            tuple(nodes.flatten(0, 1).numpy() for nodes in (state.keys, state.values)),
            tuple(part.contiguous().numpy() for part in of_rows),
            (self.sampler.form, self.sampler.by_features, SMALLEST),
            self._seed,
            *(part.numpy() for part in (starts, sizes, out)),
        )
        return out, starts, sizes

    def _features(self, x: Tensor) -> Tensor:
        return self.sampler.transform(x * self.attention.head_dim**-0.25)

    def _with_features(self, key: Tensor) -> Tensor:
        return torch.cat([key, self._features(key)], -1)


def plant_trees(trunk: nn.Module, config: TreeConfig) -> None:
    """Puts `TreeAttention` in the place of every block's `Attention`; raises ValueError where there is none."""
    for layer, block in enumerate(trunk.get_submodule("blocks").children()):
        if not isinstance(mixer := block.get_submodule("mixer"), Attention):
            raise ValueError("tree attention takes the place of softmax attention, and this model has none")
        block.register_module("mixer", TreeAttention(mixer, config, layer))
