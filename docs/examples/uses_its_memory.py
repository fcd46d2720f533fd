"""Exchanges a policy's memory for that of another held-out episode: uses_its_memory.py RUN (continuous actions)."""

import sys
from pathlib import Path

import numpy as np

from aaren_rl import load_policy
from aaren_rl.policies.held_out import held_out_episodes  # internal: a later version may move it

RUN = Path(sys.argv[1])
EVERY, SINCE = 20, [0, 1, 2, 3, 5, 10]  # steps between two exchanges; the rows of the table: steps since the last one

policy = load_policy(RUN)
episodes = held_out_episodes(RUN, policy.card).episodes
order = np.argsort(-episodes.lengths, kind="stable")  # longest first: those that have ended are the last rows
first, lengths = episodes.offsets[order], episodes.lengths[order]
half = (np.array(policy.card.action_high) - policy.card.action_low) / 2
own = policy.initial_state(len(order), episodes.returns[order])
rewards = np.zeros(len(order), np.float32)
sums = np.zeros((EVERY, 3))  # by steps since the exchange: squared errors with the own and the other memory, and steps
for t in range(lengths[1]):  # an exchange needs two episodes
    running = np.arange((lengths > t).sum())
    rows, own = first[running] + t, policy.select(own, running)
    if t % EVERY == 0:
        other = own._replace(memory=policy.select(own, np.roll(running, 1)).memory)
    else:
        other = policy.select(other, running)
    seen = episodes.observations[rows], rewards[running]
    (with_own, own), (with_other, other) = policy.act(*seen, own), policy.act(*seen, other)
    executed, rewards = episodes.actions[rows], episodes.rewards[rows]
    own, other = own._replace(previous_action=executed), other._replace(previous_action=executed)
    if t >= EVERY:  # before, there was nothing to exchange
        errors = [np.square((action - executed) / half).mean(1).sum() for action in (with_own, with_other)]
        sums[t % EVERY] += *errors, len(running)
print("steps since the exchange | own memory | of another episode")
for low, high in zip(SINCE, [*SINCE[1:], EVERY], strict=True):
    mine, others, steps = sums[low:high].sum(0)
    print(f"{low:>3} to {high - 1:>2} | {mine / steps:.4f} | {others / steps:.4f}")
