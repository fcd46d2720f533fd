"""scripts/table1 page: the page is what the committed results say, and every number of a made-up one is its own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import table1_page
import table1_peers
from checkout import ROOT, load_script
from synthetic import make_cell, make_score

from aaren_rl.base.errors import UsageError
from aaren_rl.compare.cells import Cell, write_results
from aaren_rl.evaluate.scores import ActionError
from aaren_rl.sweep.grid import read_grid

PICTURES = {"scores.svg", "steering.svg"}
AGENTS = ("decision-aaren", "decision-transformer", "bc-top10")


def write(docs: Path, cells: list[Cell]) -> str:
    """The page of these runs."""
    folder = docs / "results" / "table1"
    folder.mkdir(parents=True, exist_ok=True)
    machines = ({"processor": "P0", "precision": "float32"}, {"processor": "P1", "precision": "bfloat16"})
    for env in {cell.env for cell in cells}:
        of_set = [cell for cell in cells if cell.env == env]
        made = {cell.run: machines[cell.seed // 2] for cell in of_set}
        write_results(folder / f"{env}.json", of_set, {"made": made}, {})
    (docs / "table1.md").write_text((ROOT / "docs" / "table1.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert table1_page.write(docs, read_grid("local")) == 0
    return (docs / "table1.md").read_text(encoding="utf-8")


def run(env: str, agent: str, seed: int, score: float, above: float) -> Cell:
    """Held-out episodes of 10 and 20 steps over a noise variance of 0.02."""
    error = ActionError([10 * (0.02 + above), 20 * (0.02 + above)], [10, 20], floor=0.02)
    known = {"data_returns": {"mean": 1000.0, "best_tenth": 2000.0, "mode": 1500.0}, "reference_returns": [0, 4000.0]}
    cell = make_cell(score, agent=agent, seed=seed, env=env, action_error=error, **known)
    return dataclasses.replace(cell, sweep=[]) if agent == "bc-top10" else cell


@pytest.fixture
def cells() -> list[Cell]:
    """On hopper-medium 70 and 60 of three seeds, on walker2d-medium 40 and 50; 55 of the third agent's first seed."""
    scores = {"hopper-medium": (70, 60, 0.010, 0.012), "walker2d-medium": (40, 50, 0.030, 0.034)}
    made = []
    for env, of in scores.items():
        made += [run(env, AGENTS[i], seed, of[i], of[2 + i]) for i in (0, 1) for seed in range(3)]
        made.append(run(env, AGENTS[2], 0, 55.0, 0.02))
    return made


def rows(page: str, env: str) -> list[list[str]]:
    """The cells of the rows of a dataset, table by table."""
    found = [line for line in page.splitlines() if line.startswith(f"| {env} ")]
    return [[text.strip() for text in line.split("|")[2:-1]] for line in found]


def test_the_pages_are_made_of_the_results(tmp_path: Path) -> None:
    """A result that is landed needs its page written again."""
    docs, kept = tmp_path / "docs", ROOT / "docs" / "results" / "table1"
    for results in (kept, kept.parent / "peers"):
        shutil.copytree(results, docs / "results" / results.name, ignore=shutil.ignore_patterns("*.svg"))
    pages = ("docs/table1.md",)
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        (tmp_path / page).write_text(table1_page.PART.sub(r"\1\3", text), encoding="utf-8")
        assert table1_page.PART.search(text)
    asked = load_script("table1").parse(["page", str(docs)])
    assert asked.call(asked) == 0
    for page in pages:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text()
    drawn = {file.name for file in (docs / "results" / "table1").glob("*.svg")}
    assert drawn == {file.name for file in kept.glob("*.svg")} >= PICTURES


