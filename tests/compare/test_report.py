"""The report of a comparison: what it says, and that it says it on one page."""

import base64
import dataclasses
import re
import subprocess
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from synthetic import HIGH, LOW, README, make_cells

from aaren_rl.cli import shell_line
from aaren_rl.compare.report.answer import answer
from aaren_rl.compare.report.figures import DARK, INK, LINE, NARROW, WIDE, figures, overview
from aaren_rl.compare.report.tables import path
from aaren_rl.compare.report.write import format_comparison, write_report

SETTINGS = {"budget": "default", "seeds": [0, 1, 2], "versions": {"torch": "2.13.0"}}
KINDS = ["learning_curves", "state_memory", "target_returns", "time_per_action"]
DARK_PAGE, PHONE = "(prefers-color-scheme: dark)", "(max-width: 600px)"


class Page:
    """The page, which is XML, too: nothing that is not escaped, no tag that is not closed in order."""

    def __init__(self, source: str):
        self.root = ElementTree.fromstring(source)
        self.text = "".join(self.root.find("body").itertext())
        self.rows = [["".join(cell.itertext()) for cell in row] for row in self.root.iter("tr")]
        self.images = list(self.root.iter("img"))

    def drawings(self, media=None):
        """The SVG files of images, or of what replaces them where `media` holds."""
        others = [source.get("srcset") for source in self.root.iter("source") if source.get("media") == media]
        for address in others if media else [image.get("src") for image in self.images]:
            yield base64.b64decode(address.removeprefix("data:image/svg+xml;base64,"), validate=True)


