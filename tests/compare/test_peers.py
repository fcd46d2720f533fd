"""scripts/peers: d3rlpy is given the data's ends as they are, a finished run is kept, a short one trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkout import load_script

from aaren_rl.base.errors import UsageError
from aaren_rl.envs import load_episodes
from aaren_rl.envs.data.episodes import Episode, join
from aaren_rl.envs.local.sets import RECIPE_VERSION

script = load_script("peers")
ASKED = {"dataset": "hopper-medium", "source": "local", "local_steps": 1_000_000, "recipe": RECIPE_VERSION}
ASKED |= {"algorithm": "iql", "seed": 0, "steps": 200}


def line(folder: Path, steps: int) -> list[str]:
    return [
        "hopper-medium",
        "--algorithm",
        "iql",
        "--steps",
        str(steps),
        "--results",
        str(folder),
        "--out",
        str(folder),
    ]


def test_a_termination_is_no_timeout() -> None:
    def episode(steps: int, terminated: bool) -> Episode:
        return Episode(*np.zeros((2, steps, 1), np.float32), np.zeros(steps, np.float32), terminated)

    parts = [episode(2, True), episode(3, False), episode(1, True)]
    terminals, timeouts = script.ends(join(parts, dataset="", env_id=""))
    assert terminals.tolist() == [0, 1, 0, 0, 0, 1]
    assert timeouts.tolist() == [0, 0, 0, 0, 1, 0]


def test_a_finished_run_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without d3rlpy: the size of the set is that of Table 1's grid, and another run is not taken for it."""
    at = {"steps": 200, "return_mean": 300.0, "score": 9.8}
    run = {**ASKED, "curve": [at], "best": at, "last": {**at, "score": 9.7}}
    (tmp_path / "hopper-medium-iql-seed0.json").write_text(json.dumps(run))
    assert script.run(script.parse(line(tmp_path, 200))) == 0
    assert "last 9.7 at 200 steps, best 9.8 at 200 steps" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"other settings, \{'steps': 200\}; choose another --results"):
        script.run(script.parse(line(tmp_path, 400)))
    with pytest.raises(UsageError, match="--steps 15000: give a multiple of 10,000"):
        script.run(script.parse(line(tmp_path, 15_000)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages that d3rlpy imports
@pytest.mark.parametrize("algorithm", script.ALGORITHMS)
def test_a_short_run(algorithm: str, hopper_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("d3rlpy")
    asked = {**ASKED, "algorithm": algorithm}
    run = json.loads(json.dumps(script.train(asked, load_episodes("hopper-medium", hopper_file), tmp_path)))
    assert [point["steps"] for point in run["curve"]] == [200]
    assert run["parameters"]["batch_size"] == 256
    assert run["last"]["return_mean"] == pytest.approx(np.mean(run["returns"]))
    assert np.mean(run["returns"][:10]) == pytest.approx(run["curve"][0]["return_mean"], rel=0.01)  # the same episodes
