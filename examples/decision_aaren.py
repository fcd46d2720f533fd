"""Decision-Aaren in one file: from an HDF5 file of episodes to a policy that acts, on the scan of the package.

`aaren-rl train` is this with what a tool needs around it: other agents and data, held-out episodes, checkpoints, GPUs,
a compiled step. The parts are named as in docs/mathematics.md.

    python examples/decision_aaren.py                        # a dataset of a Hopper that is made first, 3 minutes
    python examples/decision_aaren.py --data hopper.hdf5     # D4RL's file, or another of its layout
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aaren_rl.envs import Episodes, Task, load_task, make_env, normalized_score
from aaren_rl.nn import ScanState, prefix_scan

WIDTH, HEADS, LAYERS, SCALE = 128, 4, 3, 1000.0  # SCALE: returns are divided by it
STEPS, WARMUP, CLIP = 1280, 100, 1.0  # environment steps per gradient step, steps of linear warm-up, norm of a gradient


class Aaren(nn.Module):
    """Softmax attention with a learned query, per head: a scan over the tokens, with a gate that fades earlier ones.

    The query q is the same for every token, so its score q . W_k x is one linear map of x.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores_and_gates = nn.Linear(WIDTH, 2 * HEADS)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        steps = torch.tensor([2.0, 20.0, 200.0, 1e7])  # after which a head has forgotten all but 1 / e, before training
        nn.init.zeros_(self.scores_and_gates.weight[HEADS:].detach())
        self.scores_and_gates.bias.data[HEADS:] = torch.log(steps - 1)

    def forward(self, x: Tensor, state: ScanState | None, starts: Tensor | None) -> tuple[Tensor, ScanState]:
        """Tokens (B, N, C), True in `starts` (B, N) where an episode begins, to (B, N, C) and the state after them."""
        scores, gates = self.scores_and_gates(x).transpose(1, 2).chunk(2, 1)
        values = self.value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        starts = None if starts is None else starts.unsqueeze(1)
        y, state = prefix_scan(scores, values, state, log_decay=F.logsigmoid(gates), starts=starts)
        return self.out(y.transpose(1, 2).flatten(2)), state


class Block(nn.Module):
    """A post-norm Transformer block, with Aaren in the place of self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.norm1, self.norm2 = Aaren(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, state: ScanState | None, starts: Tensor | None) -> tuple[Tensor, ScanState]:
        y, state = self.mixer(x, state, starts)
        x = self.norm1(x + y)
        return self.norm2(x + self.mlp(x)), state


class DecisionAaren(nn.Module):
    """One token per step, of return-to-go, observation and previous action; an action in [-1, 1] from each."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(1 + observations + actions, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, actions)

    def forward(self, tokens: Tensor, states: list | None = None, starts: Tensor | None = None) -> tuple[Tensor, list]:
        """Tokens (B, N, 1 + O + A), of episodes in training, of one step in a rollout, after those in `states`."""
        x, after = self.norm(self.embed(tokens)), []
        for block, state in zip(self.blocks, states or [None] * LAYERS, strict=True):
            x, state = block(x, state, starts)
            after.append(state)
        return torch.tanh(self.head(x)), after


def train(episodes: Episodes, updates: int) -> DecisionAaren:
    """Regression on the actions of whole episodes, packed into one row: the EMA of the weights."""
    mean, std = map(torch.from_numpy, episodes.observation_statistics())
    observations = (torch.from_numpy(episodes.observations) - mean) / std
    actions = torch.from_numpy(episodes.actions)
    before = torch.cat([torch.zeros_like(actions[:1]), actions[:-1]])
    first = torch.from_numpy(episodes.timesteps()) == 0
    before[first] = 0.0
    to_go = torch.from_numpy(episodes.returns_to_go()).unsqueeze(1) / SCALE
    tokens = torch.cat([to_go, observations, before], 1)
    model = DecisionAaren(observations.shape[1], actions.shape[1])
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=1e-2, weight_decay=1e-4, adjust_lr_fn="match_rms_adamw")
    optimizers = muon, torch.optim.AdamW(rest, lr=3e-3, weight_decay=1e-4)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda k: rate(k, updates)) for each in optimizers]
    rng, count = np.random.default_rng(0), max(1, round(STEPS * len(episodes) / episodes.n_steps))
    for update in range(updates):
        chosen = rng.integers(len(episodes), size=count)
        rows = np.concatenate([np.arange(episodes.offsets[e], episodes.offsets[e + 1]) for e in chosen])
        predicted, _ = model(tokens[rows].unsqueeze(0), starts=first[rows].unsqueeze(0))
        loss = F.mse_loss(predicted[0], actions[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for step in (*optimizers, *schedules):
            step.step()
        model.zero_grad()
        averaged.update_parameters(model)
        if update % 100 == 99 or update == updates - 1:
            print(f"gradient step {update + 1}: loss {loss.item():.4f}", flush=True)
    return averaged.module.eval()


def rate(update: int, updates: int) -> float:
    """The share of the peak learning rate: linear warm-up, then a cosine to zero."""
    return min(1.0, (update + 1) / WARMUP) * 0.5 * (1 + np.cos(np.pi * update / updates))


@torch.no_grad()
def play(model: DecisionAaren, task: Task, episodes: Episodes, target: float, seed: int) -> float:
    """The return of an episode that is asked for `target`. What is carried from step to step is of constant size."""
    mean, std = episodes.observation_statistics()
    env = make_env(task.env_id, **task.env_kwargs)
    observation, _ = env.reset(seed=seed)
    states, action, to_go, done = None, np.zeros(episodes.action_dim, np.float32), target, False
    while not done:
        token = np.concatenate([[to_go / SCALE], (observation - mean) / std, action]).astype(np.float32)
        predicted, states = model(torch.from_numpy(token).view(1, 1, -1), states)
        action = predicted[0, 0].numpy()
        observation, reward, terminated, truncated, _ = env.step(action)
        to_go, done = to_go - reward, terminated or truncated
    env.close()
    return target - to_go


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="hopper-medium", help="a task whose actions span [-1, 1] [hopper-medium]")
    parser.add_argument("--data", default="auto", help="an HDF5 file in D4RL's layout [a local dataset]")
    parser.add_argument("--updates", type=int, default=1600, help="gradient steps [1600]")
    parser.add_argument("--episodes", type=int, default=20, help="played at the end [20]")
    arguments = parser.parse_args()
    task, episodes = load_task(arguments.env, arguments.data)
    began = time.perf_counter()
    model = train(episodes, arguments.updates)
    seconds, target = time.perf_counter() - began, float(np.quantile(episodes.returns, 0.99))
    returns = [play(model, task, episodes, target, 1000 + i) for i in range(arguments.episodes)]
    score = normalized_score(task.name, float(np.mean(returns)))
    print(f"asked for {target:.0f}: {np.mean(returns):.0f}, score {score:.1f}; {seconds:.0f} s of training")