def report(folder, cells, settings=SETTINGS):
    write_report(folder, cells, settings)
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "report.md"]
    source = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(source)
    assert re.search(r"\bnan\b|\binf\b|\bNone\b", page.text) is None
    # Nothing is fetched: no address in an attribute or a style, no tag that would load or run something.
    assert re.search(r"https?://|url\(|@import", source) is None
    assert not {"script", "link", "iframe", "object", "base"} & {element.tag for element in page.root.iter()}
    assert all(image.get("alt") for image in page.images)
    assert all(b"<path" in drawing for drawing in page.drawings())
    return page, (folder / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The page and the Markdown, which the same results give again."""
    folder, again = (tmp_path_factory.mktemp("report") / name for name in ("new", "again"))
    made = report(folder, make_cells(README))
    report(again, make_cells(README))
    assert (again / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    return made


def test_figures_suit_a_dark_page_and_a_phone(both):
    """No text is drawn in black, matplotlib's own, and every color of the light figures has a counterpart."""
    page, _ = both
    assert len(list(page.drawings())) == 5
    for drawing, other in zip(page.drawings(), page.drawings(DARK_PAGE), strict=True):
        assert b"#000000" not in drawing and drawing != other
        used = {found.decode() for found in re.findall(rb"#[0-9a-f]{6}", drawing)}
        assert {INK, LINE} <= used <= set(DARK)
        assert not used & {found.decode() for found in re.findall(rb"#[0-9a-f]{6}", other)}
    opening = next(page.drawings()), *page.drawings(PHONE), *page.drawings(f"{PHONE} and {DARK_PAGE}")
    widths = [float(re.search(rb'width="([\d.]+)pt"', drawing)[1]) / 72 for drawing in opening]
    assert widths == pytest.approx([WIDE, NARROW, NARROW])


def test_no_users_folder_is_shown_and_the_command_is_as_a_shell_takes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/me")
    for home in ("/srv/me", "/home/alice", "/Users/bob", "/root"):
        assert path(f"{home}/runs/seed0") == "~/runs/seed0"
    cells = make_cells({"decision-aaren": [50.0]}, source="file", source_path="/srv/me/data/own.hdf5")
    cells = [dataclasses.replace(cell, run="/home/alice/runs/seed0") for cell in cells]
    assert path("/srv/men/runs") == "/srv/men/runs"
    argv = ["--env", "hopper-medium", "--out=/srv/me/a b/c", "--", "--width", "16", ""]
    line = shell_line("compare", argv)
    assert line == """aaren-rl compare --env hopper-medium --out="$HOME"'/a b/c' -- --width 16 ''"""
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert echoed.stdout.splitlines()[2:] == argv
    page, markdown = report(tmp_path, cells, {"command": line, "train": argv[-3:]})
    assert re.search(r"/srv/me|/home/alice", page.text + markdown) is None
    assert "~/data/own.hdf5" in page.text and page.rows[-1][-1] == "~/runs/seed0"
    assert page.root.findtext(".//pre") == line and f"\n\n    {line}\n" in markdown
    assert not [row for row in page.rows if row[0] in ("train", "command")]


def test_the_answer_comes_first_in_plain_words(both):
    answer = (
        "On hopper-medium (local data, not D4RL's), Decision-Aaren scores 76.6 [63.8, 83.7] and Decision Transformer "
        "55.2 [41.1, 68.7] (3 training seeds); the probability that a run of Decision-Aaren scores above one of "
        "Decision Transformer is 0.89 [0.56, 1.00], so Decision-Aaren scores higher. An action on hopper-medium costs "
        "Decision-Aaren 1,501 µs at step 10 and 1,501 µs at step 1,000 and Decision Transformer 2,090 µs at step 10 "
        "and 11,000 µs at step 1,000."
    )
    page, markdown = both
    assert answer in page.text and page.text.index(answer) < page.text.index("IQM")
    assert answer in markdown and answer in " ".join(format_comparison(make_cells(README)).split())


def test_the_answer_compares_the_first_agent_with_each_other():
    """Of three agents there are three pairs, and a reader asks for two."""
    agents = {"decision-aaren": [70.0], "decision-transformer": [60.0], "decision-gru": [80.0]}
    said = answer(make_cells(agents)).split("that a run of ")[1:]
    assert len(said) == 2 and all(pair.startswith("Decision-Aaren scores above one of ") for pair in said)


def test_every_run_and_how_it_was_made_is_there(both):
    page, markdown = both
    for cell in make_cells(README):
        (row,) = [row for row in page.rows if row[-1] == cell.run]
        score, best = f"{cell.last.normalized_score_mean:.1f}", f"{cell.best.normalized_score_mean:.1f}"
        assert (row[2], row[3], row[4], row[6]) == (str(cell.seed), "local", score, best)
        assert row[7].startswith(f"{cell.last.return_mean:,.1f} ± ") and f"| {' | '.join(row)} |" in markdown
    rows = [row[2:] for row in page.rows if row[:2] == ["hopper-medium", "Decision Transformer"]]
    data = "hopper-medium from a local set, not D4RL's: /data/hopper-medium.hdf5"
    training = ["1,500 gradient steps, window contexts of 20 steps", "window, K = 20", "3,600"]
    assert [
        data,
        "Hopper-v4",
        *training,
        "20 episodes from seed 1000; last gradient step, EMA weights",
        "0, 1, 2",
    ] in rows
    time, state = "2,090 µs at step 10 and 11,000 µs at step 1,000", "10.0 kB at step 10 and 1,000.0 kB at step 1,000"
    assert ["612,345", "0.0480", "82.0 ms", "cpu", time, state] in rows
    assert ["versions.torch", "2.13.0"] in page.rows and ["seeds", "0, 1, 2"] in page.rows


def test_a_score_says_on_whose_data_it_was_made(both, tmp_path):
    page, markdown = both
    head = next(row for row in page.rows if "IQM [95%] local" in row)
    own = [f"{name} local" for name in ("mean [95%]", "sd", "IQM [95%]", "best", "mean of last 3")]
    theirs = ("Attention as an RNN, Table 1", "CORL, last", "CORL, best", "Decision Transformer paper")
    assert head == ["agent", *own, "seeds", *[f"{source} D4RL" for source in theirs]]
    aaren, transformer = (page.rows[page.rows.index(head) + i] for i in (1, 2))
    scores = ["76.6 [63.8, 83.7]", "11.1", "76.6 [63.8, 83.7]", "84.1", "75.3", "0, 1, 2"]
    assert aaren[1:] == [*scores, "80.86 ± 4.77", *"---"]
    assert transformer[7:] == ["80.18 ± 5.85", "65.1", "69.42", "67.6"]
    lines = format_comparison(make_cells(README)).splitlines()
    assert lines[0] == "hopper-medium: scores normalized by D4RL v2; data: local" and max(map(len, lines)) <= 120
    assert "CORL" not in lines[1] and lines[2].split() == f"Decision-Aaren {' '.join(scores)}".split()
    assert lines[5] == "CORL, last (D4RL): Decision Transformer 65.1"
    assert "its scores are not D4RL results" in page.text and "not D4RL results" in markdown
    assert "mean [95%] (local)" in markdown and "CORL, last (D4RL)" in markdown
    page, _ = report(tmp_path, make_cells(README, source="d4rl"))
    assert any("mean [95%] D4RL" in row for row in page.rows) and "not D4RL" not in page.text


def test_scores_stand_beside_what_the_data_return(tmp_path):
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0}, "reference_returns": [LOW, HIGH]}
    cells = [*make_cells({"decision-aaren": [50.0]}), *make_cells({"decision-transformer": [40.0]}, **known)]
    line = "hopper-medium, data: mean 1383 (43.1), best tenth 2871 (88.8)"
    page, markdown = report(tmp_path, cells)
    assert line in page.text and line in markdown and line in format_comparison(cells).splitlines()
    assert "Scores normalized by D4RL v2 are 100 (return - random) / (expert - random)." in page.text
    page, _ = report(tmp_path, make_cells(README, reference="own"))
    assert "(expert - random)" not in page.text


