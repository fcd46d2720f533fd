"""The benchmark "evaluate": what the policy adds to the time that the simulation takes by itself.

The actions of an evaluation are kept and played again without the policy; the returns must be the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..agents import DecisionModel, ModelConfig, Policy, PolicyState
from ..cli import Parser, positive
from ..envs import Rollouts, get_task, rollout
from ..errors import NumericsError
from ..machine import Machine
from ..policies.folder import load_policy, read_card
from ..policies.names import asked_number
from .timing import WRONG, ratio

TASK = get_task("hopper-medium")
SEED = 1000
DIFFERENT = f"the same actions gave other episodes; {WRONG}"

HELP = "time of an evaluation beside that of the simulation alone"
DESCRIPTION = """\
Plays episodes with a policy, then steps the same environments with the same actions and no policy, on as many
processes, in turns; medians."""
EPILOG = """\
example:
  python -m aaren_rl.bench evaluate runs/hopper-medium/decision-aaren/seed0 --threads 2

Without a run the policy is an untrained one of the default preset's size in Hopper-v4, which falls soon."""


@dataclass(frozen=True)
class Asked:
    """What is evaluated."""

    policy: Policy
    name: str
    env_id: str
    env_kwargs: dict[str, Any]
    target_return: float


@dataclass(frozen=True)
class EvaluateResult:
    """Medians over the repeats.

    Attributes:
        name: the policy's.
        episodes: B.
        steps: of all episodes together.
        evaluation_seconds: with the policy.
        policy_seconds: of these, in the policy.
        simulation_seconds: with the actions known beforehand.
        ratio: evaluation over simulation, median over the repeats.
        machine: what it was measured on.
    """

    name: str
    episodes: int
    steps: int
    evaluation_seconds: float
    policy_seconds: float
    simulation_seconds: float
    ratio: float
    machine: Machine


class _Recorder:
    """A policy whose actions are kept, call by call."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.rows_independent = policy, policy.rows_independent
        self.calls: list[npt.NDArray[np.float32]] = []

    def initial_state(self, batch_size: int, target_return: npt.NDArray[np.float64]) -> PolicyState:
        return self._policy.initial_state(batch_size, target_return)

    def act(
        self, observation: npt.NDArray[np.float32], reward: npt.NDArray[np.float32], state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        action, state = self._policy.act(observation, reward, state)
        self.calls.append(action)
        return action, state

    def select(self, state: PolicyState, rows: npt.NDArray[np.int64]) -> PolicyState:
        return self._policy.select(state, rows)


class _Replay:
    """Hands the kept actions out again; as the episodes are the same, so are the calls."""

    def __init__(self, recorder: _Recorder) -> None:
        self._calls, self.rows_independent = iter(recorder.calls), recorder.rows_independent

    def initial_state(self, batch_size: int, target_return: npt.NDArray[np.float64]) -> None:
        return None

    def act(
        self, observation: npt.NDArray[np.float32], reward: npt.NDArray[np.float32], state: None
    ) -> tuple[npt.NDArray[np.float32], None]:
        actions = next(self._calls, None)
        if actions is None or len(actions) != len(observation):
            raise NumericsError(DIFFERENT)
        return actions, None

    def select(self, state: None, rows: npt.NDArray[np.int64]) -> None:
        return None


def measure_evaluate(asked: Asked, episodes: int, repeats: int) -> EvaluateResult:
    """Times both in turns.

    Raises:
        NumericsError: the same actions gave other episodes.
        SimulationError: the environment fails.
    """

    def play(policy: Any) -> tuple[float, Rollouts]:  # noqa: ANN401  either policy
        return _timed(
            lambda: rollout(
                policy,
                asked.env_id,
                episodes=episodes,
                target_return=asked.target_return,
                seed=SEED,
                env_kwargs=asked.env_kwargs,
            )
        )

    evaluations, simulations = [], []
    for _ in range(repeats):
        recorder = _Recorder(asked.policy)
        evaluations.append(play(recorder))
        simulations.append(play(_Replay(recorder)))
        if not np.array_equal(evaluations[-1][1].returns, simulations[-1][1].returns):
            raise NumericsError(DIFFERENT)
    return EvaluateResult(
        name=asked.name,
        episodes=episodes,
        steps=int(evaluations[-1][1].lengths.sum()),
        evaluation_seconds=median(seconds for seconds, _ in evaluations),
        policy_seconds=median(outcome.policy_seconds for _, outcome in evaluations),
        simulation_seconds=median(seconds for seconds, _ in simulations),
        ratio=ratio([seconds for seconds, _ in evaluations], [seconds for seconds, _ in simulations]),
        machine=Machine.here(),
    )


def _timed(work: Callable[[], Rollouts]) -> tuple[float, Rollouts]:
    began = time.perf_counter()
    outcome = work()
    return time.perf_counter() - began, outcome


def format_evaluate(result: EvaluateResult) -> str:
    """A table under the machine's description."""
    return "\n".join(
        [
            str(result.machine),
            f"{result.name}: {result.episodes} episodes, {result.steps:,} steps; the returns of both are the same",
            f"{'evaluation, s':<34}{result.evaluation_seconds:>8.2f}",
            f"{'  of these in the policy, s':<34}{result.policy_seconds:>8.2f}",
            f"{'simulation with known actions, s':<34}{result.simulation_seconds:>8.2f}",
            f"{'ratio':<34}{result.ratio:>8.2f}",
        ]
    )


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder (default: an untrained policy)")
    parser.add_argument("--episodes", type=positive, default=100, help="played at once (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=3, help="of each, in turns (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        CheckpointError: there is no policy in the run.
        NumericsError: the same actions gave other episodes.
    """
    asked = _untrained() if arguments.run is None else _trained(arguments.run)
    result = measure_evaluate(asked, arguments.episodes, arguments.repeats)
    return format_evaluate(result), asdict(result)


def _trained(path: Path) -> Asked:
    card = read_card(path)
    return Asked(load_policy(path), str(path), card.env_id, card.env_kwargs, asked_number(card.target_return))


def _untrained() -> Asked:
    torch.manual_seed(0)
    config = ModelConfig(TASK.observation_dim, TASK.action_dim, max_timestep=TASK.horizon)
    statistics = torch.zeros(TASK.observation_dim), torch.ones(TASK.observation_dim)
    policy = Policy(DecisionModel(config), *statistics, 1000.0, "carry", 20)
    return Asked(policy, "an untrained decision-aaren", TASK.env_id, {}, TASK.target_returns[0])
