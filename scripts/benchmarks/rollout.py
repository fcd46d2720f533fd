"""The benchmark "rollout": time and memory of an action against the environment step, for every rollout mode.

Every mode is first tested against the model in float64, in parallel over the steps that it sees. Memory and time since
the first action reproduce figure 5 of "Attention as an RNN".
"""

from __future__ import annotations

import argparse
import itertools
import math
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig, Policy, PolicyState
from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import COUNT
from aaren_rl.cli import Parser
from aaren_rl.compare.measure import bytes_kept_alive
from aaren_rl.policies.table import AGENTS, label
from aaren_rl.train.config import make_config

from .harness import COMPARABLE, CPU, Figures, in_turns, parallel_actions, ratio, require, seconds, table
from .plots import logarithmic

Array: TypeAlias = npt.NDArray[np.float32]

OBSERVATION_DIM, ACTION_DIM = 11, 3  # of Hopper
TARGET_RETURN, RETURN_SCALE = 3600.0, 1000.0
CONTEXT = 20  # K of "staggered" and "window", in steps
MODES = (
    "decision-aaren:recurrent",
    "decision-aaren:staggered",
    "decision-transformer:recurrent",
    "decision-transformer:window",
)
EARLY = 10  # the reference step for all later ones
CACHED = 1000  # the last step of growing states and of figure 5, whose time grows quadratically
BLOCK = 100  # actions timed in a row
REPEATS = 11  # blocks per step, in turns
POINTS = 24  # of figure 5
CHECKED_STEPS, TOLERANCE = 200, 1e-5
LENGTH = 1024  # period of the random numbers of the episode, in steps
_RNG = np.random.default_rng(0)
OBSERVATIONS: Array = _RNG.standard_normal((LENGTH, 1, OBSERVATION_DIM)).astype(np.float32)
REWARDS: Array = _RNG.uniform(0, 4, (LENGTH, 1)).astype(np.float32)

HELP = "cost of an action against the environment step, for every rollout mode"
DESCRIPTION = f"""\
Acts in one long episode of random observations, of the size of Hopper, and times an action at steps {EARLY}, 100, ...,
STEPS: medians of {REPEATS} blocks of {BLOCK} actions, in turns over all modes and steps. A mode whose state grows
(decision-transformer:recurrent, a key-value cache) is timed up to step {CACHED:,} at most. Up to that step,
memory and time since the first action are those of figure 5 in "Attention as an RNN"; "grows as" is the exponent of
steps between half of them and all."""
EPILOG = """\
example:
  scripts/bench rollout --steps 100000 --json rollout.json --plot rollout.png
  scripts/bench rollout --steps 1000 --modes decision-{aaren,transformer}:recurrent --plot figure5.png
  scripts/bench rollout --steps 1000 --modes decision-aaren:recurrent:plain decision-transformer:window"""


def step(t: int) -> tuple[Array, Array]:
    """The random observation of step t and the reward of the step before, which is 0 at the first."""
    t %= LENGTH
    return OBSERVATIONS[t], REWARDS[t - 1] if t else np.zeros(1, np.float32)


def play(policy: Policy, state: PolicyState, steps: int) -> PolicyState:
    """The state some steps later in an endless episode, without an environment that takes time or memory."""
    for t in range(int(state.timestep), int(state.timestep) + steps):
        _, state = policy.act(*step(t), state)
    return state


def make_policy(name: str, width: int, layers: int, heads: int) -> Policy:
    """The policy of "agent:rollout" as `train` builds it, with random weights. Raises ValueError if it is invalid.

    With ":plain" appended, the policy acts without the compiled step of its model.
    """
    agent, rollout, *plain = name.split(":")
    of_agent = make_config({"agent": agent}).network
    own: dict[str, Any] = {"tokens_per_step": of_agent.tokens_per_step, "forget_gate": of_agent.forget_gate}
    config = ModelConfig(OBSERVATION_DIM, ACTION_DIM, AGENTS[agent].mixer, width, layers, heads, **own)
    torch.manual_seed(0)
    mean, std = torch.zeros(OBSERVATION_DIM), torch.ones(OBSERVATION_DIM)
    tree = None if rollout == "window" else config.tree()
    return Policy(DecisionModel(config), mean, std, RETURN_SCALE, rollout, CONTEXT, compiled=not plain, tree=tree)


def check(policy: Policy) -> float:
    """The largest difference of actions step by step from float64 in parallel. NumericsError above 1e-5 or for NaN."""
    state, actions, to_go = policy.initial_state(1, TARGET_RETURN), [], []
    for t in range(CHECKED_STEPS):
        action, state = policy.act(*step(t), state)
        actions.append(torch.tensor(action[0]))
        to_go.append(float(state.return_to_go[0]))
    taken, observations = torch.stack(actions).double(), torch.from_numpy(OBSERVATIONS[:CHECKED_STEPS, 0])
    wanted = parallel_actions(policy, observations, taken, torch.tensor(to_go, dtype=torch.float64))
    difference = float((taken - wanted).abs().max())  # NaN if one of them is NaN
    return require("actions differ from the float64 reference", difference, TOLERANCE)


def states(policy: Policy, stops: list[int]) -> list[PolicyState]:
    """The states of a policy at step 10 and at `stops`, for a growing state up to step CACHED."""
    found = [play(policy, policy.initial_state(1, TARGET_RETURN), EARLY)]
    for stop in stops:
        newest = found[-1]
        # At step 100 every window is full: a state that grows later keeps growing.
        if stop > CACHED and bytes_kept_alive(newest) > bytes_kept_alive(found[1]):
            break
        if policy.rollout == "window":  # the state depends only on the last K steps: skip earlier ones
            newest = newest._replace(timestep=stop - CONTEXT)
        found.append(play(policy, newest, stop - int(newest.timestep)))
    return found


