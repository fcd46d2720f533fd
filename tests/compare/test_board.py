"""A comparison in TensorBoard: every agent's numbers under the same tags."""

from itertools import product

import pytest
from matplotlib.figure import Figure
from synthetic import make_cell
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl.compare.report import WHOLE, write_board
from aaren_rl.evaluate.scores import ActionError

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorBoard's own


def test_every_agent_has_the_same_curves(tmp_path):
    """The second comparison replaces the first; the last task has held-out episodes, and no normalized scores."""
    own = {"reference": None, "source": "file", "action_error": ActionError([1.0, 3.0], [10, 10], 0.05)}
    agents, envs = ("decision-aaren", "decision-transformer"), ("hopper-medium", "pendulum")
    cells = [
        make_cell(50.0 + seed, env=env, agent=agent, seed=seed, **(own if env == "pendulum" else {}))
        for env, agent, seed in product(envs, agents, (0, 1))
    ]
    write_board(tmp_path, cells[:1], {}, "first")
    write_board(tmp_path, cells, {"scores": Figure(figsize=(4, 3))}, "# Compared\n")
    board = tmp_path / "tensorboard"
    assert [p.name for p in tmp_path.iterdir()] == ["tensorboard"]
    assert len(list(board.rglob("events.*"))) == len(cells) + 1
    for c in cells:
        shown = EventAccumulator(str(board / c.env / c.agent / f"seed{c.seed}")).Reload()
        assert [tag.removesuffix(f"/{c.env}") for tag in sorted(shown.Tags()["scalars"])] == [
            "eval/mean_return" if c.env == "pendulum" else "eval/normalized_score",
            *("final_score/best", "final_score/last", "final_score/mean_of_last", "model/parameters"),
            *("model/state_bytes", "steering/achieved_return", "steering/target_return"),
            *("time/microseconds_per_action", "time/seconds_per_update", "train/loss"),
            *(["val/action_mse", "val/excess_mse"] if c.last.action_error else []),
        ]

    def curve(tag: str) -> list[list[float]]:
        return [[event.step, event.value] for event in shown.Scalars(f"{tag}/{c.env}")]

    assert curve("val/excess_mse") == [[1500, pytest.approx(0.15)]]
    assert curve("eval/mean_return") == [[p.update, pytest.approx(p.headline)] for p in c.curve]
    assert curve("model/state_bytes") == [[cost.step, cost.state_bytes] for cost in c.action_cost]
    assert curve("steering/achieved_return") == [[25, 17], [50, 34], [75, 51], [100, 68]]  # percent of the largest
    whole = EventAccumulator(str(board / WHOLE)).Reload()
    assert whole.Tags()["images"] == ["figures/scores"] and whole.Tags()["tensors"] == ["summary/text_summary"]
