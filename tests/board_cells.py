"""Cells of a comparison with round numbers, for tests of what shows them."""

from __future__ import annotations

import dataclasses

from synthetic import make_score

from aaren_rl.compare.cells import ActionCost, Cell, CurvePoint
from aaren_rl.evaluate.scores import Score

AGENTS = ("decision-aaren", "decision-transformer")
ENVS = ("hopper-medium", "hopper-medium-replay", "pendulum")


def score(env: str, agent: str, seed: int, asked: float, achieved: float) -> Score:
    own = env == "pendulum"
    value = make_score(
        achieved / 32,
        env=env,
        dataset=env,
        source="file" if own else "local",
        env_id="Pendulum-v1" if own else "Hopper-v4",
        agent=agent,
        training_seed=seed,
        target_return=asked,
        episodes=2,
        returns=[achieved, achieved],
        reference=None if own else "D4RL v2",
    )
    return dataclasses.replace(value, return_mean=achieved)


def cell(env: str, agent: str, seed: int, shift: float = 0.0) -> Cell:
    fixed = agent == "decision-aaren"
    sign = -1 if env == "pendulum" else 1
    return Cell(
        env=env,
        agent=agent,
        seed=seed,
        run=f"runs/{env}/{agent}/seed{seed}",
        parameters=600_000 + fixed,
        updates=1500,
        seconds_per_update=0.1 + 0.02 * fixed,
        device="cpu",
        loss=0.05 + 0.01 * fixed,
        last=score(env, agent, seed, 3600, 2000 + seed + shift),
        best=score(env, agent, seed, 3600, 2200 + seed),
        mean_of_last=60.0,
        mean_of=3,
        curve=[CurvePoint(u, 50 + u / 100 + 5 * fixed + seed) for u in (500, 1000, 1500)],
        sweep=[score(env, agent, seed, sign * r, sign * 0.8 * r + 100 * fixed) for r in (3600, 1800, 2700)],
        action_cost=[ActionCost(s, 1500.0 if fixed else 900.0 + s, 3284 if fixed else 100 * s) for s in (1, 10, 100)],
    )


def cells(shift: float = 0.0) -> list[Cell]:
    return [cell(env, agent, seed, shift) for env in ENVS for agent in AGENTS for seed in (0, 1)]