def grow(policies: dict[str, Policy], steps: int) -> dict[str, Figures]:
    """Figure 5: memory and time since the first action, in turns of a few steps per policy."""
    stops = sorted({round(steps * k / POINTS) for k in range(1, POINTS + 1)} - {0})
    found: dict[str, Figures] = {name: {"steps": stops, "state_bytes": [], "seconds": []} for name in policies}
    now = {name: policy.initial_state(1, TARGET_RETURN) for name, policy in policies.items()}

    def go_on(name: str, stop: int) -> None:
        now[name] = play(policies[name], now[name], stop - int(now[name].timestep))

    for stop, (name, growth) in itertools.product(stops, found.items()):
        taken = seconds(partial(go_on, name, stop), CPU)
        growth["seconds"].append(taken + (growth["seconds"][-1] if growth["seconds"] else 0.0))
        growth["state_bytes"].append(bytes_kept_alive(now[name]))
    middle = (len(stops) - 1) // 2
    for growth, kind in itertools.product(found.values(), ("state_bytes", "seconds")):
        grown = growth[kind][-1] / growth[kind][middle]  # exponent e of growth, steps^e, from the middle to the end
        growth[f"{kind}_exponent"] = math.log(grown) / math.log(stops[-1] / stops[middle])
    return found


def measure(arguments: argparse.Namespace) -> Figures:
    """Time and memory of an action at steps 10, 100, ..., and figure 5 up to step CACHED.

    Raises UsageError for an invalid agent or a last step that is too early, NumericsError for wrong actions.
    """
    steps, sizes = arguments.steps, {name: getattr(arguments, name) for name in ("width", "layers", "heads")}
    if steps < 2 * CONTEXT:
        raise UsageError(f"--steps: must be at least {2 * CONTEXT}, not {steps}")
    try:
        policies = {name: make_policy(name, **sizes) for name in arguments.modes}
    except ValueError as error:
        raise UsageError(str(error)) from error
    checked = {name: check(policy) for name, policy in policies.items()}
    growths = grow(policies, min(steps, CACHED))
    stops = sorted({s for s in (100, 1000, 10_000, 100_000, CACHED) if s < steps} | {steps})
    at = {name: states(policy, stops) for name, policy in policies.items()}
    works = {(n, int(s.timestep)): partial(play, policies[n], s, BLOCK) for n, found in at.items() for s in found}
    times = in_turns(works, repeats=REPEATS, device=CPU)

    def cost(name: str, state: PolicyState) -> Figures:
        step = int(state.timestep)
        taken = times[name, step]
        return {
            "step": step,
            "microseconds": median(taken) / BLOCK * 1e6,
            "fastest_microseconds": min(taken) / BLOCK * 1e6,
            "ratio": ratio(taken, times[name, EARLY]),
            "state_bytes": bytes_kept_alive(state),
        }

    modes = [
        {
            "name": name,
            "costs": [cost(name, state) for state in found],
            "share": ratio(times[name, EARLY], times[arguments.modes[-1], EARLY]),
            "growth": growths[name],
            "checked_difference": checked[name],
        }
        for name, found in at.items()
    ]
    return {**sizes, "modes": modes}


def show(figures: Figures) -> list[str]:
    """A table of actions, and one of memory and time since the first."""
    modes, last = figures["modes"], figures["modes"][-1]["name"]
    costs = [{"name": mode["name"], **cost} for mode in modes for cost in mode["costs"]]
    ends = ("steps", "state_bytes", "seconds")
    grown = [{"name": m["name"], **m["growth"], **{key: m["growth"][key][-1] for key in ends}} for m in modes]
    checked = max(mode["checked_difference"] for mode in modes)
    return [
        "width {width}, layers {layers}, heads {heads}; one environment, K = ".format(**figures) + str(CONTEXT),
        f"checked against float64 over {CHECKED_STEPS} steps: {checked:.1e}",
        *table(
            f"|step|us/action|fastest|of step {EARLY}|state, bytes",
            "{name}|{step:,}|{microseconds:.1f}|{fastest_microseconds:.1f}|{ratio:.3f}|{state_bytes:,}",
            costs,
        ),
        *(f"  at step {EARLY} {mode['name']} takes {mode['share']:.3f} of the time of {last}" for mode in modes[:-1]),
        "since the first action:",
        *table(
            "|steps|state, bytes|grows as|time, s|grows as",
            "  {name}|{steps:,}|{state_bytes:,}|t^{state_bytes_exponent:.2f}|{seconds:.3f}|t^{seconds_exponent:.2f}",
            grown,
        ),
    ]


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    every = [f"{agent}:{rollout}" for agent in COMPARABLE for rollout in ("recurrent", "staggered", "window")]
    compiled = [name for name, agent in AGENTS.items() if MIXERS[agent.mixer].compiled_step]
    every += [f"{agent}:{rollout}:plain" for agent in compiled for rollout in ("recurrent", "staggered")]
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=every,
        metavar="AGENT:ROLLOUT[:plain]",
        default=list(MODES),
        help="plain: without the compiled step (default: %(default)s)",
    )
    parser.add_argument("--steps", type=COUNT.integer, default=100_000, help="the last step (default: %(default)s)")
    for name, default, what in (("width", 128, "channels of a token"), ("layers", 3, "number of blocks")):
        parser.add_argument(f"--{name}", type=COUNT.integer, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--heads", type=COUNT.integer, default=4, help="heads of a mixer (default: %(default)s)")
    parser.add_shared(register=False)


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
