"""Agents and sources of data, in words."""

from __future__ import annotations

import math

from ..agents.ranges import AUTO as AUTO

# agent -> mixer
AGENTS = {
    "decision-aaren": "aaren",
    "decision-transformer": "attention",
    "decision-aaren-rsa": "aaren-rsa",
    "decision-transformer-1token": "attention",
    "decision-rsa": "rsa",
    "decision-transformer-tree": "tree",
    "decision-gru": "gru",
    "decision-mingru": "mingru",
    "bc": "aaren",
    "bc-top10": "aaren",
}
# Baselines without a return-to-go: behavior cloning of all episodes, and of the best tenth as in Decision Transformer.
UNCONDITIONED = ("bc", "bc-top10")

ROLLOUTS = ("recurrent", "staggered", "window")  # as in `agents`, which imports torch
WEIGHTS = ("ema", "raw")
CONTEXTS = ("window", "episode", "mixed", "tbptt")  # of training

SOURCES = {
    "d4rl": "D4RL's file",
    "local": "a local set, not D4RL's",
    "minari": "Minari",
    "file": "a file of yours",
    "imported": "training elsewhere (imported weights)",
}

LABELS = {
    "decision-aaren": "Decision-Aaren",
    "decision-transformer": "Decision Transformer",
    "decision-aaren-rsa": "Decision-Aaren-RSA",
    "decision-transformer-1token": "Decision Transformer (1 token)",
    "decision-rsa": "Decision-RSA",
    "decision-transformer-tree": "Decision Transformer with a tree",
    "decision-gru": "Decision-GRU",
    "decision-mingru": "Decision-minGRU",
    "bc": "Behavioral cloning",
    "bc-top10": "10 % BC",
}
# What stands at every score of such data, so that none is taken for another's.
MARKS = {"d4rl": "D4RL", "local": "local", "minari": "Minari", "file": "your file"}
DATA = {
    "d4rl": "D4RL's data",
    "local": "local data, not D4RL's",
    "minari": "Minari's data, not D4RL's",
    "file": "data of your own, not D4RL's",
}


def target_number(target_return: float | str) -> float:
    """A target return as arrays have it: "auto" is infinity."""
    return math.inf if isinstance(target_return, str) else target_return


def target_words(target_return: float | str, digits: str = "g") -> str:
    """A target return in words."""
    return target_return if isinstance(target_return, str) else f"{target_return:{digits}}"


def weights_words(weights: str) -> str:
    """Which weights act, as prose has it: `EMA weights`; `weights` is one of WEIGHTS, and a precision behind it."""
    return f"{weights.replace('ema', 'EMA')} weights"


def label(agent: str) -> str:
    """An agent's name as prose has it."""
    return LABELS.get(agent, agent)
