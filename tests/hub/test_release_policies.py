"""scripts/release_policies: what it writes is loaded and plays, by PyTorch and by ONNX, as Table 1's run does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from checkout import load_script
from synthetic import make_cell

from aaren_rl.base.errors import UsageError
from aaren_rl.compare.cells import write_results
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.hub import from_pretrained
from aaren_rl.hub.folder import read_scores


def test_every_policy_is_whole_and_plays(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of hopper-medium alone, whose run is the one that the tests share."""
    assert evaluate([str(trained_run), "--episodes", "2", "--json", str(tmp_path / "scores.json")]) == 0
    score, script = read_scores(tmp_path / "scores.json")[0], load_script("release_policies")
    place, results = tmp_path / "runs" / "hopper-medium" / score.agent, tmp_path / "results"
    place.mkdir(parents=True)
    (place / "seed0").symlink_to(trained_run)
    results.mkdir()
    cell = dataclasses.replace(make_cell(agent=score.agent), last=score)
    write_results(results / "hopper-medium.json", [cell], {}, {})
    line = [str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--results", str(results), "--agent", score.agent]
    assert script.run(script.parse(line)) == 0
    said = capsys.readouterr().out
    assert "no results yet: halfcheetah-medium, " in said
    folder = tmp_path / "out" / f"hopper-medium-{score.agent}-local"
    written = ["README.md", "config.json", "model.safetensors", "policy.onnx", "replay.mp4"]
    assert sorted(file.name for file in folder.iterdir()) == written
    assert from_pretrained(folder).model is not None and (folder / "replay.mp4").read_bytes()[4:8] == b"ftyp"
    assert f"{folder}: score {score.normalized_score_mean:.1f} over 2 episodes" in said
    # The episode is the first of the score's, and ONNX plays the same.
    (found,) = re.findall(r"return (\S+), by ONNX (\S+)\n", said)
    torch, onnx = (float(x.replace(",", "")) for x in found)
    assert torch == pytest.approx(score.returns[0], abs=0.06) and onnx == pytest.approx(torch, rel=0.01)
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert script.run(script.parse(line)) == 0
    assert before == {file: file.stat().st_mtime_ns for file in before}
    assert not list((tmp_path / "out").glob(".episode*"))
    with pytest.raises(UsageError, match="hopper-medium: the results have no decision-rsa of seed 0"):
        script.run(script.parse([*line, "--agent", "decision-rsa"]))