def test_every_number(tmp_path: Path, cells: list[Cell]) -> None:
    with pytest.raises(UsageError, match="no results here; scripts/table1 writes them"):
        table1_page.write(tmp_path / "nowhere", read_grid("local"))
    page = write(tmp_path, cells)
    said = " ".join(page.split())
    assert "minus Decision Transformer: 0.0 [0.0, 0.0] on average over 2 datasets**." in said  # +10, -10
    assert "scores above one of Decision Transformer is 0.50 [0.50, 0.50]. **Difference" in said
    assert "held-out action MSE: -0.0030 [-0.0030, -0.0030]** on average (below 0 is better); lower on 2, hi" in said
    scores, errors, steering = rows(page, "hopper-medium")
    assert scores == ["70.0 [70.0, 70.0]", "60.0 [60.0, 60.0]", "55.0", "25.0, 50.0; 37.5"]
    assert errors == ["0.0200", "0.0100", "0.0120", "0.0200", "-0.0020 [-0.0020, -0.0020]"]
    assert steering == ["1.00, 38 %", "1.00, 47 %", "57 %"]
    first, last = rows(page, "P0, float32"), rows(page, "P1, bfloat16")  # of two seeds of two sets, and of the third
    assert first[0] == ["Decision-Aaren", "4", "105", "3.3 kB"]
    assert last[1:] == [["Decision Transformer", "2", "82", "1,000.0 kB"]]
    assert rows(page, "walker2d-medium")[1][4] == "-0.0040 [-0.0040, -0.0040]"
    assert "| agent | runs | mean over 2 datasets [95%] |" in page
    assert rows(page, "Decision-Aaren") == [["6", "55.0 [55.0, 55.0]", "55.0 [55.0, 55.0]", "-", "-", "-"]]
    means = ["55.0 [55.0, 55.0]", "55.0 [55.0, 55.0]", "0.0 [0.0, 0.0]", "0.50 [0.50, 0.50]"]
    assert rows(page, "Decision Transformer") == [["6", *means, "lower on 2, higher on 0 of 2"]]
    assert rows(page, "10 % BC") == [["2", "55.0", "55.0", "0.0", "0.50", "lower on 1, higher on 1 of 2"]]
    whole = len(grid := read_grid("local").envs) * 16
    assert f"Of {whole} runs 14 are here" in page and page.count("\n* ") - page.count("\n* **") == 7
    others = ", ".join(env for env in grid if env not in ("hopper-medium", "walker2d-medium"))
    assert f"* Decision-Aaren, seeds 0, 1, 2: {others}\n" in page and f"* 10 % BC, seed 0: {others}\n" in page
    assert "* 10 % BC, seeds 1, 2: all datasets\n* Behavioral cloning, seeds 0, 1, 2: all datasets\n" in page
    assert "* Decision-GRU, seed 0: all datasets\n" in page


def test_one_token_alone_and_the_order_of_agents(tmp_path: Path, cells: list[Cell]) -> None:
    """Agents stand in the package's order, also where the first dataset lacks one."""
    assert "differs from" not in write(tmp_path / "without", cells).split("<!-- /table1 -->")[0].split("<!-- table1")[1]
    second = run("walker2d-medium", "decision-transformer-1token", 0, 43.5, 0.03)  # Decision-Aaren has 40, and 70
    page = write(tmp_path / "second", [*cells, second])
    assert "from Decision Transformer (1 token) most on walker2d-medium, by -3.5." in " ".join(page.split())
    assert "| Decision-Aaren | Decision Transformer | Decision Transformer (1 token) | 10 % BC |" in page
    first = run("hopper-medium", "decision-transformer-1token", 0, 72.0, 0.03)
    said = " ".join(write(tmp_path / "both", [*cells, first, second]).split())
    assert "(1 token) most on walker2d-medium, by -3.5; on the others by at most 2.0." in said


def test_a_run_on_a_gpu_is_in_a_row_of_its_own(tmp_path: Path, cells: list[Cell]) -> None:
    page = write(tmp_path, [dataclasses.replace(cells[0], device="H100"), *cells[1:]])
    assert rows(page, "H100, scored on P0, float32")[0][:2] == ["Decision-Aaren", "1"]
    assert rows(page, "P0, float32")[0][:2] == ["Decision-Aaren", "3"]


