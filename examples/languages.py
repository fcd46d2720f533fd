"""Regular languages, trained on short strings and asked about longer ones (Huang et al. 2023, section 4.2 and table 2).

After every character the model says which characters may follow, the string's end included; a string counts when all of
its positions are right. Bin 0 has the training's lengths, bin 1 up to twice as long. The strings are made here.

    python examples/languages.py --language d2 --seeds 3
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from aaren_rl.nn import RemConfig, Trunk, state_bytes

# Of a state: where each of the two characters leads, None: out of the language for good; and the states to end in.
LANGUAGES = {
    "d2": ([(1, None), (2, 0), (None, 1)], {0}),  # (a (ab)* b)*
    "tomita3": ([(0, 1), (2, 0), (3, None), (2, 1)], {0, 1, 3}),  # no odd run of 0 after an odd run of 1
    "parity": ([(0, 1), (1, 0)], {0}),  # an even number of 1
}
SIZES = {"d2": (5000, 1000, 100), "tomita3": (10000, 2000, 50), "parity": (10000, 2000, 50)}  # train, a bin, length
MODELS = ("attention", "rsa", "aaren", "aaren-rsa")
BEGIN, WIDTH, HEADS, LAYERS = 2, 20, 5, 3


class Strings:
    """Strings of a language, drawn uniformly among those of a length, which is uniform too."""

    def __init__(self, language: str, count: int, lengths: range, rng: np.random.Generator) -> None:
        """Tokens (M, N) behind a mark of the beginning, what may follow (M, N, 3), and which are there (M, N)."""
        moves, ends = LANGUAGES[language]
        ways = [np.array([float(state in ends) for state in range(len(moves))])]  # to end after so many characters more
        for _ in range(lengths[-1]):
            sums = [sum(ways[-1][to] for to in move if to is not None) for move in moves]
            ways.append(np.array(sums) / max(sums))  # only ratios matter
        possible = [n for n in lengths if ways[n][0] > 0]
        tokens = np.full((count, possible[-1] + 1), BEGIN)
        allowed, there = np.zeros((*tokens.shape, 3), np.float32), np.zeros(tokens.shape, bool)
        for row in range(count):
            state, n = 0, int(rng.choice(possible))
            there[row, : n + 1] = True
            for at in range(n + 1):
                allowed[row, at] = *(to is not None for to in moves[state]), state in ends
                if at < n:
                    weights = [0.0 if to is None else ways[n - at - 1][to] for to in moves[state]]
                    character = int(rng.random() * sum(weights) >= weights[0])
                    tokens[row, at + 1], state = character, moves[state][character]
        self.tokens, self.allowed, self.there = (torch.from_numpy(part) for part in (tokens, allowed, there))

    def batches(self, size: int, order: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Strings of like lengths together, cut off behind the longest."""
        lengths = self.there.sum(1)
        order = torch.cat([pool[lengths[pool].argsort()] for pool in order.split(8 * size)])
        cut = [(rows, int(lengths[rows].max())) for rows in order.split(size)]
        return [(self.tokens[rows, :n], self.allowed[rows, :n], self.there[rows, :n]) for rows, n in cut]


