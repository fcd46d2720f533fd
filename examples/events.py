"""Which badge next, and when? Users of a question-and-answer site (Feng et al. 2024, section 4.2 and table 2).

StackOverflow's events, from an .npz file (`--data`) with {train,val,test}_lengths, _times (Unix seconds) and _marks
(from 1 on), the sequences end to end. Settings are those of the paper's Transformer Hawkes process with a mixture of
eight log-normals: two layers, width 64, one head. The time's likelihood depends on its unit, here days.

    python examples/events.py --data stackoverflow.npz
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from tqdm import tqdm

from aaren_rl.nn import Trunk, state_bytes

DAY, WIDTH, COMPONENTS = 86400.0, 64, 8


class Events(NamedTuple):
    """Sequences (B, N), padded; `marks` from 0 on, `gaps` in days since the event before, and how many of them."""

    marks: Tensor
    gaps: Tensor
    lengths: Tensor

    def take(self, rows: Tensor) -> Events:
        """Some sequences, cut off behind the longest."""
        n = int(self.lengths[rows].max())
        return Events(self.marks[rows, :n], self.gaps[rows, :n], self.lengths[rows])

    @property
    def known(self) -> Tensor:
        """Where there is a next event to foretell, (B, N - 1)."""
        return torch.arange(1, self.marks.shape[1]) < self.lengths.unsqueeze(1)


def read(file: Path) -> dict[str, Events]:
    """The three parts of a file."""
    parts = {}
    with np.load(file) as arrays:
        for name in ("train", "val", "test"):
            lengths, times, marks = (arrays[f"{name}_{what}"] for what in ("lengths", "times", "marks"))
            cuts = np.cumsum(lengths)[:-1]
            days = [torch.from_numpy(np.diff(own, prepend=own[0]) / DAY) for own in np.split(times, cuts)]
            own = [torch.from_numpy(part).long() - 1 for part in np.split(marks, cuts)]
            marks, gaps = (nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (own, days))
            # Simultaneous events are taken to be a second apart.
            parts[name] = Events(marks, gaps.float().clamp(min=1 / DAY), torch.from_numpy(lengths).long())
    return parts


class Model(nn.Module):
    """A token is an event's mark and the logarithm of the gap before it; out come the next mark and the next gap."""

    def __init__(self, mixer: str, marks: int, center: float, scale: float) -> None:
        """Takes the mean and the deviation of the training's logarithmic gaps."""
        super().__init__()
        self.mark, self.gap = nn.Embedding(marks, WIDTH), nn.Linear(1, WIDTH)
        self.trunk = Trunk(mixer, WIDTH, 2, 1, 0.1)
        self.next_mark, self.next_gap = nn.Linear(WIDTH, marks), nn.Linear(WIDTH, 3 * COMPONENTS)
        self.center, self.scale = center, scale

    def tokens(self, marks: Tensor, gaps: Tensor) -> Tensor:
        """(...) to (..., C)."""
        return self.mark(marks) + self.gap(((gaps.log() - self.center) / self.scale).unsqueeze(-1))

    def heads(self, y: Tensor) -> tuple[Tensor, MixtureSameFamily]:
        """Logits of the next mark, and the distribution of the next gap's scaled logarithm."""
        shares, means, deviations = self.next_gap(y).unflatten(-1, (3, COMPONENTS)).unbind(-2)
        normals = Normal(means, nn.functional.softplus(deviations) + 1e-3)
        return self.next_mark(y), MixtureSameFamily(Categorical(logits=shares), normals)

    def forward(self, events: Events) -> tuple[Tensor, MixtureSameFamily]:
        """Of every event but the last, in parallel; padding stands behind, where a causal trunk does not see it."""
        return self.heads(self.trunk(self.tokens(events.marks[:, :-1], events.gaps[:, :-1]))[0])

    def losses(self, events: Events) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every known next event: NLL of mark and of gap (in days), whether the mark is right, days off."""
        logits, logs = self(events)
        known, marks, gaps = events.known, events.marks[:, 1:], events.gaps[:, 1:]
        of_gap = (gaps * self.scale).log() - logs.log_prob((gaps.log() - self.center) / self.scale)
        of_mark = nn.functional.cross_entropy(logits.transpose(1, 2), marks, reduction="none")
        with torch.no_grad():
            off = ((median(logs) * self.scale + self.center).exp() - gaps).abs() if not self.training else gaps
        return of_mark[known], of_gap[known], (logits.argmax(-1) == marks)[known], off[known]


def median(logs: MixtureSameFamily) -> Tensor:
    """By bisection: a mixture's has no formula."""
    middle = torch.zeros_like(logs.mean)
    for step in range(30):
        middle = middle + torch.where(logs.cdf(middle) > 0.5, -10.0, 10.0) / 2 ** (step + 1)
    return middle


