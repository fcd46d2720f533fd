"""The report of a comparison: what it says, and that it says it again."""

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from synthetic import HIGH, LOW, README, make_cells

from aaren_rl.cli import shell_line
from aaren_rl.compare.measure import Cell
from aaren_rl.compare.report import figures, format_comparison, overview, path, write_report

SETTINGS = {"preset": "default", "versions": {"torch": "2.13.0"}}


def report(folder: Path, cells: list[Cell], settings: dict[str, Any] = SETTINGS) -> str:
    write_report(folder, cells, settings)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\bnan\b|\binf\b|\bNone\b", text) is None
    shown = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert shown and all("<path" in (folder / file).read_text(encoding="utf-8") for file in shown)
    return text


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table below a title, its heads first."""
    lines = text.partition(f"{title}\n")[2].strip().partition("\n\n")[0].splitlines()
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [found[0], *found[2:]]


def test_scores_of_every_agent(tmp_path):
    text = report(tmp_path / "new", make_cells(README))
    report(tmp_path / "again", make_cells(README))
    for file in (tmp_path / "new").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(tmp_path / "new")).read_bytes()
    heads, aaren, transformer = rows(text, "## Scores")
    assert heads[:6] == ["task", "agent", "data", "mean [95%]", "sd", "IQM [95%]"]
    numbers = ["76.6 [63.8, 83.7]", "11.1", "76.6 [63.8, 83.7]", "84.1", "75.3", "0, 1, 2"]
    assert aaren == ["hopper-medium", "Decision-Aaren", "local", *numbers]
    assert transformer[3] == "55.2 [41.1, 68.7]"
    pair = ["hopper-medium", "Decision-Aaren above Decision Transformer", "0.89 [0.56, 1.00]"]
    assert rows(text, "## Probability of improvement")[1] == pair
    printed = format_comparison(make_cells(README))
    assert rows(printed, "Scores")[1] == aaren and rows(printed, "Probability of improvement")[1] == pair


def test_every_run_is_there(tmp_path):
    text = report(tmp_path, make_cells(README))
    for cell, row in zip(make_cells(README), rows(text, "## Every run")[1:], strict=True):
        score, best = f"{cell.last.normalized_score_mean:.1f}", f"{cell.best.normalized_score_mean:.1f}"
        assert (row[2], row[3], row[4], row[-1]) == (str(cell.seed), score, best, cell.run)
        assert row[5].startswith(f"{cell.last.return_mean:,.1f} ± ")
    assert rows(text, "one thread)")[2][2:] == ["612,345", "82.0 ms", "cpu", "11,000 µs", "1,000.0 kB"]
    assert "    versions: {'torch': '2.13.0'}" in text


def test_several_tasks_and_returns_without_a_reference(tmp_path):
    scores = {"decision-aaren": [36.0, 35.0, 35.5], "decision-transformer": [35.2, 35.5, 35.5]}
    cells = make_cells(README) + make_cells(scores, env="halfcheetah-medium", source="d4rl")
    text = report(tmp_path / "two", cells)
    assert rows(text, "## Over all tasks")[1][0] == "Decision-Aaren" and "| 56.0 [" in text
    assert [row[2] for row in rows(text, "## Scores")[1:]] == ["local", "local", "D4RL", "D4RL"]
    tasks = [row[0] for row in rows(text, "## Probability of improvement")[1:]]
    assert tasks == ["hopper-medium", "halfcheetah-medium", "all"]
    cells = make_cells({"decision-aaren": [-150.0], "decision-transformer": [-170.0]}, reference=None, source="file")
    text = report(tmp_path / "own", cells)
    assert rows(text, "## Scores")[1][2:7] == ["your file", "-150.0", "-", "-150.0", "-142.5"]
    assert "Over all tasks" not in text
    assert overview(cells).axes[0].get_xlabel() == "return of an episode"


def test_scores_stand_beside_what_the_data_return(tmp_path):
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0}, "reference_returns": [LOW, HIGH]}
    cells = [*make_cells({"decision-aaren": [50.0]}), *make_cells({"decision-transformer": [40.0]}, **known)]
    line = "hopper-medium, data: mean 1383 (43.1), best tenth 2871 (88.8)"
    assert line in report(tmp_path, cells) and line in format_comparison(cells).splitlines()


def test_what_was_not_measured_is_left_out(tmp_path):
    nothing: dict[str, Any] = {"curve": [], "sweep": [], "action_cost": []}
    cells = [dataclasses.replace(cell, **nothing) for cell in make_cells({"decision-aaren": [50.0, 60.0]})]
    text = report(tmp_path, cells, {})
    assert list(figures(cells)) == ["all_scores"] and "improvement" not in format_comparison(cells)
    assert "Held-out error" not in text and rows(text, "one thread)")[1][5:] == ["-", "-"]


def test_no_users_folder_is_shown_and_the_command_is_as_a_shell_takes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/me")
    for home in ("/srv/me", "/home/alice", "/Users/bob", "/root"):
        assert path(f"{home}/runs/seed0") == "~/runs/seed0"
    assert path("/srv/men/runs") == "/srv/men/runs"
    cells = make_cells({"decision-aaren": [50.0]}, source="file", source_path="/srv/me/data/own.hdf5")
    argv = ["--env", "hopper-medium", "--out=/srv/me/a b/c", "--", "--width", "16", ""]
    line = shell_line("compare", argv)
    assert line == """aaren-rl compare --env hopper-medium --out="$HOME"'/a b/c' -- --width 16 ''"""
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert echoed.stdout.splitlines()[2:] == argv
    text = report(tmp_path, [dataclasses.replace(cells[0], run="/home/alice/runs/seed0")], {"command": line})
    assert re.search(r"/srv/me|/home/alice", text) is None and f"\n\n    command: {line}\n" in text


def test_names_and_paths_are_shown_as_they_are(tmp_path):
    nasty = '<b>a|&"$x_{$</b>](javascript:1)\n`'
    (cell,) = make_cells({"bc": [50.0]}, source="file", source_path=nasty, dataset=nasty)
    text = report(tmp_path, [dataclasses.replace(cell, run=nasty)], {nasty: nasty})
    (setting,) = re.findall(r"^    (.*)$", text, re.MULTILINE)  # in a block of code, where nothing is markup
    assert setting == " ".join(f"{nasty}: {nasty}".split())
    rest = text.replace(f"    {setting}\n", "")
    assert re.search(r"(?<!\\)<|\]\(javascript", rest) is None
    assert len(rows(text, "## Every run")[1]) == 10


def test_the_figure_of_scores_has_a_dot_per_seed():
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1334.0}, "reference_returns": [LOW, HIGH]}
    (axes,) = overview(make_cells(README, **known)).axes
    drawn = [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]
    for row, (agent, mean, ends) in enumerate(zip(README, (76.6, 55.2), ([63.8, 83.7], [41.1, 68.7]), strict=True)):
        assert [README[agent], [row] * 3] in drawn and [pytest.approx(ends, abs=0.05), [row, row]] in drawn
        assert any(x == pytest.approx([mean] * 2, abs=0.05) and sum(y) / 2 == row for x, y in drawn if len(x) == 2)
    data = {line.get_linestyle(): line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert data == {style: pytest.approx(x, abs=0.05) for style, x in ((":", 43.1), ("-.", 88.8), ("--", 41.6))}
    legend = {text.get_text() for text in axes.figure.legends[0].get_texts()}
    assert legend == {"a training seed", "mean", "95% interval", *(f"data, {x}" for x in ("mean", "best tenth"))} | {
        "deterministic behavior policy"
    }


def test_curves_are_means_where_all_seeds_have_a_point():
    cells = make_cells({"decision-aaren": [30.0, 60.0]})
    shorter = dataclasses.replace(cells[1], curve=cells[1].curve[:2])
    figure = figures([cells[0], shorter])["hopper-medium"]
    labels = ["score", "achieved return", "time per action (µs)", "state memory (kB)"]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    mean = figure.axes[0].lines[-1]
    assert list(mean.get_xdata()) == [500, 1000] and list(mean.get_ydata()) == [15.5, 30.5]
