"""scripts/table1 page: the page is what the committed results say, and every number of a made-up one is its own."""

import dataclasses
import shutil
from pathlib import Path

import docs_tables
import pytest
import table1_page
from small_run import ROOT, load_script
from synthetic import make_cell

from aaren_rl.base.errors import UsageError
from aaren_rl.compare.measure import Cell, write_results
from aaren_rl.evaluate.scores import ActionError
from aaren_rl.policies.table import AGENTS as KNOWN
from aaren_rl.sweep import read_grid

GRID = str(ROOT / "configs" / "local" / "benchmark.yaml")
OURS, THEIRS, CLONED, ONE_TOKEN = "decision-aaren", "decision-transformer", "bc-top10", "decision-transformer-1token"
STEERED = ["1.00", "49 %", "57 %", "1 of 2"]  # of two datasets


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
    for page in table1_page.PAGES:
        shutil.copy(ROOT / "docs" / page, docs)
    assert table1_page.write(docs, read_grid(GRID)) == 0
    pages = "".join((docs / page).read_text(encoding="utf-8") for page in table1_page.PAGES)
    return "\n".join(found[0] for found in docs_tables.PART.finditer(pages))


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


def test_the_pages_are_made_of_the_results(tmp_path):
    """A result that is landed needs its page written again."""
    docs, kept = tmp_path / "docs", ROOT / "docs" / "results"
    for results in ("benchmark", "table1"):
        shutil.copytree(kept / results, docs / "results" / results, ignore=shutil.ignore_patterns("*.svg"))
    texts = {page: (ROOT / "docs" / page).read_text(encoding="utf-8") for page in table1_page.PAGES}
    for page, text in texts.items():
        assert docs_tables.PART.search(text)
        (docs / page).write_text(docs_tables.PART.sub(r"\1\3", text), encoding="utf-8")
    known = dict(KNOWN)
    asked = load_script("table1").parse(["page", str(docs)])
    assert asked.call(asked) == 0
    assert {page: (docs / page).read_text() for page in texts} == texts and list(known) == list(KNOWN)
    drawn = {file.name for file in (docs / "results" / "table1").glob("*.svg")}
    assert drawn == {file.name for file in (kept / "table1").glob("*.svg")} == {"forest.svg"}


def test_every_number(tmp_path, cells):
    with pytest.raises(UsageError, match="no results here; scripts/table1 writes them"):
        table1_page.write(tmp_path / "nowhere", read_grid(GRID))
    page = write(tmp_path, cells)
    said = " ".join(page.split())
    # +10 and -6; 10 % BC has 55 on both, and too few seeds for an interval
    assert "**Decision-Aaren scores 2.0 [2.0, 2.0] and 2.0 points more than Decision Transformer and 10" in said
    assert "2 datasets; a run of it scores above one of theirs with probability 0.50 [0.50, 0.50] and 0.50." in said
    assert "minus Decision Transformer's is -0.0030 [-0.0030, -0.0030] on average; lower on 2, higher on 0" in said
    *_, scores = rows(page, "hopper-medium")
    assert scores == ["70.0 [70.0, 70.0]", "60.0 [60.0, 60.0]", "55.0", "25.0, 50.0; 37.5"]
    assert rows(page, "Decision-Aaren")[-1] == STEERED
    assert rows(page, "Decision-Aaren")[1] == ["4", "105", "3.3 kB"] and "Trained on: P0, float32." in page
    assert "| agent | runs | mean over 2 datasets [95%] |" in page
    assert rows(page, "Decision-Aaren")[0] == ["6", "57.0 [57.0, 57.0]", "57.0 [57.0, 57.0]", "-", "-", "-"]
    ours = ["2.0 [2.0, 2.0]", "0.50 [0.50, 0.50]", "lower on 2, higher on 0 of 2"]
    assert rows(page, "Decision Transformer")[0] == ["6", "55.0 [55.0, 55.0]", "55.0 [55.0, 55.0]", *ours]
    steps = [row[1:] for name in ("the forget gate", "all of it") for row in rows(page, name)]
    assert steps[0] == ["4.0 [4.0, 4.0]", "1.00 [1.00, 1.00]", "2, 0 of 2", "hopper-medium 5.0"]
    assert steps[1] == ["2.0 [2.0, 2.0]", "0.50 [0.50, 0.50]", "1, 1 of 2", "hopper-medium 10.0"]


def test_one_token_alone(tmp_path, cells):
    """Of one dataset there is no mean; of two there is."""
    first, second = (run(env, ONE_TOKEN, 0, score, 0.03) for env, score in ((cells[0].env, 72), (cells[-1].env, 43)))
    assert not rows(write(tmp_path / "first", [*cells, first]), "one token per step")
    page = write(tmp_path / "both", [*cells, first, second])
    assert rows(page, "one token per step")[0][1:3] == ["2.5", "0.50"]


def test_a_run_on_a_gpu_is_of_another_machine(tmp_path, cells):
    page = write(tmp_path, [dataclasses.replace(cells[0], device="H100"), *cells[1:]])
    assert rows(page, "Decision-Aaren")[1][0] == "3" and "Trained on: P0, float32." in page


def test_runs_that_differ_in_their_data_are_refused(tmp_path, cells):
    other = dataclasses.replace(cells[-1], last=dataclasses.replace(cells[-1].last, source_path="other.hdf5"))
    with pytest.raises(UsageError, match=r"source_path '/data/hopper-medium.hdf5' and 'other.hdf5'"):
        write(tmp_path, [*cells[:-1], other])


def test_runs_without_held_out_episodes(tmp_path, cells):
    cells = [dataclasses.replace(cell, last=dataclasses.replace(cell.last, action_error=None)) for cell in cells]
    page = write(tmp_path, cells)
    assert "on average over 2 datasets" in " ".join(page.split()) and "held-out action MSE minus" not in page


def test_a_dataset_that_has_runs_without_a_target_alone(tmp_path, cells):
    page = write(tmp_path, [*cells, run("ant-medium", CLONED, 0, 30.0, 0.02)])
    assert rows(page, "Decision-Aaren")[-1][-1] == STEERED[3]


def test_an_agent_under_way_does_not_take_the_average_away(tmp_path, cells):
    """10 % BC lacks a dataset that Decision-Aaren and Decision Transformer have."""
    more = [gated(run("ant-medium", OURS, 0, 90, 0.02)), run("ant-medium", THEIRS, 0, 60, 0.019)]
    page = write(tmp_path, [*cells, *more])
    assert "mean over 3 datasets" in page and rows(page, "Decision Transformer")[0][0] == "7"
    chose = "it is 10.0 on the 1 datasets that chose its settings and 12.0 on the 2 others"
    assert chose in " ".join(page.split())
    assert not rows(page, "10 % BC")
