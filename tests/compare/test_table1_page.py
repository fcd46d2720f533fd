"""scripts/table1 page: the page is what the committed results say, and every number of a made-up one is its own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import table1_cells
import table1_page
import table1_peers
from checkout import ROOT, load_script
from synthetic import make_cell

from aaren_rl.base.errors import UsageError
from aaren_rl.compare.cells import Cell, write_results
from aaren_rl.evaluate.scores import ActionError
from aaren_rl.policies.names import AGENTS as KNOWN
from aaren_rl.sweep.grid import read_grid

PICTURES = {"scores.svg", "steering.svg", "forest.svg", "profiles.svg", "peers.svg"}
GRID = str(ROOT / "configs" / "local" / "benchmark.yaml")
OURS, THEIRS, CLONED, ONE_TOKEN = "decision-aaren", "decision-transformer", "bc-top10", "decision-transformer-1token"


def write(docs: Path, cells: list[Cell]) -> str:
    """The page of these runs: those of `gated` are of the benchmark, the others of the older runs."""
    machines = ({"processor": "P0", "precision": "float32"}, {"processor": "P1", "precision": "bfloat16"})
    for folder in ("benchmark", "table1"):
        (docs / "results" / folder).mkdir(parents=True, exist_ok=True)
        own = [cell for cell in cells if cell.run.startswith("gated") == (folder == "benchmark")]
        for env in {cell.env for cell in own}:
            of_set = [cell for cell in own if cell.env == env]
            made = {cell.run: machines[cell.seed // 2] for cell in of_set}
            write_results(docs / "results" / folder / f"{env}.json", of_set, {"made": made}, {})
    (docs / "table1.md").write_text((ROOT / "docs" / "table1.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert table1_page.write(docs, read_grid(GRID)) == 0
    return (docs / "table1.md").read_text(encoding="utf-8")


def run(env: str, agent: str, seed: int, score: float, above: float) -> Cell:
    """Held-out episodes of 10 and 20 steps over a noise variance of 0.02."""
    error = ActionError([10 * (0.02 + above), 20 * (0.02 + above)], [10, 20], floor=0.02)
    known = {"data_returns": {"mean": 1000.0, "best_tenth": 2000.0, "mode": 1500.0}, "reference_returns": [0, 4000.0]}
    cell = make_cell(score, agent=agent, seed=seed, env=env, action_error=error, **known)
    if agent == CLONED:
        return dataclasses.replace(cell, sweep=[])
    sweep = [dataclasses.replace(s, returns=[s.return_mean - 600, s.return_mean + 600]) for s in cell.sweep]
    return dataclasses.replace(cell, sweep=sweep)


def gated(cell: Cell) -> Cell:
    return dataclasses.replace(cell, run=f"gated/{cell.run}")


@pytest.fixture
def cells() -> list[Cell]:
    """On hopper-medium 70 and 60 of three seeds, on walker2d-medium 44 and 50; 55 of the third agent's first seed.

    Decision-Aaren without a gate has 65 and 41.
    """
    scores = {"hopper-medium": (70, 60, 0.010, 0.012, 65), "walker2d-medium": (44, 50, 0.030, 0.034, 41)}
    made = []
    for env, (ours, theirs, error, their_error, no_gate) in scores.items():
        made += [gated(run(env, OURS, seed, ours, error)) for seed in range(3)]
        made += [run(env, THEIRS, seed, theirs, their_error) for seed in range(3)]
        made += [run(env, OURS, seed, no_gate, error) for seed in range(3)]
        made.append(run(env, CLONED, 0, 55.0, 0.02))
    return made


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the rows that begin so, table by table."""
    found = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [[text.strip() for text in line.split("|")[2:-1]] for line in found]