def test_runs_without_held_out_episodes(tmp_path: Path, cells: list[Cell]) -> None:
    cells = [dataclasses.replace(cell, last=dataclasses.replace(cell.last, action_error=None)) for cell in cells]
    page = write(tmp_path, cells)
    assert "0.0] on average over 2 datasets" in " ".join(page.split()) and "held-out action MSE:" not in page
    assert rows(page, "hopper-medium")[1] == ["-"] * 5


def test_a_dataset_that_has_runs_without_a_target_alone(tmp_path: Path, cells: list[Cell]) -> None:
    page = write(tmp_path, [*cells, run("ant-medium", "bc-top10", 0, 30.0, 0.02)])
    assert rows(page, "ant-medium")[2] == ["-"] * 3


def test_the_target_auto_and_the_peers(tmp_path: Path, cells: list[Cell]) -> None:
    """Scores with "auto" of two of six runs, and of one peer on one dataset."""
    assert "`auto` |" not in write(tmp_path, cells) and not (tmp_path / "results/table1/peers.svg").exists()
    for i, score in ((0, 66.0), (1, 77.0)):
        cells[i] = dataclasses.replace(cells[i], auto=make_score(score, target_return="auto"))
    (folder := tmp_path / "results" / "peers").mkdir()
    for seed in (0, 1):
        curve = [{"steps": 100 * (i + 1), "score": 10.0 * i + seed} for i in range(3)]
        run = {"dataset": "hopper-medium", "algorithm": "iql", "seed": seed, "steps": 300, "seconds": 90.0 + seed}
        run |= {"processor": "a", "curve": curve, "best": {"score": 30.0 + seed}, "last": {"score": 19.0 + seed}}
        (folder / f"{seed}.json").write_text(json.dumps(run))
    page = write(tmp_path, cells)
    scores, *_, peers = rows(page, "hopper-medium")
    assert scores[3] == "71.5" and rows(page, "walker2d-medium")[0][3] == "-"
    assert peers == ["70.0", "19.0, 20.0 (30.0, 31.0)"]
    assert "Training took IQL 0.57 times as long as Decision-Aaren, on one thread, by medians. Peers: 300" in page
    assert (tmp_path / "results" / "table1" / "peers.svg").exists()
    other = run | {"dataset": "walker2d-medium", "algorithm": "td3+bc"}
    legend = table1_peers.figure(cells, [run, other]).legends[0]
    assert {text.get_text() for text in legend.get_texts()} == {"Decision-Aaren, mean", "IQL", "TD3+BC"}


def test_an_agent_under_way_does_not_take_the_average_away(tmp_path: Path, cells: list[Cell]) -> None:
    """10 % BC has two of four sets; scores differ by +10, -10, +30, +1, errors by -0.002, -0.004, +0.001, 0."""
    more = [run("ant-medium", AGENTS[0], 0, 90, 0.02), run("ant-medium", AGENTS[1], 0, 60, 0.019)]
    more += [run("ant-medium-replay", AGENTS[i], 0, 51 - i, 0.02) for i in (0, 1)]
    assert "on the others" not in write(tmp_path, [*cells, *more[:2]])  # two of three left out leave no mean
    page = write(tmp_path, [*cells, *more])
    assert (
        "mean over 4 datasets" in page
        and "| Decision-Aaren | 8 | 62.8 " in page
        and "| 10 % BC | 2 | 55.0 " not in page
    )
    assert (tmp_path / "results" / "table1" / "profiles.svg").exists()
    said = " ".join(page.split())
    scores = "30.0 on ant-medium, -10.0 [-10.0, -10.0] on walker2d-medium and 5.5 on average on the others."
    assert f": 7.8 on average over 4 datasets**, {scores}" in said
    assert "(below 0 is better); lower on 2, higher on 1 of 4." in said