@torch.no_grad()
def score(model: Model, events: Events) -> dict[str, float]:
    """Means over all events but the first of each sequence; of the error, the median."""
    model.eval()
    parts = [model.losses(events.take(rows)) for rows in events.lengths.argsort().split(64)]
    mark, gap, right, off = (torch.cat(part).double() for part in zip(*parts, strict=True))
    found = [100 * right.mean(), mark.mean(), gap.mean(), off.median()]
    return dict(zip(("accuracy", "NLL mark", "NLL gap", "median error"), map(float, found), strict=True))


def baselines(parts: dict[str, Events], marks: int) -> dict[str, list[float]]:
    """Accuracy of the most frequent mark, and of the most frequent one after each."""
    counts = torch.zeros(marks, marks)
    pairs = {k: (own.marks[:, :-1][own.known], own.marks[:, 1:][own.known]) for k, own in parts.items()}
    counts.index_put_(pairs["train"], torch.ones(()), accumulate=True)
    before, after = pairs["test"]
    majority = float((after == counts.sum(0).argmax()).float().mean())
    bigram = float((after == counts.argmax(1)[before]).float().mean())
    return {"majority": [round(100 * majority, 2)], "bigram": [round(100 * bigram, 2)]}


def train(mixer: str, seed: int, args: argparse.Namespace, parts: dict[str, Events], marks: int) -> tuple[Model, dict]:
    """Adam at 0.0005, sequences of like lengths in a batch; the epoch that validation likes best."""
    torch.manual_seed(seed)
    own, began, best, chosen = parts["train"], time.perf_counter(), math.inf, {}
    logs = own.gaps[:, 1:][own.known].log()
    model = Model(mixer, marks, float(logs.mean()), float(logs.std()))
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    for epoch in range(1, args.epochs + 1):
        model.train()
        pools = torch.randperm(len(own.lengths)).split(16 * 20)
        batches = [part for pool in pools for part in pool[own.lengths[pool].argsort()].split(16)]
        bar = tqdm(torch.randperm(len(batches)), desc=f"{mixer} seed {seed} epoch {epoch}", unit="update", leave=False)
        for at in bar:
            optimizer.zero_grad()
            sum(part.mean() for part in model.losses(own.take(batches[at]))[:2]).backward()
            optimizer.step()
        held = score(model, parts["val"])
        if (value := held["NLL mark"] + held["NLL gap"]) < best:
            best, chosen = value, {key: part.clone() for key, part in model.state_dict().items()}
    model.load_state_dict(chosen)
    return model, {**score(model, parts["test"]), "epochs": epoch, "s": time.perf_counter() - began}


@torch.no_grad()
def stream(model: Model, events: Events) -> tuple[float, int]:
    """The largest difference of a mark's probability, an event at a time, and the bytes of state a sequence."""
    state, difference = model.trunk.initial_state(len(events.lengths)), 0.0
    wanted = model(events)[0].softmax(-1)
    for at, there in enumerate(events.known.T):
        y, state = model.trunk.step(model.tokens(events.marks[:, at], events.gaps[:, at]), state)
        difference = max(difference, float((model.heads(y)[0].softmax(-1) - wanted[:, at])[there].abs().max()))
    return difference, state_bytes(state) // len(events.lengths)


def main() -> None:
    """Trains, scores, streams, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the .npz file")
    parser.add_argument("--mixers", nargs="+", default=["aaren", "attention"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--picture", type=Path, default=Path("events.png"))
    parser.add_argument(
        "--quick", action="store_true", help="one epoch of few sequences: shows that it runs, no result"
    )
    args = parser.parse_args()
    parts = read(args.data)
    marks = 1 + max(int(part.marks.max()) for part in parts.values())
    if args.quick:
        args.epochs = args.seeds = 1
        parts = {name: part.take(torch.arange(min(32, len(part.lengths)))) for name, part in parts.items()}
    found = baselines(parts, marks)
    print(found)
    for mixer in args.mixers:
        for seed in range(args.seeds):
            model, run = train(mixer, seed, args, parts, marks)
            found.setdefault(mixer, []).append(run["accuracy"])
            print(f"{mixer} seed {seed}: " + ", ".join(f"{k} {v:.4g}" for k, v in run.items()), flush=True)
        few = parts["test"].take(parts["test"].lengths.argsort()[:8])
        difference, size = stream(model.eval(), few)
        print(
            f"{mixer} streamed: differs by {difference:.1e}, state {size:,} bytes after {few.marks.shape[1] - 1} events"
        )
        assert difference < 1e-5
    axes = (figure := Figure(figsize=(6, 3.5))).subplots()
    for name, values in found.items():
        axes.plot([name] * len(values), values, "o")
    axes.set(ylabel="next mark right (%)", title=args.data.stem)
    figure.savefig(args.picture, bbox_inches="tight")


if __name__ == "__main__":
    main()
