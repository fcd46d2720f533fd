"""What is compared is of one kind: a comparison of runs that were made or scored differently is refused."""

import dataclasses

import pytest
from synthetic import make_cell

from aaren_rl.compare.cells import check_comparable
from aaren_rl.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("dataset", "other"), ("source", "d4rl"), ("source_path", "/x"), ("reference", "mine"), ("updates", 9)),
        *(("env_id", "Hopper-v5"), ("episodes", 3), ("seed", 7), ("target_return", 1800.0), ("weights", "raw")),
    ],
)
def test_agents_scored_in_different_ways_are_refused(field, value):
    first, second = make_cell(), make_cell(agent="decision-transformer")
    changed = dataclasses.replace(second, last=dataclasses.replace(second.last, **{field: value}))
    check_comparable([first, second])
    with pytest.raises(UsageError) as refusal:
        check_comparable([first, changed])
    name = "evaluation seed" if field == "seed" else field
    assert str(refusal.value) == (
        "runs/hopper-medium/decision-aaren/seed0 (decision-aaren, seed 0) and "
        f"{second.run} (decision-transformer, seed 0) cannot be compared on hopper-medium: "
        f"{name} {getattr(first.last, field)!r} and {value!r}"
    )
    # Another task may differ in all of this.
    check_comparable([first, make_cell(env="walker2d-medium", **{field: value})])


@pytest.mark.parametrize(("field", "value"), [("context", "episode"), ("rollout_context", 80)])
def test_seeds_of_one_agent_made_in_different_ways_are_refused(field, value):
    other = make_cell(agent="decision-transformer", seed=2)
    with pytest.raises(UsageError, match=rf"seed 0\) and .*seed 1\) cannot .*: {field} .* and {value!r}"):
        check_comparable([make_cell(), other, make_cell(seed=1, **{field: value})])


def test_a_seed_counts_once_and_nothing_is_no_comparison():
    with pytest.raises(UsageError, match=r"both decision-aaren on hopper-medium with training seed 0"):
        check_comparable([make_cell(), make_cell(seed=1), make_cell()])
    with pytest.raises(UsageError, match="no runs"):
        check_comparable([])
    with pytest.raises(UsageError, match=r": updates 1500 and 9; episodes 20 and 3$"):  # all differences
        check_comparable([make_cell(), make_cell(0, seed=1, updates=9, episodes=3)])
