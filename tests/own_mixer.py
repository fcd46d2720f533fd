"""A module of a user's own: a mixer and an agent, for `--register own_mixer`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aaren_rl.agents import MIXERS, Mixer, ScanState, prefix_scan, scan_step
from aaren_rl.policies.table import AGENTS, Agent


class Fading(Mixer):
    """A mean of all values so far, in which each step weighs 0.9 times the next."""

    constant_state = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Linear(width, width)

    def run(self, x: Tensor, state: ScanState | None, starts: Tensor | None, keep: slice | None):
        values = self.value(x)
        scores = values.new_zeros(values.shape[:-1])
        y, state = prefix_scan(scores, values, state, log_decay=torch.full_like(scores, 0.9).log(), starts=starts)
        return y if keep is None else y[:, keep], state

    def run_one(self, x: Tensor, state: ScanState) -> tuple[Tensor, ScanState]:
        value = self.value(x)
        score = value.new_zeros(value.shape[:1])
        return scan_step(score, value, state, torch.full_like(score, 0.9).log())

    def initial_state(self, batch_size: int) -> ScanState:
        return ScanState.identity((batch_size,), self.value.out_features)


AGENT = Agent("decision-fading", "Decision-Fading", "fading", color="#000000", marker="h")
MIXERS["fading"], AGENTS[AGENT.name] = Fading, AGENT
