"""The benchmark "rollout" of `aaren-rl bench`, and its plot."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from aaren_rl.bench.harness import Figures
from aaren_rl.bench.rollout import DESCRIPTION as DESCRIPTION
from aaren_rl.bench.rollout import HELP as HELP
from aaren_rl.bench.rollout import add_arguments as add_arguments
from aaren_rl.bench.rollout import measure as measure
from aaren_rl.bench.rollout import show as show
from aaren_rl.policies.names import label

from .plots import logarithmic

EPILOG = """\
example:
  scripts/bench rollout --steps 100000 --plot rollout.png
  scripts/bench rollout --steps 1000 --modes decision-{aaren,transformer}:recurrent --plot figure5.png"""


def plot(figures: Figures) -> Figure:
    """Plot time and memory of an action, both logarithmic; below, figure 5 of the paper."""
    figure = Figure(figsize=(7.6, 6.3), layout="constrained")
    (elapsed, memory), (since, size) = panels = figure.subplots(2, 2)
    for k, mode in enumerate(figures["modes"]):
        costs, growth, color = mode["costs"], mode["growth"], f"C{k}"
        at = [cost["step"] for cost in costs]
        agent, *rollout = mode["name"].split(":")
        line: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4}
        elapsed.plot(at, [cost["microseconds"] for cost in costs], label=", ".join((label(agent), *rollout)), **line)
        memory.plot(at, [cost["state_bytes"] for cost in costs], **line)
        since.plot(growth["steps"], growth["seconds"], color=color)
        size.plot(growth["steps"], [bytes_ / 2**20 for bytes_ in growth["state_bytes"]], color=color)
    logarithmic(elapsed)
    logarithmic(memory, (1,))
    for axes in (since, size):
        axes.set(xlim=(0, None), ylim=(0, None))
    titles = ["time of an action (µs)", "memory of the state (bytes)"]
    titles += ["time since the first action (s)", "memory of the state (MiB)"]
    for axes, title in zip(panels.flat, titles, strict=True):
        axes.set(title=title, xlabel="environment step")
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    title = "width {width}, layers {layers}, heads {heads}, one environment".format(**figures)
    figure.suptitle(title, fontsize="medium")
    return figure
