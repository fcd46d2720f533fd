"""Fine-tuning: a run that starts from a policy's weights, with the model, the normalisation and the scale it has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..policies.card import PolicyCard
from .config import NetworkConfig

if TYPE_CHECKING:
    from torch import Tensor

    from .trainer import Trainer


@dataclass(frozen=True)
class Start:
    """A policy to start from.

    Attributes:
        path: where it is, for messages.
        card: how it was made.
        weights: those that it acts with.
    """

    path: str
    card: PolicyCard
    weights: dict[str, Tensor]

    def give(self, trainer: Trainer) -> None:
        """Puts the weights in the place of the trainer's, and of their moving average.

        Raises:
            CheckpointError: they are of another model, or of an environment of other sizes.
        """
        own, there = dataclasses.asdict(trainer.model.config), self.card.model
        # What weights do not depend on may be another: dropout, and how a tree acts.
        free = ("dropout", "timestep_std", "rem_gate", "tree_budget", "tree_sampler")
        differing = [
            f"{name} ({value}, here {own[name]})"
            for name, value in there.items()
            if name not in free and own.get(name) != value
        ]
        if differing:
            raise CheckpointError(f"--from {self.path}: the policy's model has another {', '.join(differing)}")
        for model in (trainer.model, trainer.average):
            model.load_state_dict(self.weights)


def read_start(path: str) -> Start:
    """The policy of a run or policy folder, with the weights that it acts with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    from ..policies.folder import load_policy

    policy = load_policy(path)
    return Start(path, policy.card, policy.model.state_dict())


def start_settings(path: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The agent of a policy to start from, and the settings that follow from it where nothing else is asked for.

    Raises:
        CheckpointError: there is no policy, or its card is damaged.
    """
    from ..policies.folder import read_card

    card = read_card(path)
    fields = {field.name for field in dataclasses.fields(NetworkConfig)}
    # A card written before there was an estimate of the typical return does not name it.
    network = {"typical_return": False, **{name: value for name, value in card.model.items() if name in fields}}
    return card.agent, {"network": network, "data": {"return_scale": card.return_scale}}
