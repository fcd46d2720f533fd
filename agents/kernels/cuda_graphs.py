"""CUDA graphs: what a function launches, recorded once, so that a replay launches it all at once.

A function to be recorded launches the same at every call, waits for nothing, and has been called before, on a stream of
its own: libraries are loaded in the first calls, and memory is asked for.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

EAGER = 2  # calls before one is recorded
Result = TypeVar("Result")


def call_aside(function: Callable[[], Result]) -> Result:
    """The function's result, launched on a stream of its own; what is launched next comes after it."""
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        result = function()
    here.wait_stream(aside)
    return result


def capture(
    function: Callable[[], Result], generator: torch.Generator | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph, and the function's result, which every replay writes over.

    Args:
        function: as the module says.
        generator: what it draws by, besides the device's default one; a CPU's is not drawn by inside of it.
    """
    graph = torch.cuda.CUDAGraph()
    if generator is not None and generator.device.type == "cuda":
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def record(function: Callable[[], Result]) -> Callable[[], Result]:
    """What replays a function of no arguments; its results are written over by the next replay."""
    for _ in range(EAGER):
        call_aside(function)
    graph, result = capture(function)

    def replay() -> Result:
        graph.replay()
        return result

    return replay