def test_the_pages_are_made_of_the_results(tmp_path: Path) -> None:
    """A result that is landed needs its page written again."""
    docs, kept = tmp_path / "docs", ROOT / "docs" / "results"
    for results in ("benchmark", "table1", "peers"):
        shutil.copytree(kept / results, docs / "results" / results, ignore=shutil.ignore_patterns("*.svg"))
    text = (ROOT / "docs" / "table1.md").read_text(encoding="utf-8")
    (docs / "table1.md").write_text(table1_page.PART.sub(r"\1\3", text), encoding="utf-8")
    assert table1_page.PART.search(text)
    known = dict(KNOWN)
    asked = load_script("table1").parse(["page", str(docs)])
    assert asked.call(asked) == 0
    assert (docs / "table1.md").read_text() == text and list(known) == list(KNOWN)
    drawn = {file.name for file in (docs / "results" / "table1").glob("*.svg")}
    assert drawn == {file.name for file in (kept / "table1").glob("*.svg")} == PICTURES


def test_every_number(tmp_path: Path, cells: list[Cell]) -> None:
    with pytest.raises(UsageError, match="no results here; scripts/table1 writes them"):
        table1_page.write(tmp_path / "nowhere", read_grid(GRID))
    page = write(tmp_path, cells)
    said = " ".join(page.split())
    # +10 and -6; 10 % BC has 55 on both, and too few seeds for an interval
    assert "**Decision-Aaren scores 2.0 [2.0, 2.0] and 2.0 points more than Decision Transformer and 10" in said
    assert "2 datasets; a run of it scores above one of theirs with probability 0.50 [0.50, 0.50] and 0.50." in said
    assert "minus Decision Transformer's is -0.0030 [-0.0030, -0.0030] on average; lower on 2, higher on 0" in said
    scores, others, errors, steering = rows(page, "hopper-medium")
    assert scores == ["70.0 [70.0, 70.0]", "60.0 [60.0, 60.0]", "55.0", "25.0, 50.0; 37.5"]
    assert others == ["65.0 [65.0, 65.0]", "-", "-"]
    assert errors == ["0.0200", "0.0100", "0.0100", "-", "-", "0.0120", "0.0200", "-0.0020 [-0.0020, -0.0020]"]
    # Of single episodes, 600 above and below: one is above its target of 1,200, so the errors don't cancel there.
    assert steering == ["1.00, 38 % (40 %)", "1.00, 47 % (47 %)", "57 %"]
    assert rows(page, "walker2d-medium")[2][-1] == "-0.0040 [-0.0040, -0.0040]"
    assert rows(page, "Decision-Aaren")[-1] == ["4", "105", "3.3 kB"] and "Trained on: P0, float32." in page
    assert "| agent | runs | mean over 2 datasets [95%] |" in page
    assert rows(page, "Decision-Aaren")[0] == ["6", "57.0 [57.0, 57.0]", "57.0 [57.0, 57.0]", "-", "-", "-"]
    ours = ["2.0 [2.0, 2.0]", "0.50 [0.50, 0.50]", "lower on 2, higher on 0 of 2"]
    assert rows(page, "Decision Transformer")[0] == ["6", "55.0 [55.0, 55.0]", "55.0 [55.0, 55.0]", *ours]
    steps = [row[1:] for name in ("the forget gate", "all of it") for row in rows(page, name)]
    assert steps[0] == ["4.0 [4.0, 4.0]", "1.00 [1.00, 1.00]", "2, 0 of 2", "hopper-medium 5.0"]
    assert steps[1] == ["2.0 [2.0, 2.0]", "0.50 [0.50, 0.50]", "1, 1 of 2", "hopper-medium 10.0"]


def test_what_is_missing(tmp_path: Path, cells: list[Cell]) -> None:
    page = write(tmp_path, cells)
    others = ", ".join(env for env in read_grid(GRID).envs if env not in ("hopper-medium", "walker2d-medium"))
    assert f"* Decision-Aaren, seeds 0, 1, 2: {others}\n" in page
    assert "* Decision-Aaren, seeds 3, 4: all datasets\n" in page
    assert "* Decision-minGRU, seeds 0, 1: all datasets\n" in page


def test_the_worst_seed(tmp_path: Path, cells: list[Cell]) -> None:
    """70, 70 and 40 have a mean of 60."""
    low = dataclasses.replace(cells[1].last, normalized_score_mean=40.0)
    page = write(tmp_path, [cells[0], dataclasses.replace(cells[1], last=low), *cells[2:]])
    assert "Decision-Aaren 0.67 of its mean (hopper-medium)" in " ".join(page.split())


