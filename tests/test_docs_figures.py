"""Charts and drawings of the documentation: transparent, with other colors on a dark page, each from what is landed."""

import re
import subprocess
import sys

import pytest
from small_run import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import docs_charts
import docs_dark

DRAWN = docs_charts.names(ROOT / "docs")


@pytest.mark.parametrize("file", DRAWN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_drawing_is_for_light_and_dark_pages(file):
    svg = file.read_text(encoding="utf-8")
    assert docs_dark.adapt(svg) == svg, "scripts/docs_figures adapts it"
    assert svg.count("prefers-color-scheme: dark") == 1
    width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1])
    assert width <= 72 * docs_charts.WIDTH + 18, "letters are too small on a phone"


def test_a_chart_shows_what_was_printed():
    """The values of the lines, agent by agent, in the agents' own colors."""
    mazes = docs_charts.memory().axes[0]
    shown = {line.get_label(): line for line in mazes.lines}
    assert list(shown["Decision Transformer"].get_ydata()) == [41, 41]
    recurrent = [shown[name] for name in ("Decision-Aaren", "Decision-GRU", "Decision-minGRU")]
    assert all(set(line.get_ydata()) == {100} for line in recurrent) and recurrent[0].get_color() == "#0072b2"
    widths = [line.get_linewidth() for line in recurrent]
    assert widths == sorted(set(widths), reverse=True), "a line hides another"
    seconds, steps = docs_charts.learning().axes
    assert seconds.lines[0].get_xdata()[-1] == 99.0 and steps.lines[0].get_xdata()[-1] == 1600
    assert docs_charts.steering().axes[0].lines[2].get_ydata()[-1] == 2934
    attention = docs_charts.scan().axes[0].lines[-2]
    assert attention.get_ydata()[-1] == 13020.77
    ours = docs_charts.rollout().axes[0].lines[0]
    assert ours.get_ydata()[0] == 0.0426 and ours.get_xdata()[-1] == 100_000
    assert [bar.get_width() for bar in docs_charts.train().axes[1].patches][-1] == 1161.9


@pytest.mark.slow
def test_the_drawings_are_what_the_script_draws(tmp_path):
    for folder in ("figures", "benchmarks", "results"):
        (tmp_path / folder).mkdir()
    subprocess.run([sys.executable, ROOT / "scripts" / "docs_figures", tmp_path], check=True)
    for file in sorted(tmp_path.rglob("*.svg")):
        assert file.read_bytes() == (ROOT / "docs" / file.relative_to(tmp_path)).read_bytes(), file.name
