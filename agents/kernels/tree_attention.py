"""Tree attention's algorithm 1 on the CPU, a query after the other: compiled by Numba on first use.

Buds are sampled in logarithmic time from a binary heap, each inner node of which is the sum of its two children (Vieira
2016). The draws are a function of seed, layer, length and turn, which SplitMix64 (Steele, Lea and Flood 2014) mixes.

Names: rows are queries; S slots for buds, H heads, D channels of a value, F of a key and its features. Buds are, a slot
each, their first token and number of tokens (S,), and the alignments of their keys and features (S, H).
"""

import math

import numpy as np

from . import DECAY, HORIZON, LARGEST, MEAN, POSITIVE, Array, compiled, inlined

GOLDEN, FIRST, SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S11, S27, S30, S31 = (np.uint64(s) for s in (11, 27, 30, 31))


@inlined
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> S30)) * FIRST
    x = (x ^ (x >> S27)) * SECOND
    return x ^ (x >> S31)


@inlined
def _key(state: np.uint64, key: int) -> np.uint64:
    return _mix(state + np.uint64(key) * GOLDEN + GOLDEN)


@compiled("contract", "reassoc", "nsz")
def _align(query: Array, keys: Array, dim: int, plain: Array, featured: Array) -> None:
    """q . k of a block's sum of keys, (H, F), and the same of the features behind the first `dim` channels."""
    for h in range(query.shape[0]):
        q, k, total = query[h], keys[h], 0.0
        for f in range(dim):
            total += q[f] * k[f]
        plain[h], total = total, 0.0
        for f in range(dim, query.shape[1]):
            total += q[f] * k[f]
        featured[h] = total


@inlined
def _block(start: int, tokens: int) -> int:
    """The place of a bud's sum among a sequence's; its number of tokens is a power of two."""
    return 2 * start + tokens - 1


@inlined
def _mass(
    form: int, start: int, tokens: int, length: int, alignment: Array, reference: float, smallest: float
) -> float:
    """The sampler's mass of a bud; none of a single token, which cannot be expanded."""
    if tokens <= 1:
        return 0.0
    total = 1.0
    if form == HORIZON:
        total = DECAY ** float(length - start - tokens) * (1 - DECAY ** float(tokens)) / (1 - DECAY)
    elif form == MEAN:
        total = 0.0
        for h in range(len(alignment)):
            total += math.exp(min(max(alignment[h] / tokens - reference, -2 * LARGEST), 2 * LARGEST))
    elif form == POSITIVE:
        total = 0.0
        for h in range(len(alignment)):
            total += max(alignment[h], 0.0)
    return max(total, smallest)


@inlined
def _put(heap: Array, leaves: int, slot: int, mass: float) -> None:
    """A slot's mass, and the sums above it."""
    at = leaves + slot
    heap[at] = mass
    while at > 1:
        at >>= 1
        heap[at] = heap[2 * at] + heap[2 * at + 1]


@inlined
def _find(heap: Array, leaves: int, left: float) -> int:
    """The slot in which `left`, from 0 to the sum of all masses, falls."""
    at = 1
    while at < leaves:
        at *= 2
        # The second condition: by rounding, more may be left than both children have.
        if left >= heap[at] and heap[at + 1] > 0:
            left -= heap[at]
            at += 1
    return at - leaves


@compiled("contract")
def _take(heap: Array, leaves: int, wanted: int, at_once: int, turn_key: np.uint64, picked: Array) -> None:
    """Samples `wanted` slots without replacement, `at_once` draws at a time."""
    count, attempt = 0, 0
    while count < wanted:
        state, found = _key(turn_key, attempt), count
        for i in range(at_once):
            drawn = _mix(state + np.uint64(i + 1) * GOLDEN) >> S11
            slot = _find(heap, leaves, float(drawn) * 2.0**-53 * heap[1])
            known = count == wanted
            for j in range(found, count):
                known |= picked[j] == slot
            if not known:
                picked[count] = slot
                count += 1
        if count < wanted:  # from here on only what is left can be found
            for j in range(found, count):
                _put(heap, leaves, picked[j], 0.0)
        attempt += 1


@compiled("contract", "reassoc", "nsz")
def _share(alignment: Array, tokens: Array, count: int, shares: Array) -> None:
    """The weight of a token of each of the first `count` buds, (S, H): all tokens' weights add up to 1."""
    for h in range(alignment.shape[1]):
        largest, total = -math.inf, 0.0
        for s in range(count):
            shares[s, h] = alignment[s, h] / tokens[s]
            largest = max(largest, shares[s, h])
        for s in range(count):
            shares[s, h] = math.exp(shares[s, h] - largest)
            total += shares[s, h] * tokens[s]
        for s in range(count):
            shares[s, h] /= total


