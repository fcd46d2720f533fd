"""Training runs that nobody trained, for the tests of statistics and reports."""

import dataclasses

from aaren_rl.compare.measure import ActionCost, Cell, CurvePoint
from aaren_rl.evaluate.scores import Score

LOW, HIGH = -20.272305, 3234.3


def make_score(score: float = 50.0, **changes) -> Score:
    """A normalized score of Hopper's; with reference=None the return alone."""
    value = Score(
        env="hopper-medium",
        dataset="hopper-medium",
        source="local",
        source_path="/data/hopper-medium.hdf5",
        env_id="Hopper-v4",
        agent="decision-aaren",
        context="mixed",
        context_length=20,
        rollout="recurrent",
        rollout_context=40,
        weights="ema",
        updates=1500,
        training_seed=0,
        target_return=3600.0,
        episodes=20,
        seed=1000,
        return_mean=LOW + score / 100 * (HIGH - LOW),
        return_std=321.5,
        reference="D4RL v2",
        normalized_score_mean=score,
        normalized_score_std=4.25,
        length_mean=612.5,
        actions_per_second=900.0,
        returns=[],
        lengths=[],
        reference_returns=[LOW, HIGH],
    )
    if changes.get("reference", "") is None:
        changes = {"return_mean": score, "normalized_score_mean": None, "normalized_score_std": None, **changes}
        changes["reference_returns"] = None
    return dataclasses.replace(value, **changes)


def make_cell(
    score: float = 50.0, *, agent: str = "decision-aaren", seed: int = 0, env: str = "hopper-medium", **changes
) -> Cell:
    """A run; `changes` are fields of its scores."""
    if agent == "decision-transformer":
        changes = {"context": "window", "rollout": "window", "rollout_context": 20, **changes}
    changes = {"env": env, "dataset": env, "agent": agent, "training_seed": seed, **changes}
    last = make_score(score, **changes)
    carried = last.rollout == "recurrent"
    return Cell(
        env=env,
        agent=agent,
        seed=seed,
        run=f"runs/{env}/{agent}/seed{seed}",
        parameters=612_345 + carried,
        updates=last.updates,
        seconds_per_update=0.105 if carried else 0.082,
        device="cpu",
        loss=0.051 if carried else 0.048,
        last=last,
        best=make_score(score + 7.5, **changes),
        mean_of_last=score - 1.25,
        mean_of=3,
        curve=[CurvePoint(update, score * update / 1500 + seed) for update in (500, 1000, 1500)],
        sweep=[
            make_score(score * target / 3600, **{**changes, "target_return": target})
            for target in (1200.0, 2400.0, 3600.0, 4800.0)
        ],
        action_cost=[
            ActionCost(step, 1500.0 + seed if carried else 2000.0 + 9 * step, 3284 if carried else 1000 * step)
            for step in (10, 100, 1000)
        ],
    )


def make_cells(scores: dict[str, list[float]], **changes) -> list[Cell]:
    """Agent -> one score for every training seed."""
    return [make_cell(x, agent=agent, seed=i, **changes) for agent, xs in scores.items() for i, x in enumerate(xs)]


README = {"decision-aaren": [83.7, 63.8, 82.2], "decision-transformer": [41.1, 68.7, 55.7]}
