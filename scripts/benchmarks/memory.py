"""The benchmark "memory": what agents remember in long episodes, and the cost of an action there.

Trains on the built-in tasks tmaze, in corridors of at most 200 steps, and reacher-recall. Evaluates in corridors of up
to 100,000 steps. Every trained policy is first tested against its model in float64, in parallel over an episode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aaren_rl.agents import Policy
from aaren_rl.base.errors import AarenRLError
from aaren_rl.base.fields import COUNT, COUNT_FROM_0, Range
from aaren_rl.base.files import write_json
from aaren_rl.cli import Parser, progress_bar
from aaren_rl.compare.measure import measured_on
from aaren_rl.compare.report import INK, SOFT, paint
from aaren_rl.envs import Episodes, get_task
from aaren_rl.envs import rollout as play
from aaren_rl.envs.data.episodes import Episode, join
from aaren_rl.envs.local import reacher
from aaren_rl.envs.local.reacher import SHOWN, TARGET, ReacherRecall
from aaren_rl.envs.simulation import begin, take
from aaren_rl.envs.tasks.environment import close_env, make_env
from aaren_rl.envs.tasks.table import LONGEST
from aaren_rl.policies.folder import load_policy
from aaren_rl.policies.table import label, style
from aaren_rl.sweep import request_run, train_all
from aaren_rl.train.config import Request, RunConfig
from aaren_rl.train.folder import read_metrics

from . import rollout
from .harness import COMPARABLE, Figures, parallel_actions, require, table

Distances = npt.NDArray[np.float64]

AGENTS_SHOWN = ("decision-aaren", "decision-gru", "decision-mingru", "decision-transformer")
CACHE = "decision-transformer-1token"  # trained on whole episodes; acts with a key-value cache of the episode
# The longest episodes of agents that are not recurrent: a cache grows with the episode, and a window of 20 steps sees
# no more after 100,000 steps than after 1,000.
SHORT = 1_000
LENGTHS = (20, 100, 1_000, 10_000, 100_000)  # of corridors
EPISODES, FEW, LONG = 100, 20, 100_000  # episodes per corridor; FEW from a length of LONG on
LEARNED_AT = "tmaze-1000"  # task of evaluations during training
ENOUGH = 95.0  # percent of success there that stops the clock
# Settings of train. For an agent that is not recurrent, evaluations would take longer than training.
OF_TMAZE: dict[str, Any] = {"eval_every": 25, "eval_episodes": 20, "final_episodes": 100}
ONCE: dict[str, Any] = {"eval_every": 1600, "final_episodes": 50}
BINS = (SHOWN, 10, 20, 50, 100, 200, 500, 900, 1000)  # steps of Reacher-Recall whose distances are averaged
CHECKED, TOLERANCE = 200, 1e-4  # steps, and the largest difference of an action

HELP = "success and cost of an action in long episodes, on tasks that need memory"
DESCRIPTION = f"""\
Trains agents on tmaze and reacher-recall unless --out has the runs already, and prints

* the success in T-mazes by length of the corridor, {EPISODES} episodes per seed ({FEW} from {LONG:,} steps on). The
  corridors of the data have 20 to 200 steps. Chance is 50 %, a perfect memory is 100 %;
* the seconds of training to a success of {ENOUGH:.0f} % at 1,000 steps, without those of evaluations;
* the distance of Reacher-Recall's fingertip from its target, which is visible in the first {SHOWN} steps only. Random
  actions and a controller that sees the target are the bounds;
* the time of an action and the size of the state, step by step, one environment.

