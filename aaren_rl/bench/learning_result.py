"""What the benchmark "learning" measures."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine import Machine


@dataclass(frozen=True)
class Point:
    """The error after some updates, which took some seconds."""

    updates: int
    seconds: float
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A recipe's errors; `seconds_to` and `updates_to` the error asked for, None where it did not come down to it."""

    recipe: str
    points: list[Point]
    seconds_to: float | None
    updates_to: float | None


@dataclass(frozen=True)
class LearningResult:
    """The outcome of `run`: errors are in units in which actions span [-1, 1].

    Attributes:
        env: the task.
        source: of its data.
        steps: trained on.
        held_out_episodes: not trained on.
        held_out_steps: likewise.
        floor: variance of the behaviour's own noise on the held-out steps; None where it is not known.
        trivial: the error of the training data's mean action: what a policy that learnt nothing has.
        error: asked for.
        seed: of weights, batches and of which episodes are held out.
        curves: by recipe.
        machine: what it ran on.
        threads: of torch.
    """

    env: str
    source: str
    steps: int
    held_out_episodes: int
    held_out_steps: int
    floor: float | None
    trivial: float
    error: float
    seed: int
    curves: list[Curve]
    machine: Machine
    threads: int