def test_one_token_alone(tmp_path: Path, cells: list[Cell]) -> None:
    """Of one dataset there is no mean; of two there is."""
    first, second = (run(env, ONE_TOKEN, 0, score, 0.03) for env, score in ((cells[0].env, 72), (cells[-1].env, 43)))
    assert not rows(write(tmp_path / "first", [*cells, first]), "one token per step")
    page = write(tmp_path / "both", [*cells, first, second])
    assert rows(page, "one token per step")[0][1:3] == ["2.5", "0.50"]
    assert rows(page, "hopper-medium")[1][-1] == "72.0"


def test_a_run_on_a_gpu_is_of_another_machine(tmp_path: Path, cells: list[Cell]) -> None:
    page = write(tmp_path, [dataclasses.replace(cells[0], device="H100"), *cells[1:]])
    assert rows(page, "Decision-Aaren")[-1][0] == "3" and "Trained on: P0, float32." in page


def test_runs_that_differ_in_their_data_are_refused(tmp_path: Path, cells: list[Cell]) -> None:
    other = dataclasses.replace(cells[-1], last=dataclasses.replace(cells[-1].last, source_path="other.hdf5"))
    with pytest.raises(UsageError, match=r"source_path '/data/hopper-medium.hdf5' and 'other.hdf5'"):
        write(tmp_path, [*cells[:-1], other])


def test_runs_without_held_out_episodes(tmp_path: Path, cells: list[Cell]) -> None:
    cells = [dataclasses.replace(cell, last=dataclasses.replace(cell.last, action_error=None)) for cell in cells]
    page = write(tmp_path, cells)
    assert "on average over 2 datasets" in " ".join(page.split()) and "held-out action MSE minus" not in page
    assert rows(page, "hopper-medium")[2] == ["-"] * 8


def test_a_dataset_that_has_runs_without_a_target_alone(tmp_path: Path, cells: list[Cell]) -> None:
    page = write(tmp_path, [*cells, run("ant-medium", CLONED, 0, 30.0, 0.02)])
    assert rows(page, "ant-medium")[3] == ["-"] * 3


def test_the_peers(tmp_path: Path, cells: list[Cell]) -> None:
    """Of one peer on one dataset."""
    (folder := tmp_path / "results" / "peers").mkdir(parents=True)
    for seed in (0, 1):
        curve = [{"steps": 100 * (i + 1), "score": 10.0 * i + seed} for i in range(3)]
        run = {"dataset": "hopper-medium", "algorithm": "iql", "seed": seed, "steps": 300, "seconds": 90.0 + seed}
        run |= {"processor": "a", "curve": curve, "best": {"score": 30.0 + seed}, "last": {"score": 19.0 + seed}}
        (folder / f"{seed}.json").write_text(json.dumps(run))
    page = write(tmp_path, cells)
    assert rows(page, "hopper-medium")[-1] == ["70.0", "19.0, 20.0 (30.0, 31.0)"]
    assert rows(page, "mean of 1, last") == [["70.0", "19.5"]]
    assert "Training took IQL 0.57 times as long as Decision-Aaren, on one thread, by medians. Peers: 300" in page
    assert (tmp_path / "results" / "table1" / "peers.svg").exists()
    other = run | {"dataset": "walker2d-medium", "algorithm": "td3+bc"}
    with table1_cells.variants():
        shown, _ = table1_cells.read(tmp_path, read_grid(GRID))
        legend = table1_peers.figure(shown, [run, other]).legends[0]
    assert {text.get_text() for text in legend.get_texts()} == {"Decision-Aaren, mean", "IQL", "TD3+BC"}


def test_an_agent_under_way_does_not_take_the_average_away(tmp_path: Path, cells: list[Cell]) -> None:
    """10 % BC lacks a dataset that Decision-Aaren and Decision Transformer have."""
    more = [gated(run("ant-medium", OURS, 0, 90, 0.02)), run("ant-medium", THEIRS, 0, 60, 0.019)]
    page = write(tmp_path, [*cells, *more])
    assert "mean over 3 datasets" in page and rows(page, "Decision Transformer")[0][0] == "7"
    assert not rows(page.split("## Over all")[1], "10 % BC")
