"""A comparison in TensorBoard, asked of the real server: what it lists is what a user sees."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from synthetic import make_cell

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.tensorboard import WHOLE, write_board

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorBoard's own
AGENTS = ("decision-aaren", "decision-transformer")
ENVS = ("hopper-medium", "hopper-medium-replay", "pendulum")


def cells() -> list[Cell]:
    """One task's name begins like another's; the last has no normalised scores."""
    references = {"pendulum": {"reference": None, "source": "file"}}
    each = product(ENVS, AGENTS, (0, 1))
    return [make_cell(50.0 + seed, env=env, agent=a, seed=seed, **references.get(env, {})) for env, a, seed in each]


def run_of(c: Cell) -> str:
    return f"{c.env}/{c.agent}/seed{c.seed}"


class Server:
    """`tensorboard` on a loopback port, in a thread."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.program import TensorBoard  # warns

        program = TensorBoard()
        options = "--port 0 --host localhost --load_fast false --reload_interval 1".split()
        program.configure(["tensorboard", "--logdir", str(folder), *options])
        self.address = program.launch()

    def get(self, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.address}data/{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach the loopback
        with opener.open(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if "json" in answer.headers["Content-Type"] else content


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    out = tmp_path_factory.mktemp("compared")
    drawing = Figure(figsize=(4, 3))
    write_board(out, cells(), {}, "first")
    write_board(out, cells(), {"scores": drawing}, "# Compared\n\n| a | b |\n|-|-|\n| 1 | 2 |\n")
    assert [p.name for p in out.iterdir()] == ["tensorboard"]  # the second comparison replaces the first
    assert len(list(out.rglob("events.*"))) == len(cells()) + 1
    served, deadline = Server(out / "tensorboard"), time.monotonic() + 120
    while len(runs := served.get("runs")) <= len(cells()):
        assert time.monotonic() < deadline, runs
        time.sleep(0.2)
    return served


def test_every_agent_has_the_same_tags_and_scores_come_first(server: Server) -> None:
    tags = server.get("plugin/scalars/tags")
    assert sorted(server.get("runs")) == sorted([WHOLE, *tags]) and set(tags) == {run_of(c) for c in cells()}
    for c in cells():
        shown = [tag.removesuffix(f"/{c.env}") for tag in sorted(tags[run_of(c)]) if not tag.startswith("hparam/")]
        assert shown == [
            *("eval/score", "final_score/best", "final_score/last", "final_score/mean_of_last"),
            *("rollout/action_microseconds", "rollout/state_bytes", "steering/achieved", "steering/asked"),
            *("training/loss", "training/parameters", "training/seconds_per_update"),
        ]
    about = tags["hopper-medium/decision-aaren/seed0"]["rollout/action_microseconds/hopper-medium"]
    assert "step of the episode" in about["description"]


@pytest.mark.parametrize("c", [cells()[0], cells()[-1]], ids=run_of)
def test_the_curves_are_the_cells(server: Server, c: Cell) -> None:
    def curve(tag: str) -> list[list[float]]:
        points = server.get("plugin/scalars/scalars", run=run_of(c), tag=f"{tag}/{c.env}")
        return [[step, value] for _, step, value in points]

    assert curve("eval/score") == [[p.update, pytest.approx(p.headline)] for p in c.curve]
    assert curve("final_score/last") == [[1500, pytest.approx(c.last.headline)]]
    assert curve("rollout/state_bytes") == [[cost.step, cost.state_bytes] for cost in c.action_cost]
    assert curve("steering/achieved") == [[s.target_return, pytest.approx(s.return_mean)] for s in c.sweep]
    assert curve("steering/asked") == [[s.target_return] * 2 for s in c.sweep]


def test_custom_scalars_overlay_the_agents(server: Server) -> None:
    layout = server.get("plugin/custom_scalars/layout")
    assert [category["title"] for category in layout["category"]] == list(ENVS)
    for category in layout["category"]:
        charts = {chart["title"]: chart["multiline"]["tag"] for chart in category["chart"]}
        assert len(charts["final score"]) == 3 and len(charts["achieved against asked return"]) == 2
        for run in (f"{env}/{agent}/seed1" for env in ENVS for agent in AGENTS):
            answer = server.get("plugin/custom_scalars/scalars", run=run, tag=charts["final score"][0])
            of_run = run.startswith(category["title"] + "/")
            assert answer["regex_valid"] and len(answer["tag_to_events"]) == of_run


def test_the_table_of_hparams_has_a_row_for_every_cell(server: Server) -> None:
    columns = server.get("plugin/hparams/experiment", {"hparamsLimit": 0})
    assert {"agent", "env", "seed", "updates", "rollout"} <= {info["name"] for info in columns["hparamInfos"]}
    metrics = [info["name"]["tag"] for info in columns["metricInfos"]]
    wanted = {"colParams": [{"metric": {"tag": tag}} for tag in metrics], "allowedStatuses": ["STATUS_SUCCESS"]}
    found = {}
    for row in server.get("plugin/hparams/session_groups", {**wanted, "sliceSize": 100})["sessionGroups"]:
        run = "{env}/{agent}/seed{seed}".format(**row["hparams"])
        found[run] = {v["name"]["tag"]: v["value"] for v in row["metricValues"]}
    assert len(found) == len(cells())
    for c in cells():
        values = found[run_of(c)]
        assert values["hparam/return"] == pytest.approx(c.last.return_mean)
        assert values.get("hparam/normalized_score") == pytest.approx(c.last.normalized_score_mean)
        assert values["hparam/action_microseconds"] == pytest.approx(c.action_cost[-1].microseconds)


def test_figures_and_summary_are_there(server: Server) -> None:
    (image,) = server.get("plugin/images/images", run=WHOLE, tag="figures/scores", sample="0")
    png = server.get(f"plugin/images/individualImage?{image['query']}&")
    assert png.startswith(b"\x89PNG") and (png[18:20], png[22:24]) == ((400).to_bytes(2), (300).to_bytes(2))
    (tag,) = server.get("plugin/text/tags")[WHOLE]
    (text,) = server.get("plugin/text/text", run=WHOLE, tag=tag)
    assert "<h1>Compared</h1>" in text["text"] and "<table>" in text["text"] and "Smoothing" in text["text"]