def test_several_tasks_are_averaged_over(tmp_path):
    scores = {"decision-aaren": [36.0, 35.0, 35.5], "decision-transformer": [35.2, 35.5, 35.5]}
    cells = make_cells(README) + make_cells(scores, env="halfcheetah-medium", source="d4rl")
    page, _ = report(tmp_path, cells)
    assert "On average over 2 tasks (local data, not D4RL's and D4RL's data), Decision-Aaren scores 56.0 [" in page.text
    assert "mean of means [95%] local and D4RL" in next(row for row in page.rows if row[-1] == "runs")
    tasks = [row[0] for row in page.rows if "Decision-Aaren above" in row[1]]
    assert tasks == ["hopper-medium", "halfcheetah-medium", "all tasks"]
    assert len(page.images) == 9


def test_returns_where_there_is_no_reference(tmp_path):
    cells = make_cells({"decision-aaren": [-150.0], "decision-transformer": [-170.0]}, reference=None, source="file")
    page, markdown = report(tmp_path / "own", cells)
    assert "Decision-Aaren returns -150.0 and Decision Transformer -170.0 (1 training seed)" in page.text
    assert "is 1.00, from too few runs for an interval" in page.text
    assert "There are no published scores to compare with." in markdown
    assert "Attention as an RNN" not in page.text and "scores are not D4RL results" in page.text
    assert any("mean [95%] your file" in row for row in page.rows)
    assert figures(cells)["learning_curves/hopper-medium"].axes[0].get_ylabel() == "return of an episode"
    every = next(row for row in page.rows if "sd over episodes" in row)
    runs = [row for row in page.rows if len(row) == len(every) and row[0] == "hopper-medium"]
    assert [row[every.index("best")] for row in runs] == [f"{cell.best.return_mean:.1f}" for cell in cells]
    assert "(return - random)" not in page.text and "Scores are those of the last gradient step" in markdown
    others = format_comparison(make_cells(README, reference="Minari's reference returns", source="minari"))
    assert "Attention as an RNN" not in others and "Minari's data, not D4RL's" in others


def test_what_was_not_measured_is_said(tmp_path):
    nothing = {"curve": [], "sweep": [], "action_cost": []}
    cells = [dataclasses.replace(cell, **nothing) for cell in make_cells({"decision-aaren": [50.0, 60.0]})]
    page, markdown = report(tmp_path, cells, {})
    assert len(page.images) == 1 and list(figures(cells)) == ["all_scores"]
    for sentence in (
        *("No task has runs of two agents", "there are no evaluations during training"),
        *("the time of an action was not measured", "the memory of the policy's state was not measured"),
        *("imitation was not measured", "no other target returns were tried"),
        "Decision-Aaren scores 55.0 (2 training seeds).",
    ):
        assert sentence in page.text and sentence in markdown
    assert "Settings of the comparison" not in page.text and "held-out" not in format_comparison(cells)