@compiled("contract", "reassoc", "nsz")
def _sum_up(block: Array, share: Array, newest: Array, out: Array) -> None:
    """Adds a bud's values, (H, D), to the output and takes them from what is left for the newest token's bud."""
    for h in range(block.shape[0]):
        own, rest, to, part = block[h], newest[h], out[h], share[h]
        for d in range(block.shape[1]):
            rest[d] -= own[d]
            to[d] += part * own[d]


@compiled("contract")
def _halve(query: Array, keys: Array, dim: int, own: int, fresh: int, buds: tuple[Array, ...]) -> int:
    """Puts the halves of the bud in slot `own` into it, the right one, and into `fresh`; how many can be halved again.

    The right half stays in its parent's slot, so that the newest token stays in slot 0.
    """
    start, tokens, plain, featured = buds
    half = 1  # the largest power of two that leaves a rest
    while 2 * half < tokens[own]:
        half *= 2
    _align(query, keys[_block(start[own], half)], dim, plain[fresh], featured[fresh])
    start[fresh], tokens[fresh] = start[own], half
    start[own], tokens[own] = start[own] + half, tokens[own] - half
    for h in range(query.shape[0]):
        plain[own, h] -= plain[fresh, h]
        featured[own, h] -= featured[fresh, h]
    return int(tokens[own] > 1) + int(half > 1)


@compiled("contract")
def _output(
    values: Array, total: Array, buds: tuple[Array, ...], count: int, work: tuple[Array, Array], out: Array
) -> None:
    """The output of algorithm 1, (H, D), from the first `count` buds; slot 0 holds the newest token's."""
    (start, tokens, plain, _), (shares, newest) = buds, work
    _share(plain, tokens, count, shares)
    newest[:], out[:] = total, 0.0
    for slot in range(1, count):
        _sum_up(values[_block(start[slot], tokens[slot])], shares[slot], newest, out)
    for h in range(out.shape[0]):
        for d in range(out.shape[1]):
            out[h, d] += shares[0, h] * newest[h, d]


@compiled("contract")
def attend(
    blocks: tuple[Array, Array],
    asked: tuple[Array, ...],
    sampler: tuple[int, bool, float],
    seed: tuple[int, int],
    starts: Array,
    sizes: Array,
    out: Array,
) -> None:
    """Attention of every query row R through T = terms of the tree's blocks.

    Args:
        blocks: sums of keys (B * 2 M, H, F) and of values (B * 2 M, H, D), float64; 2 M places a sequence.
        asked: of each row the first place of its sequence (R,); the scaled query (R, H, F); the sums of the keys
            (R, H, F) and of the values (R, H, D) of all tokens that it sees; their number l, T and P, (R,) each.
        sampler: the form of the masses; whether they are of the features' alignments, or of the plain ones; the mass of
            a bud that could be expanded but has none.
        seed: of the draws, and the layer.
        starts: (R, S), written: the buds' first tokens.
        sizes: (R, S), written: their tokens; 0 where there is no bud.
        out: (R, H, D), written.
    """
    (keys, values), (form, by_features, smallest) = blocks, sampler
    base, queries, key_totals, value_totals, lengths, terms, at_once = asked
    heads, dim, slots = queries.shape[1], values.shape[2], starts.shape[1]
    leaves = 2
    while leaves < slots:
        leaves *= 2
    heap, picked = np.zeros(2 * leaves), np.empty(slots, np.int64)
    plain, featured = np.empty((slots, heads)), np.empty((slots, heads))
    work = np.empty((slots, heads)), np.empty((heads, dim))
    alignment = featured if by_features else plain
    for r in range(len(lengths)):
        start, tokens, length = starts[r], sizes[r], lengths[r]
        buds = start, tokens, plain, featured
        own_keys, own_values = keys[base[r] :], values[base[r] :]
        start[:], tokens[:] = 0, 0
        heap[:] = 0.0
        tokens[0] = length
        _align(queries[r], key_totals[r], dim, plain[0], featured[0])
        reference = np.max(alignment[0]) / length
        if not np.isfinite(reference):  # no slot could be drawn: the loop below would not end
            out[r] = np.nan
            continue
        _put(heap, leaves, 0, _mass(form, 0, length, length, alignment[0], reference, smallest))
        row_key = _key(_key(_key(np.uint64(0), seed[0]), seed[1]), length)
        count, turn, expandable = 1, 0, int(length > 1)
        while count < terms[r]:
            wanted = min(at_once[r], terms[r] - count, expandable)
            _take(heap, leaves, wanted, at_once[r], _key(row_key, turn), picked)
            for i in range(wanted):
                own, fresh = picked[i], count + i
                expandable += _halve(queries[r], own_keys, dim, own, fresh, buds) - 1
                for slot in (own, fresh):
                    mass = _mass(form, start[slot], tokens[slot], length, alignment[slot], reference, smallest)
                    _put(heap, leaves, slot, mass)
            count, turn = count + wanted, turn + 1
        _output(own_values, value_totals[r], buds, count, work, out[r])
