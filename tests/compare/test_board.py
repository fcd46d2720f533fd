"""A comparison in TensorBoard, asked of the real server: what it lists is what a user sees."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from matplotlib.figure import Figure
from synthetic import make_cell

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.tensorboard import WHOLE, write_board
from aaren_rl.evaluate.scores import ActionError

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorBoard's own
AGENTS = ("decision-aaren", "decision-transformer")
ENVS = ("hopper-medium", "hopper-medium-replay", "pendulum")


def cells() -> list[Cell]:
    """One task's name begins like another's; the last has held-out episodes, and no normalized scores."""
    own = {"reference": None, "source": "file", "action_error": ActionError([1.0, 3.0], [10, 10], 0.05)}
    each = product(ENVS, AGENTS, (0, 1))
    return [
        make_cell(50.0 + seed, env=env, agent=a, seed=seed, **(own if env == "pendulum" else {}))
        for env, a, seed in each
    ]


def run_of(c: Cell) -> str:
    return f"{c.env}/{c.agent}/seed{c.seed}"


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What TensorBoard answers to an address and a query."""
    from tensorboard.program import TensorBoard  # warns

    out = tmp_path_factory.mktemp("compared")
    write_board(out, cells(), {}, "first")
    write_board(out, cells(), {"scores": Figure(figsize=(4, 3))}, "# Compared\n")
    assert [p.name for p in out.iterdir()] == ["tensorboard"]  # the second comparison replaces the first
    assert len(list(out.rglob("events.*"))) == len(cells()) + 1
    program, deadline = TensorBoard(), time.monotonic() + 120
    options = "--port 0 --host localhost --load_fast false --reload_interval 1".split()
    program.configure(["tensorboard", "--logdir", str(out / "tensorboard"), *options])
    server = program.launch()  # in a thread

    def get(path: str, **query: str) -> Any:
        address = f"{server}data/{path}?{urllib.parse.urlencode(query)}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach the loopback
        with opener.open(address, timeout=60) as answer:
            return json.load(answer) if "json" in answer.headers["Content-Type"] else answer.read()

    while len(runs := get("runs")) <= len(cells()):
        assert time.monotonic() < deadline, runs
        time.sleep(0.2)
    return get


def test_every_agent_has_the_same_curves_and_scores_come_first(get: Callable[..., Any]) -> None:
    tags = get("plugin/scalars/tags")
    assert sorted(get("runs")) == sorted([WHOLE, *tags]) and set(tags) == {run_of(c) for c in cells()}
    for c in cells():
        shown = [tag.removesuffix(f"/{c.env}") for tag in sorted(tags[run_of(c)])]
        assert shown == [
            "eval/mean_return" if c.env == "pendulum" else "eval/normalized_score",
            *("final_score/best", "final_score/last", "final_score/mean_of_last", "model/parameters"),
            *("model/state_bytes", "steering/achieved_return", "steering/target_return"),
            *("time/microseconds_per_action", "time/seconds_per_update", "train/loss"),
            *(["val/action_mse", "val/excess_mse"] if c.last.action_error else []),
        ]

    def curve(tag: str) -> list[list[float]]:
        points = get("plugin/scalars/scalars", run=run_of(c), tag=f"{tag}/{c.env}")
        return [[step, value] for _, step, value in points]

    assert curve("val/excess_mse") == [[1500, pytest.approx(0.15)]]
    assert curve("eval/mean_return") == [[p.update, pytest.approx(p.headline)] for p in c.curve]
    assert curve("final_score/last") == [[1500, pytest.approx(c.last.headline)]]
    assert curve("model/state_bytes") == [[cost.step, cost.state_bytes] for cost in c.action_cost]
    assert curve("steering/achieved_return") == [[25, 17], [50, 34], [75, 51], [100, 68]]  # percent of the largest
    assert curve("steering/target_return") == [[25, 1200], [50, 2400], [75, 3600], [100, 4800]]


def test_figures_and_summary_are_there(get: Callable[..., Any]) -> None:
    (image,) = get("plugin/images/images", run=WHOLE, tag="figures/scores", sample="0")
    png = get(f"plugin/images/individualImage?{image['query']}&")
    assert png.startswith(b"\x89PNG") and (png[18:20], png[22:24]) == ((400).to_bytes(2), (300).to_bytes(2))
    (tag,) = get("plugin/text/tags")[WHOLE]
    (text,) = get("plugin/text/text", run=WHOLE, tag=tag)
    assert "<h1>Compared</h1>" in text["text"] and "Smoothing" in text["text"]
