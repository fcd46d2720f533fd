"""A comparison in TensorBoard, asked of the real server: what it lists is what a user sees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from board_cells import AGENTS, ENVS, cells
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.report.figures import figures
from aaren_rl.compare.tensorboard import WHOLE, write_board


def figure() -> Figure:
    drawing = Figure(figsize=(4, 3))
    drawing.subplots().plot([1, 2, 3])
    return drawing


def run_of(c: Cell) -> str:
    return f"{c.env}/{c.agent}/seed{c.seed}"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    write_board(out, cells(), {"scores": figure()}, "# Compared\n\n| a | b |\n|-|-|\n| 1 | 2 |\n")
    return out / "tensorboard"


class Server:
    """`tensorboard` on a loopback port."""

    def __init__(self, folder: Path, log: Path) -> None:
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", "-m", "tensorboard.main", "--logdir", str(folder)),
                    *("--port", "0", "--host", "localhost", "--load_fast", "false"),
                    *("--reload_interval", "1"),
                ],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + 120
        while not (found := re.search(r"http://localhost:(\d+)", log.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        self.port = int(found[1])

    def get(self, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        address = f"http://localhost:{self.port}/{path}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach the loopback
        with opener.open(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if "json" in answer.headers["Content-Type"] else content

    def wait_for_runs(self, count: int) -> list[str]:
        deadline = time.monotonic() + 120
        while len(runs := self.get("data/runs")) < count:
            assert time.monotonic() < deadline, runs
            time.sleep(0.2)
        return runs


@pytest.fixture(scope="module")
def server(board: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = Server(board, tmp_path_factory.mktemp("log") / "tensorboard.log")
    try:
        served.wait_for_runs(len(cells()) + 1)
        yield served
    finally:
        served.process.terminate()
        served.process.wait(30)


def test_every_agent_has_the_same_tags(server: Server) -> None:
    tags = server.get("data/plugin/scalars/tags")
    assert set(tags) == {run_of(c) for c in cells()}
    for c in cells():
        assert set(tags[run_of(c)]) == set(tags[f"{c.env}/{AGENTS[0]}/seed0"])
        shown = {tag.removesuffix(f"/{c.env}") for tag in tags[run_of(c)] if not tag.startswith("hparam/")}
        assert shown == {
            "eval/score",
            *(f"final_score/{which}" for which in ("last", "best", "mean_of_last")),
            *("steering/achieved", "steering/asked", "rollout/action_microseconds", "rollout/state_bytes"),
            *(f"training/{what}" for what in ("seconds_per_update", "loss", "parameters")),
        }
    about = tags["hopper-medium/decision-aaren/seed0"]["rollout/action_microseconds/hopper-medium"]
    assert "step of the episode" in about["description"]


@pytest.mark.parametrize("c", [cells()[0], cells()[-1]], ids=run_of)
def test_the_curves_are_the_cells(server: Server, c: Cell) -> None:
    def curve(tag: str) -> list[list[float]]:
        points = server.get("data/plugin/scalars/scalars", run=run_of(c), tag=f"{tag}/{c.env}")
        return [[step, value] for _, step, value in points]

    assert curve("eval/score") == [[p.update, pytest.approx(p.headline)] for p in c.curve]
    assert curve("final_score/last") == [[1500, pytest.approx(c.last.headline)]]
    assert curve("rollout/state_bytes") == [[cost.step, cost.state_bytes] for cost in c.action_cost]
    asked = sorted((s.target_return, s.return_mean) for s in c.sweep)
    assert curve("steering/achieved") == [[a, pytest.approx(b)] for a, b in asked]
    assert curve("steering/asked") == [[a, a] for a, _ in asked]


def test_custom_scalars_overlay_the_agents(server: Server) -> None:
    layout = server.get("data/plugin/custom_scalars/layout")
    assert [category["title"] for category in layout["category"]] == list(ENVS)
    for category in layout["category"]:
        charts = {chart["title"]: chart["multiline"]["tag"] for chart in category["chart"]}
        assert len(charts["final score"]) == 3 and len(charts["achieved against asked return"]) == 2
        for tag in (tag for tags in charts.values() for tag in tags):
            for env in ENVS:
                for agent in AGENTS:
                    answer = server.get("data/plugin/custom_scalars/scalars", run=f"{env}/{agent}/seed1", tag=tag)
                    assert answer["regex_valid"] and len(answer["tag_to_events"]) == (env == category["title"])


def test_the_table_of_hparams_has_a_row_for_every_cell(server: Server) -> None:
    columns = server.get("data/plugin/hparams/experiment", {"hparamsLimit": 0})
    assert {"agent", "env", "seed", "updates", "rollout"} <= {info["name"] for info in columns["hparamInfos"]}
    metrics = [info["name"]["tag"] for info in columns["metricInfos"]]
    assert "hparam/normalized_score" in metrics and "hparam/action_microseconds" in metrics
    wanted = {
        "colParams": [{"metric": {"tag": tag}} for tag in metrics],
        "allowedStatuses": ["STATUS_SUCCESS"],
        "startIndex": 0,
        "sliceSize": 100,
    }
    rows = server.get("data/plugin/hparams/session_groups", wanted)["sessionGroups"]
    assert len(rows) == len(cells())
    found = {}
    for row in rows:
        settings = row["hparams"]
        values = {v["name"]["tag"]: v["value"] for v in row["metricValues"]}
        found[settings["env"], settings["agent"], int(settings["seed"])] = values
    for c in cells():
        values = found[c.env, c.agent, c.seed]
        assert values["hparam/return"] == pytest.approx(c.last.return_mean)
        assert values.get("hparam/normalized_score") == pytest.approx(c.last.normalized_score_mean)


def test_scores_come_first_and_every_run_has_a_name(server: Server) -> None:
    """TensorBoard lists tags by name."""
    for tags in server.get("data/plugin/scalars/tags").values():
        assert [tag.split("/")[0] for tag in sorted(tags)][:4] == ["eval", *3 * ["final_score"]]
    runs = server.get("data/runs")
    assert sorted(runs) == sorted([WHOLE, *map(run_of, cells())]) and "." not in runs
    assert sorted(figures(cells()))[0] == "all_scores"


def test_figures_and_summary_are_there(server: Server) -> None:
    images = server.get("data/plugin/images/tags")
    assert list(images[WHOLE]) == ["figures/scores"]
    (image,) = server.get("data/plugin/images/images", run=WHOLE, tag="figures/scores", sample="0")
    png = server.get(f"data/plugin/images/individualImage?{image['query']}&")
    assert png.startswith(b"\x89PNG") and (png[18:20], png[22:24]) == ((400).to_bytes(2), (300).to_bytes(2))
    (tag,) = server.get("data/plugin/text/tags")[WHOLE]
    (text,) = server.get("data/plugin/text/text", run=WHOLE, tag=tag)
    assert "<h1>Compared</h1>" in text["text"] and "<table>" in text["text"] and "Smoothing" in text["text"]


def test_a_second_comparison_replaces_the_first(tmp_path: Path) -> None:
    write_board(tmp_path, cells(), {"scores": figure()}, "first")
    write_board(tmp_path, cells(shift=320.0)[:1], {}, "second")
    folder = tmp_path / "tensorboard"
    assert [p.name for p in tmp_path.iterdir()] == ["tensorboard"]
    run, whole = sorted((str(p.parent.relative_to(folder)) for p in folder.rglob("events.*")), key=WHOLE.__eq__)
    assert (run, whole) == (run_of(cells()[0]), WHOLE)
    (point,) = EventAccumulator(str(folder / run)).Reload().Scalars("final_score/last/hopper-medium")
    assert point.value == pytest.approx(cells()[0].last.headline + 10)
