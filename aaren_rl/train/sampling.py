"""The sampler of a training context, by its name."""

from __future__ import annotations

from typing import TypeAlias

from ..policies.names import CONTEXTS
from .batches import EpisodeSampler, MixedSampler, StepData, WindowSampler
from .stream import StreamSampler

Sampler: TypeAlias = WindowSampler | EpisodeSampler | MixedSampler | StreamSampler


def make_sampler(context: str, data: StepData, *, context_length: int, horizon: int, steps: int) -> Sampler:
    """The sampler of a context.

    Args:
        context: a name in CONTEXTS.
        data: the steps.
        context_length: K, steps a row, for "window" and "stream".
        horizon: the longest stretch in steps, for "mixed".
        steps: environment steps an update.

    Raises:
        ValueError: unknown context.
    """
    if context == "window":
        return WindowSampler(data, context_length, steps)
    if context == "episode":
        return EpisodeSampler(data, steps)
    if context == "mixed":
        return MixedSampler(data, horizon, steps)
    if context == "stream":
        return StreamSampler(data, context_length, steps)
    raise ValueError(f"context {context!r} is not one of {', '.join(CONTEXTS)}")
