"""The benchmark "memory": what agents remember in long episodes, and what an action costs there.

Trains on the built-in tasks tmaze, in corridors of at most 200 steps, and reacher-recall, and plays corridors of up to
100,000 steps. Every trained policy is first compared with its own model in float64, in parallel over an episode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..agents import Policy
from ..cli import Parser, positive, progress_bar
from ..compare.report.figures import INK, SOFT, paint, styles_of
from ..envs import Episodes, get_task
from ..envs import rollout as play
from ..envs.memory import reacher
from ..envs.memory.reacher import SHOWN, target_distances
from ..envs.simulation.rollout import Recorder
from ..errors import CommandError
from ..files import write_json
from ..policies.folder import load_policy
from ..policies.names import AGENTS, label
from ..sweep.processes import CellJob, make_job
from ..sweep.schedule import run_cells
from . import rollout
from .harness import Figures, parallel_actions, require, table

Distances = npt.NDArray[np.float64]

AGENTS_SHOWN = ("decision-aaren", "decision-gru", "decision-mingru", "decision-transformer")
CACHE = "decision-transformer-1token"  # trained on whole episodes; acts with a key-value cache of the episode
CACHED = rollout.CACHED  # steps, the most that it is played: the time of an action and its memory grow with the episode
LENGTHS = (20, 100, 1_000, 10_000, 100_000)  # of corridors
EPISODES, FEW, LONG = 100, 20, 100_000  # episodes of a corridor, few from a length of LONG on and with a cache
LEARNED_AT = "tmaze-1000"  # whose corridors are played during training
ENOUGH = 95.0  # percent of success there, to which the seconds of training are counted
OF_TMAZE: dict[str, Any] = {"eval_every": 25, "eval_episodes": 20, "final_episodes": 100}  # settings of train
BINS = (SHOWN, 10, 20, 50, 100, 200, 500, 900, 1000)  # steps of Reacher-Recall whose distances are averaged
EARLY, LATE = slice(50, 150), slice(-100, None)  # steps of the two figures that a table has
CHECKED, TOLERANCE = 200, 1e-4  # steps, and the largest difference of an action

HELP = "success and cost of an action in long episodes, on tasks that need memory"
DESCRIPTION = f"""\
Trains agents on tmaze and reacher-recall, where --out does not have the runs yet, and prints

* the success in T-mazes by length of the corridor, {EPISODES} episodes per seed ({FEW} from {LONG:,} steps on). The
  corridors of the data have 20 to 200 steps. Chance is 50 %, a perfect memory is 100 %;
* the seconds of training to a success of {ENOUGH:.0f} % at 1,000 steps, without those of evaluations;
* the distance of Reacher-Recall's fingertip from its target, which is visible in the first {SHOWN} steps only. Random
  actions and the controller that sees the target are the limits;
* the time of an action and the size of the state, step by step, one environment.

decision-transformer acts on its last 20 steps. {CACHE} is trained on whole episodes and keeps a
key-value cache of them; it is played up to {CACHED:,} steps. A command that was interrupted goes on."""
EPILOG = f"""\
example:
  python -m aaren_rl.bench memory --seeds 5 --agents {" ".join((*AGENTS_SHOWN, CACHE))} --plot memory.svg
  python -m aaren_rl.bench memory --seeds 1 --agents decision-aaren decision-gru --lengths 100 1000"""


def jobs(env: str, arguments: argparse.Namespace, settings: dict[str, Any]) -> list[CellJob]:
    """The runs of a task, seeds slowest."""
    cached = {"context": "episode", "rollout": "carry"}
    return [
        make_job(
            {"env": env, "agent": agent, "seed": seed, **settings, **(cached if agent == CACHE else {})}, arguments.out
        )
        for seed in range(arguments.seeds)
        for agent in arguments.agents
        if agent != CACHE or env != "reacher-recall"
    ]


def record(policy: Policy, env: str, episodes: int, seed: int, length: int | None = None) -> Episodes:
    """Episodes that a policy plays in a task, asked for the task's target return; `length` is a corridor's."""
    task, recorder = get_task(env), Recorder()
    kwargs = {} if length is None else {"length": length}
    target = task.target_returns[0]
    play(policy, task.env_id, episodes=episodes, target_return=target, seed=seed, env_kwargs=kwargs, recorder=recorder)
    return recorder.episodes(env, task.env_id)[0]


def check(policy: Policy) -> float:
    """The largest difference of a policy's actions in a corridor from float64 in parallel; NumericsError above 1e-4."""
    episode = record(policy, "tmaze", 1, 0, CHECKED)
    observations, actions = torch.from_numpy(episode.observations), torch.from_numpy(episode.actions)
    wanted = parallel_actions(policy, observations, actions, torch.ones(CHECKED, dtype=torch.float64))
    difference = float((actions - wanted).abs().max())  # not a number if one is not
    return require("a trained policy's actions differ from the float64 reference", difference, TOLERANCE)


