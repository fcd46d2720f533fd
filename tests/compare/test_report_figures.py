"""The figures of a comparison: a mean and every seed, each agent in a colour of its own."""

import dataclasses

import pytest
from matplotlib.figure import Figure
from synthetic import HIGH, LOW, README, make_cells

from aaren_rl.compare.report.figures import figures, overview

KINDS = ["learning_curves", "state_memory", "target_returns", "time_per_action"]


def named(figure: Figure):
    """The lines that have a place in the legend."""
    return {label: line for line in figure.axes[0].lines if not (label := line.get_label()).startswith("_")}


def lines(figure: Figure) -> dict[str, list[list[float]]]:
    return {name: [list(line.get_xdata()), list(line.get_ydata())] for name, line in named(figure).items()}


def test_the_opening_figure_has_a_dot_a_seed(tmp_path):
    known = {"data_returns": {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1334.0}, "reference_returns": [LOW, HIGH]}
    (axes,) = overview(make_cells(README, **known)).axes
    drawn = [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]
    for row, (scores, mean, ends) in enumerate(
        [(README["decision-aaren"], 76.6, [63.8, 83.7]), (README["decision-transformer"], 55.2, [41.1, 68.7])]
    ):
        assert [scores, [row] * 3] in drawn
        assert any(x == pytest.approx([mean] * 2, abs=0.05) and sum(y) / 2 == row for x, y in drawn if len(x) == 2)
        assert [pytest.approx(ends, abs=0.05), [row, row]] in drawn
    lines = {line.get_linestyle(): line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert lines == {style: pytest.approx(x, abs=0.05) for style, x in ((":", 43.1), ("-.", 88.8), ("--", 41.6))}
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 88.8
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[:3] == ["a training seed", "mean", "95 % interval"] and "data, mean: 43.1" in legend


def test_scores_below_zero_and_returns_are_in_the_opening_figure(tmp_path):
    (axes,) = overview(make_cells({"decision-aaren": [-1.5, 3.0]})).axes
    assert axes.get_xlim()[0] < -1.5
    (axes,) = overview(make_cells({"decision-aaren": [-150.0]}, reference=None)).axes
    assert axes.get_xlim()[0] < -150 < axes.get_xlim()[1] < 0 and "95 % interval" not in axes.figure.legends[0].texts


def test_figures_show_the_mean_and_the_seeds():
    found = figures(make_cells({"decision-aaren": [30.0, 60.0], "decision-transformer": [15.0]}))
    assert list(found) == ["all_scores", *(f"{kind}/hopper-medium" for kind in KINDS)] == sorted(found)
    curves = found["learning_curves/hopper-medium"]
    assert lines(curves) == {
        "Decision-Aaren (2 seeds)": [[500, 1000, 1500], [15.5, 30.5, 45.5]],
        "Decision Transformer (1 seed)": [[500, 1000, 1500], [5.0, 10.0, 15.0]],
    }
    thin = [list(line.get_ydata()) for line in curves.axes[0].lines if line.get_linewidth() < 1]
    assert thin == [[10.0, 20.0, 30.0], [21.0, 41.0, 61.0]]
    assert curves.axes[0].get_ylim()[0] == 0
    sweep = lines(found["target_returns/hopper-medium"])
    assert sweep["achieved = asked"] == [[1200.0, 4800.0]] * 2
    assert sweep["Decision Transformer (1 seed)"][0] == [1200.0, 2400.0, 3600.0, 4800.0]
    assert found["time_per_action/hopper-medium"].axes[0].get_xscale() == "log"
    assert found["time_per_action/hopper-medium"].axes[0].get_ylim()[0] == 0
    assert found["state_memory/hopper-medium"].axes[0].get_yscale() == "log"
    assert lines(found["state_memory/hopper-medium"])["Decision-Aaren (2 seeds)"][1] == [3.284] * 3


def test_a_mean_curve_stays_where_all_seeds_are():
    first, second = make_cells({"decision-aaren": [30.0, 60.0]})
    second = dataclasses.replace(second, curve=second.curve[1:])
    (line,) = lines(figures([first, second])["learning_curves/hopper-medium"]).values()
    assert line[0] == [1000, 1500]


def test_an_agent_has_one_colour_of_its_own():
    cells = make_cells({**README, "a": [1.0], "b": [2.0]})
    shades = {
        tuple((name.split(" (")[0], line.get_color()) for name, line in list(named(figure).items())[:4])
        for kind, figure in figures(cells).items()
        if kind != "all_scores"
    }
    (shade,) = shades
    assert len(dict(shade)) == 4 == len(set(dict(shade).values()))