decision-transformer acts on its last 20 steps. {CACHE} is trained on whole episodes and keeps a
key-value cache of them. Both are evaluated up to {SHORT:,} steps. To resume after an interrupt, run it again."""
EPILOG = f"""\
example:
  scripts/bench memory --agents {" ".join((*AGENTS_SHOWN, CACHE))} --plot memory.svg
  scripts/bench memory --seeds 1 --reacher-seeds 0 --agents decision-aaren decision-gru --lengths 100 1000"""


def jobs(env: str, arguments: argparse.Namespace, seeds: int, settings: dict[str, Any]) -> list[Request]:
    """The runs of a task, ordered by seed, then agent."""
    own = {CACHE: {"context": "episode", "rollout": "recurrent", **ONCE}, "decision-transformer": ONCE}
    threads = ("--threads", str(arguments.threads))
    return [
        request_run(
            {"env": env, "agent": agent, "seed": seed, **settings, **own.get(agent, {})}, arguments.out, threads
        )
        for seed in range(seeds)
        for agent in arguments.agents
        if agent != CACHE or env == LEARNED_AT
    ]


def is_recurrent(config: RunConfig) -> bool:
    """Whether an action is one step with a state of constant size."""
    return config.constant_state and config.evaluation.rollout == "recurrent"


def record(policy: Policy, env: str, episodes: int, seed: int, length: int | None = None) -> Episodes:
    """Episodes of a policy in a task, with the target return of the task. `length`: of the corridor."""
    task, parts = get_task(env), []
    with ExitStack() as stack:
        game = make_env(task.env_id, **({} if length is None else {"length": length}))
        stack.callback(close_env, game)
        for e in range(episodes):
            seen, _ = begin(game, seed=seed + e)
            state, reward, rows, ended = policy.initial_state(1, task.target_returns[0]), 0.0, [], False
            while not ended:
                actions, state = policy.act(seen[None], np.float32([reward]), state)
                after, reward, terminated, truncated, _ = take(game, actions[0])
                rows.append((seen, actions[0], reward))
                seen, ended = after, terminated or truncated
            observations, taken, rewards = (np.array(column, np.float32) for column in zip(*rows, strict=True))
            parts.append(Episode(observations, taken, rewards, terminated))
    return join(parts, dataset=env, env_id=task.env_id)


def check(policy: Policy) -> float:
    """The largest difference of actions in a corridor from float64 in parallel. Raises NumericsError above 1e-4."""
    episode = record(policy, "tmaze", 1, 0, CHECKED)
    observations, actions = torch.from_numpy(episode.observations), torch.from_numpy(episode.actions)
    wanted = parallel_actions(policy, observations, actions, torch.ones(CHECKED, dtype=torch.float64))
    difference = float((actions - wanted).abs().max())  # NaN if one of them is NaN
    return require("actions of a trained policy differ from the float64 reference", difference, TOLERANCE)


def corridors(job: Request, policy: Policy, lengths: Sequence[int]) -> dict[int, float]:
    """The success of a run by corridor length, in percent. Reads what was played here with these weights."""
    file = job.folder / "corridors.json"
    made = {"updates": policy.card.updates, **measured_on()}
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known: dict[str, float] = found["success"] if found.get("made") == made else {}
    task, recurrent = get_task("tmaze"), is_recurrent(job.config)
    for length in lengths:
        if str(length) not in known and (recurrent or length <= SHORT):
            episodes = FEW if length >= LONG else EPISODES
            how: dict[str, Any] = {"target_return": 1.0, "seed": 1000, "env_kwargs": {"length": length}}
            known[str(length)] = 100 * float(play(policy, task.env_id, episodes=episodes, **how).returns.mean())
            write_json(file, {"made": made, "success": known})
    return {length: known[str(length)] for length in lengths if str(length) in known}


def learned(run: Path) -> float | None:
    """Seconds of training, without evaluations, until the success stays at ENOUGH or above; None: it does not."""
    lines = read_metrics(run)
    tag = "time/updates_per_second"
    logged = [(line["update"], line[tag]) for line in lines if tag in line]
    updates = np.array([0, *(update for update, _ in logged)])
    seconds = np.cumsum([0.0, *(np.diff(updates) / [speed for _, speed in logged])])
    played = [(line["update"], line["eval/normalized_score"]) for line in lines if "eval/normalized_score" in line]
    below = max((i for i, (_, score) in enumerate(played) if score < ENOUGH), default=-1)
    return None if below == len(played) - 1 else float(np.interp(played[below + 1][0], updates, seconds))


def target_distances(observations: npt.NDArray[np.floating]) -> Distances:
    """The fingertip's distance from the target in meters at every step (T,), from an episode's observations (T, 9)."""
    x, y, sin_x, sin_y = observations[:, :4].T.astype(np.float64)
    upper, lower = reacher.ARM
    tip = np.stack([upper * x + lower * (x * y - sin_x * sin_y), upper * sin_x + lower * (sin_x * y + x * sin_y)], 1)
    apart: Distances = np.linalg.norm(tip - observations[0, TARGET], axis=1)
    return apart


def distances(policy: Policy, episodes: int) -> Distances:
    """The mean distance of the fingertip from the target at every step of Reacher-Recall, (T,), in meters."""
    played = [target_distances(episode.observations) for episode in record(policy, "reacher-recall", episodes, 1000)]
    mean: Distances = np.mean(played, 0)
    return mean


class RandomTorques:
    """Uniform random actions, as a policy."""

    def initial_state(self, batch_size: int, target_return: object) -> np.random.Generator:
        """Returns the state: a generator."""
        return np.random.default_rng(0)

    def act(self, observation: npt.NDArray[np.float32], reward: object, state: np.random.Generator) -> Any:  # noqa: ANN401
        """Returns actions (B, 2) for observations (B, 9)."""
        return state.uniform(-1, 1, (len(observation), 2)).astype(np.float32), state


def limits(episodes: int) -> dict[str, Distances]:
    """The distances of random actions and of the controller that sees the target."""
    rng, arm = np.random.default_rng(1000), ReacherRecall()
    played = [target_distances(reacher.play(arm, rng, 0.0).observations) for _ in range(episodes)]
    unlearned: Any = RandomTorques()
    return {"random actions": distances(unlearned, episodes), "controller": np.mean(played, 0)}


def binned(steps: Distances) -> list[float]:
    """Means over BINS, in millimeters."""
    return [1000 * float(steps[a:b].mean()) for a, b in pairwise(BINS)]


def measure(arguments: argparse.Namespace) -> Figures:
    """Train missing runs and evaluate all.

    Raises NumericsError for a policy with wrong actions, AarenRLError if training was stopped.
    """
    more = {} if arguments.updates is None else {"updates": arguments.updates}
    mazes = jobs(LEARNED_AT, arguments, arguments.seeds, OF_TMAZE | more)
    arms = jobs("reacher-recall", arguments, arguments.reacher_seeds, ONCE | more)
    if code := train_all([*mazes, *arms], jobs=1):  # one at a time, to measure seconds on an otherwise idle machine
        raise AarenRLError(f"training was stopped with exit code {code}; the same command continues from there")
    modes = [f"{job.config.agent}:{job.config.evaluation.rollout}" for job in mazes if job.config.seed == 0]
    cost = argparse.Namespace(modes=modes, steps=max(*arguments.lengths, SHORT), width=128, layers=3, heads=4)
    agents: dict[str, Figures] = {agent: {"success": [], "learned": [], "apart": []} for agent in arguments.agents}
    checked, episodes = [], arguments.episodes
    with progress_bar(total=len(mazes) + len(arms), desc="playing", unit="run") as bar:
        for job in mazes:
            policy, found = load_policy(job.folder), agents[job.config.agent]
            checked.append(check(policy))
            found["parameters"] = sum(weight.numel() for weight in policy.model.parameters())
            found["success"].append(corridors(job, policy, arguments.lengths))
            if is_recurrent(job.config):
                found["learned"].append(learned(job.folder))
            bar.update()
        for job in arms:
            agents[job.config.agent]["apart"].append(binned(distances(load_policy(job.folder), episodes)))
            bar.update()
    return {
        "lengths": arguments.lengths,
        "bins": BINS,
        "agents": agents,
        "limits": {name: binned(steps) for name, steps in limits(episodes).items()} if arms else {},
        "cost": rollout.measure(cost)["modes"],
        "checked_difference": max(checked),
    }


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The mean, with the smallest and the largest seed if they differ."""
    shown = [f"{value:.{digits}f}" for value in (fmean(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def show(figures: Figures) -> list[str]:
    """Tables of success, of distances and of the cost of an action."""
    agents, lengths = figures["agents"], figures["lengths"]
    rows = []
    for agent, found in agents.items():
        taken = [seconds for seconds in found["learned"] if seconds is not None]
        tried = "never" if found["learned"] else "-"  # those that are not recurrent are not evaluated during training
        at = f"{median(taken):.0f} ({len(taken)} of {len(found['learned'])})" if taken else tried
        success = [[run[n] for run in found["success"] if n in run] for n in lengths]
        cells = "|".join(spread(values) if values else "-" for values in success)
        sizes = f"{found['parameters']:,}|{len(found['success'])}"
        rows.append({"agent": agent, "sizes": sizes, "cells": cells, "at": at})
    head = "|".join(f"{n:,}" for n in lengths)
    lines = [
        f"checked against float64 over {CHECKED} steps: {figures['checked_difference']:.1e}",
        "",
        "success in T-mazes of so many steps, in percent (chance 50): mean [lowest, highest seed]",
        *table(f"|parameters|seeds|{head}|seconds to {ENOUGH:.0f} % at 1,000", "{agent}|{sizes}|{cells}|{at}", rows),
    ]
    if figures["limits"]:
        ends = [f"{a}-{b}" for a, b in pairwise(figures["bins"])]
        seeds = {name: found["apart"] for name, found in agents.items() if found["apart"]}
        apart = {**{name: [bins] for name, bins in figures["limits"].items()}, **seeds}
        shown = [
            {"name": name, "cells": "|".join([str(len(runs)), *(spread(of, 1) for of in zip(*runs, strict=True))])}
            for name, runs in apart.items()
        ]
        lines += [
            "",
            "fingertip to target in millimeters, by step",
            *table("|seeds|" + "|".join(ends), "{name}|{cells}", shown),
        ]
    costs = [{"name": mode["name"], **cost} for mode in figures["cost"] for cost in mode["costs"]]
    form = "{name}|{step:,}|{microseconds:.1f}|{state_bytes:,}"
    return [*lines, "", *table("|step|us/action|state, bytes", form, costs)]


def plot(figures: Figures) -> Figure:
    """Plot success against length, distance against time, and time of an action against the step."""
    figure = Figure(figsize=(10.4, 3.6), layout="constrained")
    panels = figure.subplots(1, 3 if figures["limits"] else 2)
    for agent, found in figures["agents"].items():
        lengths = [n for n in figures["lengths"] if n in found["success"][0]]
        _line(panels[0], lengths, [[run[n] for n in lengths] for run in found["success"]], style(agent), label(agent))
    panels[0].axhline(50, color=SOFT, linestyle=":", linewidth=1.3)
    panels[0].set(xlabel="steps of the corridor (trained on 20 to 200)", ylabel="success, %", ylim=(0, 105))
    for mode in figures["cost"]:
        agent = mode["name"].partition(":")[0]
        points = [(cost["step"], cost["microseconds"]) for cost in mode["costs"]]
        _line(panels[-1], [step for step, _ in points], [[time for _, time in points]], style(agent))
    panels[-1].set(xlabel="step of the episode", ylabel="time per action, µs", yscale="log")
    if figures["limits"]:
        middle = [float(np.sqrt(a * b)) for a, b in pairwise(figures["bins"])]
        for agent, found in figures["agents"].items():
            if found["apart"]:
                _line(panels[1], middle, found["apart"], style(agent))
        for (name, bins), line in zip(figures["limits"].items(), (":", "--"), strict=True):
            panels[1].plot(middle, bins, color=SOFT, linestyle=line, linewidth=1.3)
            panels[1].annotate(name, (middle[-1], bins[-1]), ha="right", va="bottom", fontsize=8, color=SOFT)
        panels[1].set(xlabel=f"step (target hidden from step {SHOWN})", ylabel="fingertip to target, mm", yscale="log")
    for axes in panels:
        axes.set_xscale("log")
        paint(axes)
        for place, line in enumerate(axes.lines):
            line.set_zorder(3 - place / 100)  # equal lines: the first agent's on top
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _line(
    axes: Axes, x: Sequence[float], seeds: Sequence[Sequence[float]], style: tuple[str, str], name: str | None = None
) -> None:
    """Plot the mean over seeds and a band from the lowest to the highest."""
    color, marker = style
    values = np.array(seeds)
    axes.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
    axes.plot(x, values.mean(0), color=color, marker=marker, markersize=5, linewidth=1.8, label=name)


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    add = parser.add_argument
    choice: dict[str, Any] = {"choices": COMPARABLE, "metavar": "AGENT", "default": list(AGENTS_SHOWN)}
    add("--agents", nargs="+", help="(default: %(default)s)", **choice)
    add("--seeds", type=COUNT.integer, metavar="N", default=5, help="training seeds on tmaze (default: %(default)s)")
    few = "those on reacher-recall; 0: without it (default: %(default)s)"
    add("--reacher-seeds", type=COUNT_FROM_0.integer, metavar="N", default=3, help=few)
    lengths = "steps of corridors (default: %(default)s)"
    add("--lengths", type=Range(2, LONGEST).integer, nargs="+", metavar="N", default=list(LENGTHS), help=lengths)
    add(
        "--episodes",
        type=COUNT.integer,
        metavar="N",
        default=20,
        help="episodes of Reacher-Recall (default: %(default)s)",
    )
    add("--updates", type=COUNT.integer, metavar="N", help="gradient steps of every run (default: those of the task)")
    add("--out", type=Path, metavar="DIR", default=Path("runs/memory"), help="folder of runs (default: %(default)s)")
    parser.add_shared(register=False)
