"""The tables of README.md and docs/, made from what was measured: docs/benchmarks/*.txt and docs/results/*.json.

A page is written by hand. `<!-- table: NAME -->` begins a part that is made here, or by table1_page.py, and
`<!-- /table -->` ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import memory_page
from docs_charts import number, printed, rows
from memory_page import NO_GATE

from aaren_rl.policies.table import label

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/speed.md",
    "docs/memory.md",
    "docs/howto/deployment.md",
    "docs/howto/uses-memory.md",
    "docs/explanation/several-controllers.md",
)
PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def fill(text: str, parts: Mapping[str, str]) -> str:
    """A page with these parts in their places."""
    return PART.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n\n{found[3]}", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Markdown; the first columns are words, the others numbers."""
    rule = ["-"] * words + ["-:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def written() -> dict[Path, str]:
    """Every page with such tables, as it ought to be."""
    parts = {
        "claims": claims(),
        "actions": actions(),
        "updates": updates(),
        "gpu": gpu(),
        "languages": languages(),
        "built_in": built_in(),
        "exchanged": exchanged(),
        "memory_tasks": table(*memory_page.tasks()),
        "memory_lengths": table(*memory_page.lengths()),
        "memory_actions": table(*memory_page.last_actions()),
        "longer": longer(),
        "several": several(),
        "small": small(),
    }
    found = {ROOT / name: fill((ROOT / name).read_text(encoding="utf-8"), parts) for name in PAGES}
    index = ROOT / "docs" / "index.md"
    return found | {index: fill(found[index], {"claims": parts["claims"].replace("](docs/", "](")})}


def measured(name: str) -> dict[str, Any]:
    """An entry of docs/results/measured.json."""
    found: dict[str, Any] = json.loads((RESULTS / "measured.json").read_text(encoding="utf-8"))[name]
    return found


def costs() -> dict[tuple[str, int], tuple[float, int]]:
    """Of agent:mode and a step of the episode: milliseconds of an action and bytes of the state."""
    table = rows(printed("rollout").partition("  at step 10")[0] + "\n\n", "step ")
    return {(row[0], int(number(row[1]))): (number(row[2]) / 1000, int(number(row[5]))) for row in table}


def benchmark(agent: str, folder: str = "benchmark") -> tuple[float, float]:
    """The mean score over the datasets of docs/results, and the median of milliseconds per gradient step on the CPU."""
    scores, seconds = [], []
    for file in sorted((RESULTS / folder).glob("*.json")):
        runs = [run for run in json.loads(file.read_text(encoding="utf-8"))["cells"] if run["agent"] == agent]
        scores.append(fmean(run["last"]["normalized_score_mean"] for run in runs))
        seconds += [run["seconds_per_update"] for run in runs if run["device"] == "cpu"]
    return fmean(scores), 1000 * median(seconds)


def spread(values: Sequence[float]) -> str:
    """The least and the largest, or the one that there is."""
    ends = sorted({f"{value:.1f}" for value in values}, key=float)
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def remembered(agent: str, task: str, variant: str = "") -> int:
    """Percent of right answers of an agent in a task of scripts/memory_tasks, or a variant of it, a mean over seeds."""
    runs = memory_page.results()[1][task][agent]
    return round(fmean(run["variants"][variant] if variant else run["score"] for run in runs))


def claims() -> str:
    """README's table: what the package is good for, as measured, and what to know of it."""
    ours, window = costs()["decision-aaren:recurrent", 10], costs()["decision-transformer:window", 10]
    late, plain = costs()["decision-aaren:recurrent", 100_000], measured("plain_action")["of_window"]
    maze, logs, local = measured("tmaze"), measured("several"), measured("draws")
    files = measured("languages")
    (score, step), (theirs, their_step) = benchmark("decision-aaren"), benchmark("decision-transformer", "table1")
    cloned, _ = benchmark("bc-top10", "table1")
    of_several = logs["sets"].values()
    drawn, alike = map(fmean, local["scores"]["hopper-medium-replay"][:2])
    longest = max(map(int, maze["success"]))
    asked = {"rooms": ("MiniGridMemory", "97"), "counted": ("CountRecallEasy",), "pairs": ("Recall",)}
    who = "decision-aaren", "decision-gru", "decision-mingru", "decision-transformer"
    known = {what: [remembered(agent, *of) for agent in who] for what, of in asked.items()}
    whole = remembered(memory_page.LONG_WINDOW, "Recall")
    graphs = [
        measured("h100")["ms"][f"default, {name}"][1]
        for name in ("Decision-Aaren, windows of 20 steps", "Decision Transformer, windows")
    ]
    found = round(maze["success"][str(longest)] * maze["episodes"] / 100)
    return table(
        ["claim", "measured", "to know"],
        [
            [
                "[a memory of the whole episode](docs/memory.md)",
                f"a cue of the first step is used {longest:,} steps later, in {found} of {maze['episodes']} T-mazes "
                f"with each of {maze['seeds']} seeds; MiniGrid-Memory {known['rooms'][0]} % in rooms of 97, "
                "trained on 13 at most",
                "in such rooms GRU has {1} %, minGRU {2} %, a window of 20 {3} % (one seed). ".format(*known["rooms"])
                + "Of pairs of keys and values it recalls {} %, GRU {} %".format(*known["pairs"])
                + f", a window that holds them {whole} %; "
                + "how often a card came it knows in {} %, GRU in {} %".format(*known["counted"]),
            ],
            [
                "[a constant cost per action](docs/speed.md)",
                f"{ours[0]:.3f} ms at step 10, {late[0]:.3f} ms at step 100,000; {late[1]:,} bytes of state at both",
                f"compiled by Numba. Decision Transformer, not compiled, has {window[0]:.1f} ms and {window[1]:,} "
                f"bytes for 20 steps; not compiled, Decision-Aaren takes {plain} of its time",
            ],
            [
                "[fast training](docs/benchmark.md#what-it-costs)",
                f"{step:.0f} ms per gradient step",
                f"Decision Transformer, of three tokens per step, {their_step:.0f} ms. Medians beside other work on "
                "one core, bfloat16; neither model is compiled, Decision-Aaren's scan is. As CUDA graphs on an H100 "
                f"{graphs[0]} and {graphs[1]} ms",
            ],
            [
                "[logs of several controllers](docs/explanation/several-controllers.md)",
                ", ".join(
                    f"{each['robot']} {fmean(each['default']):.1f} (their best controller {each['best_controller']})"
                    for each in of_several
                ),
                "trained on all episodes alike: "
                + ", ".join(f"{each['robot']} {fmean(each['uniform']):.1f}" for each in of_several)
                + "; cloning the best tenth: "
                + ", ".join(f"{fmean(each['clone']):.1f}" for each in of_several)
                + ". Hopper and HalfCheetah chose the recipe. Decision-GRU with it is level on average. On "
                f"hopper-medium-replay it costs {alike - drawn:.0f} points",
            ],
            [
                "[one file that runs without PyTorch](docs/howto/deployment.md#without-pytorch)",
                f"C++ {files['ms']['act.cpp']:.3f} ms per action, onnxruntime-web "
                f"{files['ms']['act.mjs with onnxruntime-web']:.3f} ms",
                "checked against PyTorch over 1,000 steps before it is written. Measured with files of an earlier "
                f"exporter; today's take {files['of_today']} times as long. No small board was measured",
            ],
            [
                "[scores on twelve local datasets](docs/benchmark.md)",
                "of 200,000 steps: " + ", ".join(f"{name} {mean:.1f}" for name, mean in means(local).items()),
                f"of a million, all alike: {score:.1f}, Decision Transformer {theirs:.1f}, 10 % BC {cloned:.1f}; the "
                "lead is made on the datasets that chose the settings, and over Decision Transformer of one "
                "token it is within the interval",
            ],
        ],
        words=3,
    )


def actions() -> str:
    """Milliseconds per action and bytes of the state, by agent and rollout mode."""
    found = costs()
    names = {
        "decision-aaren:recurrent": "Decision-Aaren, `recurrent`, compiled by Numba",
        "decision-aaren:staggered": "Decision-Aaren, `staggered`, compiled by Numba",
        "decision-transformer:window": "Decision Transformer, `window` of 20, not compiled",
        "decision-transformer:recurrent": "Decision Transformer, a KV cache, not compiled",
    }
    table_rows = []
    for name, text in names.items():
        late = max(step for other, step in found if other == name)
        (early, _), (last, size) = found[name, 10], found[name, late]
        table_rows.append([text, f"{early:.3f} ms", f"{last:.3f} ms (step {late:,})", f"{size:,} bytes"])
    plain = f"Not compiled, an action of Decision-Aaren takes {measured('plain_action')['of_window']} of the time of"
    plain += " Decision Transformer's window, which is not compiled either."
    return table(["agent, rollout mode", "step 10", "late", "state then"], table_rows) + f"\n\n{plain}"


def updates() -> str:
    """Milliseconds per gradient step at width 128, in turns with other packages."""
    part = printed("train").split("\nwidth ")[1].partition(" takes ")[0]
    found: dict[str, dict[str, str]] = {}
    for row in rows(part + "\n\n", "precision"):
        if row[-1].endswith("%"):
            found.setdefault(" ".join(row[:-6]), {})[row[-6]] = row[-5]
    lines = [[name, times.get("bfloat16", "-"), times.get("float32", "-")] for name, times in found.items()]
    return table(["agent or package, 64 windows of 20 steps", "bfloat16, ms", "float32, ms"], lines)


def gpu() -> str:
    """Milliseconds per gradient step on an H100."""
    lines = [[name, f"{size:,}", *map(str, times)] for name, (size, *times) in measured("h100")["ms"].items()]
    head = ["preset, agent, contexts", "steps per update", "CUDA graph, ms", "launched one by one, ms"]
    return table(head, lines)


def languages() -> str:
    """Milliseconds per action of the exported file."""
    found = measured("languages")
    lines = [[f"`{name}`" if "." in name and " " not in name else name, f"{ms:.3f} ms",
              f"{found['peak_mb'][name]} MB" if name in found["peak_mb"] else "not measured"]
             for name, ms in found["ms"].items()]  # fmt: skip
    return table(["program", "time per action", "peak memory of the process"], lines)


def built_in() -> str:
    """Scores on the built-in tasks that hide something, by agent."""
    agents = ("decision-aaren", NO_GATE, "decision-gru", "decision-mingru", "decision-transformer")
    gated, text = measured("tmaze"), printed("memory")
    maze = {NO_GATE if row[0] == "decision-aaren" else row[0]: row for row in rows(text, "parameters")}
    played = measured("positions")["mse_and_score"]

    def success(agent: str, length: str, column: int) -> str:
        if agent == agents[0]:
            of_gate = f", {gated['seconds']}\N{NO-BREAK SPACE}s" if length == "1000" else ""
            return f"{gated['success'][length]}{of_gate}"
        seconds = f", {maze[agent][8]}\N{NO-BREAK SPACE}s" if length == "1000" and maze[agent][8] != "-" else ""
        return maze[agent][column] + seconds

    lines = [
        ["T-maze of 1,000 steps", *(success(agent, "1000", 5) for agent in agents)],
        ["T-maze of 100,000 steps", *(success(agent, "100000", 7) for agent in agents)],
        ["Reacher-Recall", *(str(measured("reacher")["score"][agent]) for agent in agents)],
        ["hopper-p-medium", *(str(played[agent][1]) for agent in agents)],
        ["walker2d-p-medium", *(str(played[agent][3]) for agent in agents)],
    ]
    return table(["task", *map(memory_page.name, agents)], lines)


def exchanged() -> str:
    """Held-out action MSE with the own memory and with another episode's."""
    found = measured("exchanged")
    agents = [name for name in found if ", " in name]
    lines = [[steps, *(", ".join(f"{error:.3f}" for error in found[agent][i]) for agent in agents)]
             for i, steps in enumerate(found["steps"])]  # fmt: skip
    heads = [f"{label(agent)}, `{task}`" for agent, task in (name.split(", ") for name in agents)]
    return table(["steps since the exchange", *heads], lines)


def longer() -> str:
    """Reward per step in episodes that are longer than those of the data."""
    lines = [[name, f"{values[0]:.2f}", f"{values[4]:.2f}", *(f"{count} of 20" for count in values[5:])]
             for name, values in measured("longer")["reward_per_step"].items()]  # fmt: skip
    return table(["trained on", "steps 1 to 1,000", "4,001 to 5,000", "reach step 1,000", "reach step 5,000"], lines)


def several() -> str:
    """Scores on logs of six controllers, by robot; a number per training seed."""
    sets = measured("several")["sets"].values()
    words = {
        "uniform": "all episodes alike, no dropout",
        "decision_transformer": "Decision Transformer, all alike",
        "decision_transformer_draws": "Decision Transformer, drawn by return, dropout",
        "gru": "Decision-GRU, drawn by return",
        "clone": "cloning the best tenth (`bc-top10`)",
        "default": "**the default**",
    }
    lines = [
        ["the data: mean, best tenth of the episodes", *(f"{a['data_mean']}, {a['best_tenth']}" for a in sets)],
        ["the best of the six controllers, over all its episodes", *(str(a["best_controller"]) for a in sets)],
    ]
    for name, text in words.items():
        lines.append([text, *(", ".join(f"{score:.1f}" for score in found[name]) or "-" for found in sets)])
    lines.append(["its mean", *(f"{fmean(found['default']):.1f}" for found in sets)])
    return table(["", *(found["robot"] for found in sets)], lines)


def small() -> str:
    """Scores on few episodes, drawn by return and all alike."""
    lines = [[name, *map(listed, pair)] for name, pair in measured("small")["scores"].items()]
    return table(["data", "the default", "all alike, no dropout"], lines)


def draws() -> str:
    """Scores of today's recipe on the local datasets of 200,000 steps, and of what it is compared with."""
    found = measured("draws")
    lines = [[name, *map(listed, scores)] for name, scores in found["scores"].items()]
    ends = [f"{mean:.1f}" for mean in means(found).values()]
    return table(["dataset", *found["agents"]], [*lines, ["mean of these", *ends]])


def means(found: Mapping[str, Any]) -> dict[str, float]:
    """The mean over datasets of the mean over seeds, by agent."""
    columns = zip(*found["scores"].values(), strict=True)
    return {name: fmean(map(fmean, column)) for name, column in zip(found["agents"], columns, strict=True)}


def listed(scores: Sequence[float]) -> str:
    """A score per training seed."""
    return ", ".join(map("{:.1f}".format, scores))