def test_names_and_paths_are_shown_as_they_are(tmp_path):
    nasty = '<b>a|&"$x_{$</b>](javascript:1)\n`'
    (cell,) = make_cells({"bc": [50.0]}, env=nasty, source="file", source_path=nasty, dataset=nasty)
    cells = [dataclasses.replace(cell, run=nasty)]
    page, markdown = report(tmp_path, cells, {nasty: nasty, "command": nasty})
    assert not {"b", "a"} & {element.tag for element in page.root.iter()}
    assert [nasty, nasty] in page.rows
    assert all(nasty.replace("\n", " ") in image.get("alt") for image in page.images) and len(page.images) == 5
    (command,) = re.findall(r"^    (.*)$", markdown, re.MULTILINE)  # in a block of code, where nothing is markup
    assert command == " ".join(nasty.split())
    rest = markdown.replace(f"    {command}\n", "")
    assert re.search(r"(?<!\\)<(?!/?(details|summary)>)|\]\(javascript", rest) is None
    (row,) = re.findall(r"^\|.*recurrent.*$", markdown, re.MULTILINE)
    assert len(re.findall(r"(?<!\\)\|", row)) == 10


def lines(figure: Figure) -> dict[str, list[list[float]]]:
    """Those that have a place in the legend."""
    named = {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in figure.axes[0].lines}
    return {name: points for name, points in named.items() if not name.startswith("_")}


def test_the_opening_figure_has_a_dot_a_seed():
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1334.0}, "reference_returns": [LOW, HIGH]}
    (axes,) = overview(make_cells(README, **known)).axes
    drawn = [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]
    for row, (agent, mean, ends) in enumerate(zip(README, (76.6, 55.2), ([63.8, 83.7], [41.1, 68.7]), strict=True)):
        assert [README[agent], [row] * 3] in drawn and [pytest.approx(ends, abs=0.05), [row, row]] in drawn
        assert any(x == pytest.approx([mean] * 2, abs=0.05) and sum(y) / 2 == row for x, y in drawn if len(x) == 2)
    data = {line.get_linestyle(): line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert data == {style: pytest.approx(x, abs=0.05) for style, x in ((":", 43.1), ("-.", 88.8), ("--", 41.6))}
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 88.8
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[:3] == ["a training seed", "mean", "95% interval"] and "data, mean: 43.1" in legend
    (axes,) = overview(make_cells({"decision-aaren": [-1.5, 3.0]})).axes
    assert axes.get_xlim()[0] < -1.5


def test_figures_show_the_mean_and_the_seeds_each_agent_in_its_color():
    first, second, other = make_cells({"decision-aaren": [30.0, 60.0], "bc": [15.0]})
    second = dataclasses.replace(second, curve=second.curve[1:])  # the mean stays where all seeds are
    found = figures([first, second, other])
    assert list(found) == ["all_scores", *(f"{kind}/hopper-medium" for kind in KINDS)] == sorted(found)
    curves = found["learning_curves/hopper-medium"]
    means = [[1000, 1500], [30.5, 45.5]], [[500, 1000, 1500], [5, 10, 15]]
    assert lines(curves) == dict(zip(("Decision-Aaren (2 seeds)", "Behavioral cloning (1 seed)"), means, strict=True))
    thin = [list(line.get_ydata()) for line in curves.axes[0].lines if line.get_linewidth() < 1]
    assert thin == [[20.0, 30.0], [41.0, 61.0]]
    assert curves.axes[0].get_ylim()[0] == 0
    assert lines(found["target_returns/hopper-medium"])["achieved = target"] == [[1200.0, 4800.0]] * 2
    time, state = (found[f"{kind}/hopper-medium"].axes[0] for kind in ("time_per_action", "state_memory"))
    assert (time.get_xscale(), time.get_ylim()[0], state.get_xscale()) == ("log", 0, "log")
    assert lines(found["state_memory/hopper-medium"])["Decision-Aaren (2 seeds)"][1] == [3.284] * 3
    thick = [[line.get_color() for line in found[f"{kind}/hopper-medium"].axes[0].lines][::3] for kind in KINDS]
    assert len({tuple(colors[:2]) for colors in thick}) == 1 and len(set(thick[0])) == 2
