"""scripts/table1 run: what is missing is trained and scored, what is there is kept, no path of a machine shows."""

import json
import shutil
from pathlib import Path

import pytest
from small_run import load_script
from table1_cells import read_results

from aaren_rl.base.errors import UsageError
from aaren_rl.compare.measure import Cell
from aaren_rl.train.run import run_training

script = load_script("table1")
GRID = """
preset: default
envs: [hopper-medium, hopper-medium-replay]
agents: [decision-aaren, bc]
seeds: [0]
agent_seeds: {decision-aaren: [0, 1]}
settings: {updates: 2, width: 16, layers: 1, heads: 2, eval_episodes: 1, final_episodes: 1, warmup_updates: 1,
           precision: bfloat16}
"""


def line(folder: Path, source: Path, *more: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.yaml").write_text(GRID)
    own = ["run", "hopper-medium", "--grid", str(folder / "grid.yaml"), "--out", str(folder / "runs"), "--jobs", "2"]
    return [*own, "--results", str(folder / "results"), "--episodes", "2", *more, "--", "--source", str(source)]


@pytest.fixture(scope="module")
def made(hopper_file, tmp_path_factory) -> Path:
    """An agent of the first seed, then the rest."""
    folder = tmp_path_factory.mktemp("table1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "train_all", lambda requests, jobs: max(map(run_training, requests)))
        assert script.run(script.parse(line(folder, hopper_file, "--seeds", "0", "--agents", "bc"))) == 0
        assert [(c.agent, c.seed) for c in cells(folder)] == [("bc", 0)]
        shutil.rmtree(folder / "runs")
        assert script.run(script.parse(line(folder, hopper_file))) == 0
    return folder


def cells(folder: Path) -> list[Cell]:
    return read_results(folder / "results" / "hopper-medium.json")[0]


@pytest.mark.slow
def test_every_run_of_the_grid_is_there_once(made):
    assert [(c.agent, c.seed) for c in cells(made)] == [("decision-aaren", 0), ("decision-aaren", 1), ("bc", 0)]
    assert sorted(run.name for run in (made / "runs").rglob("seed*")) == ["seed0", "seed1"]  # bc was in the results
    aaren, _, bc = cells(made)
    assert aaren.last.episodes == 2 and len(aaren.sweep) == 5 and bc.sweep == []
    assert aaren.last.action_error is not None and aaren.best is None


def test_it_says_how_it_was_made_and_not_where(made, hopper_file):
    text = (made / "results" / "hopper-medium.json").read_text()
    settings = json.loads(text)["settings"]
    assert settings["settings"]["updates"] == 2 and settings["evaluation"]["episodes"] == 2
    assert set(settings["made"]["hopper-medium/bc/seed0"]) >= {"date", "processor", "recipe", "torch"}
    assert {how["precision"] for how in settings["made"].values()} == {"bfloat16"}
    assert {cell.last.source_path for cell in cells(made)} == {hopper_file.name}
    body = text.replace(json.dumps(str(hopper_file)), "")  # the settings of train, as they were typed
    assert str(made) not in body and str(hopper_file.parent) not in body
    assert all(value == float(f"{value:.6g}") for cell in cells(made) for value in cell.last.returns)


def test_again_does_nothing_and_other_settings_are_not_mixed(made, hopper_file):
    file = made / "results" / "hopper-medium.json"
    before, asked = file.stat().st_mtime_ns, line(made, hopper_file)
    assert script.run(script.parse(asked)) == 0
    assert file.stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="holds runs of other settings"):
        script.run(script.parse([*asked, "--updates", "3"]))
    with pytest.raises(UsageError, match="bc-top10: not an agent of the grid; it has decision-aaren, bc"):
        script.run(script.parse(line(made, hopper_file, "--agents", "bc-top10")))
    with pytest.raises(UsageError, match="7: not a seed of the grid; it has 0, 1"):
        script.run(script.parse(line(made, hopper_file, "--seeds", "7")))
