"""The benchmark "steering": what it plays, and its table."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.command import main as bench
from benchmarks.steering import _difference, _steered, rank_correlation, show

from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.evaluate.held_out import all_episodes
from aaren_rl.policies.folder import read_card

pytestmark = pytest.mark.slow

FIGURES = {"env": "hopper-medium", "env_id": "Hopper-v4", "source": "local", "data_mean": 2.5}
FIGURES |= {"episodes": 2, "seed": 5, "guidance": 1.0}


@pytest.mark.parametrize("guidance", ["1", "1.5"])
def test_it_plays_what_evaluate_plays(trained_run: Path, tmp_path: Path, capsys, guidance: str) -> None:
    figures, scores = tmp_path / "figures.json", tmp_path / "scores.json"
    options = ["--episodes", "2", "--guidance", guidance, "--json"]
    plot = ["--values", "3", "--plot", str(tmp_path / "plot.svg")]
    assert bench(["steering", str(trained_run), "--seed", "5", *options, str(figures), *plot]) == 0
    out = capsys.readouterr().out
    assert "2 episodes per target return from seed 5" in out and ("; guidance 1.5\n" in out) == (guidance != "1")
    found = json.loads(figures.read_text())
    returns = all_episodes(trained_run, read_card(trained_run)).returns
    np.testing.assert_allclose(found["asked"], np.linspace(np.quantile(returns, 0.05), returns.max(), 3))
    asked = [*map(str, found["asked"]), "auto"]
    assert evaluate([str(trained_run), "--eval-seed", "5", *options, str(scores), "--target-return", *asked]) == 0
    achieved = [score["return_mean"] for score in json.loads(scores.read_text())]
    (agent,) = found["agents"]
    np.testing.assert_allclose([*agent["achieved"][0], *agent["auto"]], achieved)
    assert (tmp_path / "plot.svg").stat().st_size > 5000


def test_the_table_sums_runs_up() -> None:
    agents = [
        {"agent": "decision-aaren", "seeds": [0, 1], "updates": [9, 9], "rollout": "recurrent", "auto": [40.0, 60.0]},
        {"agent": "decision-transformer", "seeds": [0], "updates": [9], "rollout": "window", "auto": None},
    ]
    agents[0] |= {"achieved": [[100.0, 300.0], [200.0, 600.0]], "rank_correlation": 1.0, "difference": 0.25}
    agents[1] |= {"achieved": [[50.0, 40.0]], "rank_correlation": -1.0, "difference": 0.5}
    figures = {**FIGURES, "reference": [0.0, 1000.0], "asked": [90.0, 900.0], "agents": agents}
    lines = {line[:22].strip(): line[22:].split() for line in show(figures) if line}
    assert lines["90"] == ["150", "(15.0)", "50", "(5.0)"] and lines["900"] == ["450", "(45.0)", "40", "(4.0)"]
    assert lines["auto"] == ["50", "(5.0)", "-"] and lines["best of targets"] == ["450", "(45.0)", "50", "(5.0)"]
    assert lines["score range in points"] == ["30.0", "-1.0"] and lines["rank correlation"] == ["1.000", "-1.000"]
    assert lines["|achieved - target|"] == ["25.0%", "of", "target", "50.0%", "of", "target"]
    assert lines["training seeds"] == ["0,", "1", "0"]


def test_what_cannot_be_steered_has_no_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], np.array([7.0, 7.0, 7.0])) == 0.0


def test_a_target_of_zero_has_no_difference(trained_run: Path) -> None:
    card = read_card(trained_run)
    scores = [SimpleNamespace(return_mean=achieved, target_return=target) for achieved, target in ((1, 0), (3, 2))]
    assert _steered("bc", [0.0, 2.0], [(card, scores)])["difference"] == 0.5
    nothing = _steered("bc", [0.0], [(card, scores[:1])])
    assert nothing["difference"] is None and _difference(nothing) == "-"


def test_runs_of_two_environments_are_refused(trained_run: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained_run / "policy", other / "policy")
    card = other / "policy" / "config.json"
    card.write_text(card.read_text().replace('"env": "hopper-medium"', '"env": "hopper-expert"'))
    assert bench(["steering", str(trained_run), str(other)]) == 2
    assert "several environments or sources: hopper-expert, Hopper-v4, " in capsys.readouterr().err
    card.write_text(card.read_text().replace('"hopper-expert"', '"hopper-medium"'))
    assert bench(["steering", str(trained_run), str(other)]) == 2
    assert "two of the runs are of one agent and one training seed" in capsys.readouterr().err
    card.write_text(re.sub(r'"source_path": ".*"', '"source_path": "/data/b.hdf5"', card.read_text()))
    assert bench(["steering", str(trained_run), str(other)]) == 2
    assert "the runs are of several files of data" in capsys.readouterr().err
    assert bench(["steering", str(trained_run), "--register", "no_such_module"]) == 2
    assert "no_such_module" in capsys.readouterr().err