def corridors(job: CellJob, policy: Policy, lengths: Sequence[int]) -> dict[int, float]:
    """A run's success by length of the corridor, in percent; what was played before is read from the run's folder."""
    file = job.run / "corridors.json"
    known: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    task, cached = get_task("tmaze"), job.config.agent == CACHE
    for length in lengths:
        if str(length) not in known and not (cached and length > CACHED):
            episodes = FEW if cached or length >= LONG else EPISODES
            how: dict[str, Any] = {"target_return": 1.0, "seed": 1000, "env_kwargs": {"length": length}}
            known[str(length)] = 100 * float(play(policy, task.env_id, episodes=episodes, **how).returns.mean())
            write_json(file, known)
    return {length: known[str(length)] for length in lengths if str(length) in known}


def learned(run: Path) -> float | None:
    """Seconds of training after which the success stays at ENOUGH or above, without evaluations; None: it does not."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    speed = next(line["train/updates_per_second"] for line in reversed(lines) if "train/updates_per_second" in line)
    played = [(line["update"], line["eval/normalized_score"]) for line in lines if "eval/normalized_score" in line]
    below = max((i for i, (_, score) in enumerate(played) if score < ENOUGH), default=-1)
    return None if below == len(played) - 1 else float(played[below + 1][0] / speed)


def distances(policy: Policy, episodes: int) -> Distances:
    """The mean distance of the fingertip from the target at every step of Reacher-Recall, (T,), in meters."""
    played = [target_distances(episode.observations) for episode in record(policy, "reacher-recall", episodes, 1000)]
    mean: Distances = np.mean(played, 0)
    return mean


class RandomTorques:
    """Uniform random actions, as a policy."""

    def initial_state(self, batch_size: int, target_return: object) -> np.random.Generator:
        """The state: a generator."""
        return np.random.default_rng(0)

    def act(self, observation: npt.NDArray[np.float32], reward: object, state: np.random.Generator) -> Any:  # noqa: ANN401
        """Actions (B, 2) for observations (B, 9)."""
        return state.uniform(-1, 1, (len(observation), 2)).astype(np.float32), state


def limits(episodes: int) -> dict[str, Distances]:
    """The distances of random actions, and of the controller that sees the target."""
    rng, arm = np.random.default_rng(1000), reacher.ReacherRecall()
    played = [target_distances(reacher.play(arm, rng, 0.0).observations) for _ in range(episodes)]
    unlearned: Any = RandomTorques()
    return {"random actions": distances(unlearned, episodes), "controller": np.mean(played, 0)}


def binned(steps: Distances) -> list[float]:
    """Means over BINS, in millimeters."""
    return [1000 * float(steps[a:b].mean()) for a, b in pairwise(BINS)]


def measure(arguments: argparse.Namespace) -> Figures:
    """Trains what is missing, and plays.

    Raises NumericsError for a policy whose actions are wrong, CommandError where training was stopped.
    """
    more = {} if arguments.updates is None else {"updates": arguments.updates}
    mazes = jobs(LEARNED_AT, arguments, OF_TMAZE | more)
    arms = jobs("reacher-recall", arguments, more) if arguments.reacher else []
    if code := run_cells([*mazes, *arms]):
        raise CommandError(f"training was stopped with exit code {code}; the same command goes on from there")
    modes = [f"{job.config.agent}:{job.config.evaluation.rollout}" for job in mazes if job.config.seed == 0]
    cost = argparse.Namespace(modes=modes, steps=max(*arguments.lengths, CACHED), width=128, layers=3, heads=4)
    agents: dict[str, Figures] = {agent: {"success": [], "learned": [], "apart": []} for agent in arguments.agents}
    checked, episodes = [], arguments.episodes
    with progress_bar(total=len(mazes) + len(arms), desc="playing", unit="run") as bar:
        for job in mazes:
            policy, found = load_policy(job.run), agents[job.config.agent]
            checked.append(check(policy))
            found["parameters"] = sum(weight.numel() for weight in policy.model.parameters())
            found["success"].append(corridors(job, policy, arguments.lengths))
            found["learned"].append(learned(job.run))
            bar.update()
        for job in arms:
            steps = distances(load_policy(job.run), episodes)
            apart = {"bins": binned(steps), "early": 1000 * steps[EARLY].mean(), "late": 1000 * steps[LATE].mean()}
            agents[job.config.agent]["apart"].append(apart)
            bar.update()
    return {
        "seeds": arguments.seeds,
        "lengths": arguments.lengths,
        "bins": BINS,
        "agents": agents,
        "limits": {name: binned(steps) for name, steps in limits(episodes).items()} if arms else {},
        "cost": rollout.measure(cost)["modes"],
        "checked_difference": max(checked),
    }


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The mean, with the smallest and the largest of several seeds where they differ."""
    shown = [f"{value:.{digits}f}" for value in (fmean(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def show(figures: Figures) -> list[str]:
    """Tables of success, of distances and of the cost of an action."""
    agents, lengths = figures["agents"], figures["lengths"]
    rows = []
    for agent, found in agents.items():
        taken = [seconds for seconds in found["learned"] if seconds is not None]
        at = "never" if not taken else f"{median(taken):.0f} ({len(taken)} of {len(found['learned'])})"
        success = [[run[n] for run in found["success"] if n in run] for n in lengths]
        cells = "|".join(spread(values) if values else "-" for values in success)
        rows.append({"agent": agent, "parameters": found["parameters"], "cells": cells, "at": at})
    head = "|".join(f"{n:,}" for n in lengths)
    lines = [
        f"checked against float64 over {CHECKED} steps: {figures['checked_difference']:.1e}; {figures['seeds']} seeds",
        "",
        "success in T-mazes of so many steps, in percent (chance 50): mean [lowest, highest seed]",
        *table(f"|parameters|{head}|seconds to {ENOUGH:.0f} % at 1,000", "{agent}|{parameters:,}|{cells}|{at}", rows),
    ]
    if figures["limits"]:
        ends = [f"{a}-{b}" for a, b in pairwise(figures["bins"])]
        seeds = {name: [run["bins"] for run in found["apart"]] for name, found in agents.items() if found["apart"]}
        apart = {**{name: [bins] for name, bins in figures["limits"].items()}, **seeds}
        shown = [
            {"name": name, "cells": "|".join(spread(of, 1) for of in zip(*runs, strict=True))}
            for name, runs in apart.items()
        ]
        lines += [
            "",
            "fingertip to target in millimeters, by step",
            *table("|" + "|".join(ends), "{name}|{cells}", shown),
        ]
    costs = [{"name": mode["name"], **cost} for mode in figures["cost"] for cost in mode["costs"]]
    form = "{name}|{step:,}|{microseconds:.1f}|{state_bytes:,}"
    return [*lines, "", *table("|step|us/action|state, bytes", form, costs)]


def plot(figures: Figures) -> Figure:
    """Success against length, distance against time and time of an action against the step."""
    figure = Figure(figsize=(10.4, 3.6), layout="constrained")
    panels = figure.subplots(1, 3 if figures["limits"] else 2)
    styles = styles_of([])
    for agent, found in figures["agents"].items():
        lengths = [n for n in figures["lengths"] if n in found["success"][0]]
        _line(panels[0], lengths, [[run[n] for n in lengths] for run in found["success"]], styles[agent], label(agent))
    panels[0].axhline(50, color=SOFT, linestyle=":", linewidth=1.3)
    panels[0].set(xlabel="steps of the corridor (trained on 20 to 200)", ylabel="success, %", ylim=(0, 105))
    for mode in figures["cost"]:
        agent = mode["name"].partition(":")[0]
        points = [(cost["step"], cost["microseconds"]) for cost in mode["costs"]]
        _line(panels[-1], [step for step, _ in points], [[time for _, time in points]], styles[agent])
    panels[-1].set(xlabel="step of the episode", ylabel="time per action, µs", yscale="log")
    if figures["limits"]:
        middle = [float(np.sqrt(a * b)) for a, b in pairwise(figures["bins"])]
        for agent, found in figures["agents"].items():
            if found["apart"]:
                _line(panels[1], middle, [run["bins"] for run in found["apart"]], styles[agent])
        for (name, bins), line in zip(figures["limits"].items(), (":", "--"), strict=True):
            panels[1].plot(middle, bins, color=SOFT, linestyle=line, linewidth=1.3)
            panels[1].annotate(name, (middle[-1], bins[-1]), ha="right", va="bottom", fontsize=8, color=SOFT)
        panels[1].set(xlabel=f"step (target hidden from step {SHOWN})", ylabel="fingertip to target, mm", yscale="log")
    for axes in panels:
        axes.set_xscale("log")
        paint(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _line(
    axes: Axes, x: Sequence[float], seeds: Sequence[Sequence[float]], style: tuple[str, str], name: str | None = None
) -> None:
    """The mean over seeds, and a band from the lowest to the highest."""
    color, marker = style
    values = np.array(seeds)
    axes.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
    axes.plot(x, values.mean(0), color=color, marker=marker, markersize=5, linewidth=1.8, label=name)


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    add = parser.add_argument
    add(
        "--agents",
        nargs="+",
        choices=AGENTS,
        metavar="AGENT",
        default=list(AGENTS_SHOWN),
        help="(default: %(default)s)",
    )
    add("--seeds", type=positive, metavar="N", default=3, help="training seeds per agent (default: %(default)s)")
    lengths = "steps of corridors (default: %(default)s)"
    add("--lengths", type=positive, nargs="+", metavar="N", default=list(LENGTHS), help=lengths)
    add("--episodes", type=positive, metavar="N", default=20, help="of Reacher-Recall (default: %(default)s)")
    add("--no-reacher", dest="reacher", action="store_false", help="T-mazes only")
    add("--updates", type=positive, metavar="N", help="of every run (default: the task's)")
    add("--out", type=Path, metavar="DIR", default=Path("runs/memory"), help="runs (default: %(default)s)")