class Model(nn.Module):
    """Embedding, trunk, and what may follow; attention alone gets the paper's sinusoidal positions."""

    def __init__(self, mixer: str) -> None:
        """With the heads' encodings as in the paper's case I, for the mixers that have them."""
        super().__init__()
        rems = RemConfig((HEADS, 0, 0, 0, 0, 0)) if mixer.endswith("rsa") else None
        self.embed, self.positions = nn.Embedding(3, WIDTH), mixer == "attention"
        self.trunk, self.head = Trunk(mixer, WIDTH, LAYERS, HEADS, rems=rems), nn.Linear(WIDTH, 3)

    def tokens(self, x: Tensor, first: int = 0) -> Tensor:
        """(B, N) to (B, N, C)."""
        place = torch.arange(first, first + x.shape[1]).unsqueeze(1) / 1e4 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        waves = torch.stack([place.sin(), place.cos()], -1).flatten(1)
        return self.embed(x) + (waves if self.positions else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, N, 3), in parallel."""
        return self.head(self.trunk(self.tokens(x))[0])


@torch.no_grad()
def accuracy(model: Model, strings: Strings) -> float:
    """The share of strings that are right at every position."""
    model.eval()
    right = [
        (((model(x) > 0) == (y > 0.5)).all(-1) | ~there).all(-1)
        for x, y, there in strings.batches(250, torch.arange(len(strings.tokens)))
    ]
    return float(torch.cat(right).float().mean())


def train(mixer: str, seed: int, args: argparse.Namespace, data: dict[str, Strings]) -> tuple[Model, dict]:
    """Adam at 0.005, halved every fifth of the epochs; may stop where the validation strings are all right."""
    torch.manual_seed(seed)
    model, began = Model(mixer), time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, max(1, args.epochs // 5), 0.5)
    bar = tqdm(range(1, args.epochs + 1), desc=f"{mixer} seed {seed}", unit="epoch", leave=False)
    for epoch in bar:
        model.train()
        batches = data["train"].batches(args.batch, torch.randperm(len(data["train"].tokens)))
        for x, y, there in (batches[i] for i in torch.randperm(len(batches))):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x)[there], y[there])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        halving.step()
        score = accuracy(model, data["validation"])
        bar.set_postfix(epoch=epoch, validation=f"{score:.3f}")
        if score == 1 and not args.all_epochs:
            break
    bins = {name: accuracy(model, data[name]) for name in ("bin 0", "bin 1")}
    return model, {**bins, "epochs": epoch, "seconds": time.perf_counter() - began}


@torch.no_grad()
def stream(model: Model, x: Tensor) -> tuple[float, int]:
    """The largest difference between one character at a time and all at once, in probabilities; bytes of state."""
    state, logits = model.trunk.initial_state(len(x)), []
    for at in range(x.shape[1]):
        y, state = model.trunk.step(model.tokens(x[:, at : at + 1], at)[:, 0], state)
        logits.append(model.head(y))
    difference = float((torch.stack(logits, 1).sigmoid() - model(x).sigmoid()).abs().max())
    assert difference < 1e-5, f"streamed and parallel probabilities differ by {difference}"
    return difference, state_bytes(state) // len(x)


def draw(results: dict[str, list[dict]], language: str, file: Path) -> None:
    """Both bins of every model, all seeds."""
    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    for i, name in enumerate(("bin 0", "bin 1")):
        for at, runs in enumerate(results.values()):
            label = {"bin 0": "the training's lengths", "bin 1": "longer"}[name] if at == 0 else None
            means = np.mean([run[name] for run in runs])
            axes.bar(at + 0.4 * i, means, 0.38, color=("C0", "C1")[i], label=label)
            axes.plot([at + 0.4 * i] * len(runs), [run[name] for run in runs], "k_")
    axes.set_xticks([at + 0.2 for at in range(len(results))], list(results))
    axes.set(ylabel="strings wholly right", title=language, ylim=(0, 1.05))
    axes.legend()
    figure.savefig(file, bbox_inches="tight")


def main() -> None:
    """Trains, scores, streams, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=list(LANGUAGES), default="d2")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--all-epochs", action="store_true", help="as the paper: also where validation is all right")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--picture", type=Path, default=Path("languages.png"))
    parser.add_argument("--quick", action="store_true", help="few and short strings: shows that it runs, no result")
    args = parser.parse_args()
    train_count, bin_count, longest = (200, 50, 12) if args.quick else SIZES[args.language]
    args.epochs, args.seeds = (1, 1) if args.quick else (args.epochs, args.seeds)
    results: dict[str, list[dict]] = {name: [] for name in args.models}
    for seed in range(args.seeds):
        rng, short, long = np.random.default_rng(seed), range(2, longest + 1), range(longest + 1, 2 * longest + 1)
        sets = {"train": (train_count, short), "validation": (bin_count // 2, short)}
        sets |= {"bin 0": (bin_count, short), "bin 1": (bin_count, long)}
        data = {name: Strings(args.language, count, lengths, rng) for name, (count, lengths) in sets.items()}
        for mixer in args.models:
            model, run = train(mixer, seed, args, data)
            results[mixer].append(run)
            told = ", ".join(f"{name} {value:.4g}" for name, value in run.items())
            print(f"{args.language} {mixer} seed {seed}: {told}", flush=True)
            difference, size = stream(model.eval(), data["bin 1"].tokens[:4])
            print(f"  streamed: differs by {difference:.1e}, state {size:,} bytes after {2 * longest + 1} characters")
    draw(results, args.language, args.picture)


if __name__ == "__main__":
    main()
