"""The sampler of a training context, by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...envs import Episodes
from ...policies.names import AUTO
from ..config import RunConfig
from .batches import EpisodeSampler, MixedSampler, Sampler, StepData, WindowSampler
from .stream import StreamSampler

# Whole episodes that an update must hold, to the next number: one alone is too few situations to learn from at once;
# from two on, a gradient that goes back to an episode's begin is worth more than more episodes (docs/results.md).
ENOUGH_EPISODES = 2


def settle_context(config: RunConfig, episodes: Episodes) -> RunConfig:
    """`config` with the context that suits the data where it says "auto".

    Whole episodes, or a stream where an update would hold one of them alone; windows for an agent whose state grows.

    Args:
        config: of a run.
        episodes: those that it is trained on.
    """
    if config.data.context != AUTO:
        return config
    held = round(config.data.steps_per_update * len(episodes) / episodes.n_steps)
    context = "episode" if held >= ENOUGH_EPISODES else "stream"
    if not config.constant_state:
        context = "window"
    return replace(config, data=replace(config.data, context=context))


def make_sampler(context: str, data: StepData, *, context_length: int, horizon: int, steps: int) -> Sampler:
    """The sampler of a context.

    Args:
        context: a name in CONTEXTS.
        data: the steps.
        context_length: steps a row, for "window" and "stream".
        horizon: the longest stretch in steps, for "mixed".
        steps: environment steps an update.
    """
    samplers: dict[str, Callable[[], Sampler]] = {
        "window": lambda: WindowSampler(data, context_length, steps),
        "episode": lambda: EpisodeSampler(data, steps),
        "mixed": lambda: MixedSampler(data, horizon, steps),
        "stream": lambda: StreamSampler(data, context_length, steps),
    }
    return samplers[context]()
