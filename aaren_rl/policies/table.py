"""The table of agents: what is trained by which name, and how tables and figures show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Agent:
    """An agent that is trained by its name, and all that tables, figures and options need to know of it.

    To add one, put it into `AGENTS`, in a module of your own too (`--register MODULE`).

    Attributes:
        name: as on a command line.
        label: as prose has it.
        mixer: a name in `agents.MIXERS`.
        settings: what its default recipe has in place of Decision-Aaren's.
        conditioned: whether it is asked for a return. Behavior cloning is not.
        color, marker: in figures, as matplotlib names them.
    """

    name: str
    label: str
    mixer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    conditioned: bool = True
    color: str = "#5a6270"
    marker: str = "*"


# As published: without drawing by return, and the dropout that goes with it.
_NO_DROPOUT = {"dropout": 0.0, "action_dropout": 0.0}
_PLAIN = {"draws": "uniform", **_NO_DROPOUT}
_BEST_TENTH = {"draws": "best", "draw_share": 0.1, **_NO_DROPOUT}
_WINDOW = {"context": "window", "rollout": "window", "rollout_context": 20}
_DT = {**_WINDOW, **_PLAIN, "tokens_per_step": 3}
_AAREN_RSA = {"forget_gate": False}  # its encoding is a memory that fades
_RSA = {**_WINDOW, "tokens_per_step": 3, "rem_dilation": 1}
# A longer memory than the other Transformers', of which an action looks at little.
_TREE = {"context": "window", "context_length": 50, "rollout": "staggered", "rollout_context": 50, "tokens_per_step": 3}
# Okabe and Ito's colors, which stay apart for the color-blind; markers differ as well, for print in gray.
AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("decision-aaren", "Decision-Aaren", "aaren", color="#0072b2", marker="o"),
        Agent("decision-transformer", "Decision Transformer", "attention", _DT, color="#d55e00", marker="s"),
        Agent("decision-aaren-rsa", "Decision-Aaren-RSA", "aaren-rsa", _AAREN_RSA, color="#56b4e9", marker="v"),
        Agent(
            "decision-transformer-1token", "Decision Transformer (1 token)", "attention", {**_WINDOW, **_PLAIN},
            color="#aa3377", marker="d",
        ),
        Agent("decision-rsa", "Decision-RSA", "rsa", _RSA, color="#cc79a7", marker="D"),
        Agent(
            "decision-transformer-tree", "Decision Transformer with a tree", "tree", {**_TREE, **_PLAIN},
            color="#e69f00", marker="P",
        ),
        Agent("decision-gru", "Decision-GRU", "gru", color="#882255", marker="X"),
        Agent("decision-mingru", "Decision-minGRU", "mingru", color="#44aa99", marker="p"),
        # Behavior cloning of all episodes, and of the best tenth as in Decision Transformer.
        Agent("bc", "Behavioral cloning", "aaren", _PLAIN, color="#009e73", marker="^", conditioned=False),
        Agent("bc-top10", "10 % BC", "aaren", _BEST_TENTH, color="#8f7700", marker="<", conditioned=False),
    )
}  # fmt: skip


def style(agent: str) -> tuple[str, str]:
    """An agent's color and marker in figures."""
    found = find_agent(agent)
    return found.color, found.marker


def find_agent(name: str) -> Agent:
    """The agent of that name; of one that is not registered here, what a file may still show of it."""
    return AGENTS.get(name) or Agent(name, name, "")


def label(agent: str) -> str:
    """An agent's name as prose has it."""
    return find_agent(agent).label
