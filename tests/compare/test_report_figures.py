"""The figures of a comparison: a mean and every seed, each agent in a colour of its own."""

import dataclasses

import pytest
from matplotlib.figure import Figure
from synthetic import HIGH, LOW, README, make_cells

from aaren_rl.compare.report.figures import figures, overview

KINDS = ["learning_curves", "state_memory", "target_returns", "time_per_action"]


def lines(figure: Figure) -> dict[str, list[list[float]]]:
    """Those that have a place in the legend."""
    named = {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in figure.axes[0].lines}
    return {name: points for name, points in named.items() if not name.startswith("_")}


def test_the_opening_figure_has_a_dot_a_seed():
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1334.0}, "reference_returns": [LOW, HIGH]}
    (axes,) = overview(make_cells(README, **known)).axes
    drawn = [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]
    for row, (agent, mean, ends) in enumerate(
        [("decision-aaren", 76.6, [63.8, 83.7]), ("decision-transformer", 55.2, [41.1, 68.7])]
    ):
        assert [README[agent], [row] * 3] in drawn and [pytest.approx(ends, abs=0.05), [row, row]] in drawn
        assert any(x == pytest.approx([mean] * 2, abs=0.05) and sum(y) / 2 == row for x, y in drawn if len(x) == 2)
    data = {line.get_linestyle(): line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert data == {style: pytest.approx(x, abs=0.05) for style, x in ((":", 43.1), ("-.", 88.8), ("--", 41.6))}
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 88.8
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[:3] == ["a training seed", "mean", "95 % interval"] and "data, mean: 43.1" in legend


def test_scores_below_zero_are_in_the_opening_figure():
    (axes,) = overview(make_cells({"decision-aaren": [-1.5, 3.0]})).axes
    assert axes.get_xlim()[0] < -1.5


def test_figures_show_the_mean_and_the_seeds_each_agent_in_its_colour():
    first, second, other = make_cells({"decision-aaren": [30.0, 60.0], "an agent": [15.0]})
    second = dataclasses.replace(second, curve=second.curve[1:])  # the mean stays where all seeds are
    found = figures([first, second, other])
    assert list(found) == ["all_scores", *(f"{kind}/hopper-medium" for kind in KINDS)] == sorted(found)
    curves = found["learning_curves/hopper-medium"]
    means = [[1000, 1500], [30.5, 45.5]], [[500, 1000, 1500], [5, 10, 15]]
    assert lines(curves) == dict(zip(("Decision-Aaren (2 seeds)", "an agent (1 seed)"), means, strict=True))
    thin = [list(line.get_ydata()) for line in curves.axes[0].lines if line.get_linewidth() < 1]
    assert thin == [[20.0, 30.0], [41.0, 61.0]]
    assert curves.axes[0].get_ylim()[0] == 0
    assert lines(found["target_returns/hopper-medium"])["achieved = asked"] == [[1200.0, 4800.0]] * 2
    time, state = (found[f"{kind}/hopper-medium"].axes[0] for kind in ("time_per_action", "state_memory"))
    assert (time.get_xscale(), time.get_ylim()[0], state.get_xscale()) == ("log", 0, "log")
    assert lines(found["state_memory/hopper-medium"])["Decision-Aaren (2 seeds)"][1] == [3.284] * 3
    thick = [[line.get_color() for line in found[f"{kind}/hopper-medium"].axes[0].lines][::3] for kind in KINDS]
    assert len({tuple(colors[:2]) for colors in thick}) == 1 and len(set(thick[0])) == 2
