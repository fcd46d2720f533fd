"""Characters of a text, and attention that looks at a part of what it has read (Menet et al., section 3 and figure 2).

A small Transformer of characters is trained on one text and read another; then its layers look at l^E of l characters,
without retraining, where each of seven samplers points. Beside it exact attention, and Aaren with recurrence encoding,
which reads in constant memory. The paper's model is GPT-2 on WikiText-2's words: perplexities cannot be compared, the
order of the samplers can.

    python examples/stream_text.py --train wiki.valid.txt --test wiki.test.txt
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from aaren_rl.nn import SAMPLERS, TreeConfig, Trunk, state_bytes


class Text:
    """Texts as numbers; characters that the first has fewer than ten times are one, unknown."""

    def __init__(self, train: str) -> None:
        """Takes the text whose characters are known."""
        known = [character for character, count in Counter(train).items() if count >= 10]
        self.number = {character: i for i, character in enumerate(sorted(known), 1)}

    def __len__(self) -> int:
        """With the unknown."""
        return len(self.number) + 1

    def encode(self, text: str) -> Tensor:
        """(characters,)."""
        return torch.tensor([self.number.get(character, 0) for character in text])


class Model(nn.Module):
    """Embedding, trunk, and the next character; attention has learned positions, recurrence encoding needs none."""

    def __init__(self, mixer: str, characters: int, args: argparse.Namespace) -> None:
        """Pre-norm blocks, as GPT-2."""
        super().__init__()
        self.embed, self.head = nn.Embedding(characters, args.width), nn.Linear(args.width, characters)
        self.place = nn.Parameter(0.02 * torch.randn(args.context, args.width)) if mixer == "attention" else None
        self.trunk = Trunk(mixer, args.width, args.layers, 4, 0.1, block="pre-norm")

    def tokens(self, x: Tensor, first: int = 0) -> Tensor:
        """(B, N) to (B, N, C); `first`: characters before."""
        e = self.embed(x)
        return e if self.place is None else e + self.place[first : first + x.shape[1]]

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character, (B, N, characters)."""
        return self.head(self.trunk(self.tokens(x))[0])


def train(mixer: str, text: Tensor, characters: int, args: argparse.Namespace) -> Model:
    """AdamW with a cosine, on stretches drawn at random."""
    torch.manual_seed(args.seed)
    model = Model(mixer, characters, args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.updates)
    bar = tqdm(range(args.updates), desc=f"train {mixer}", unit="update", leave=False)
    for update in bar:
        first = torch.randint(len(text) - args.context, (args.batch, 1))
        stretch = text[first + torch.arange(args.context + 1)]
        loss = nn.functional.cross_entropy(model(stretch[:, :-1]).flatten(0, 1), stretch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        cosine.step()
        if update % 50 == 0:
            bar.set_postfix(perplexity=f"{loss.exp():.2f}")
    return model.eval()


@torch.no_grad()
def perplexity(model: Model, text: Tensor, args: argparse.Namespace) -> float:
    """Of a character, over windows of the context's length."""
    windows = text[: len(text) // (args.context + 1) * (args.context + 1)].view(-1, args.context + 1)
    total = sum(
        float(nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"))
        for rows in windows.split(8)
    )
    return math.exp(total / windows[:, 1:].numel())


def with_trees(model: Model, config: TreeConfig, args: argparse.Namespace) -> Model:
    """The same weights, looking at a part."""
    planted = Model("attention", model.embed.num_embeddings, args).eval()
    planted.load_state_dict(model.state_dict())
    planted.trunk = planted.trunk.with_trees(config)
    return planted


@torch.no_grad()
def stream(model: Model, x: Tensor) -> tuple[float, dict[int, int]]:
    """The largest difference of a probability, a character at a time; bytes of state after some."""
    state, difference, sizes, wanted = model.trunk.initial_state(1), 0.0, {}, model(x).softmax(-1)
    for at in range(x.shape[1]):
        y, state = model.trunk.step(model.tokens(x[:, at : at + 1], at)[:, 0], state)
        difference = max(difference, float((model.head(y).softmax(-1) - wanted[:, at]).abs().max()))
        if at + 1 in (x.shape[1] // 2, x.shape[1]):
            sizes[at + 1] = state_bytes(state)
    return difference, sizes


def main() -> None:
    """Trains, measures, streams, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="a text to train on")
    parser.add_argument("--test", type=Path, required=True, help="a text to read")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.2, 0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--characters", type=int, default=20_000, help="of the test text, for each perplexity")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("stream_text.png"))
    parser.add_argument(
        "--quick", action="store_true", help="few updates, short windows: shows that it runs, no result"
    )
    args = parser.parse_args()
    if args.quick:
        args.updates, args.width, args.layers, args.context, args.characters = 20, 16, 2, 32, 400
        args.budgets = args.budgets[:2]
    text = args.train.read_text(encoding="utf-8")
    coder = Text(text)
    known, read = coder.encode(text), coder.encode(args.test.read_text(encoding="utf-8"))[: args.characters]
    if min(len(known), len(read)) <= args.context:
        counts = f"{len(known)} and {len(read)} characters"
        parser.error(f"--train, --test and --characters: {counts}; give more than --context, {args.context}")
    exact: dict[str, float] = {}
    for mixer in ("aaren-rsa", "attention"):
        began = time.perf_counter()
        model = train(mixer, known, len(coder), args)
        exact[mixer] = perplexity(model, read, args)
        print(f"{mixer}: perplexity {exact[mixer]:.3f} a character, {time.perf_counter() - began:.0f} s", flush=True)
        difference, sizes = stream(model, read[None, : args.context])
        told = ", ".join(f"{size:,} bytes after {n} characters" for n, size in sizes.items())
        print(f"{mixer} streamed: differs by {difference:.1e}; {told}")
        assert difference < 1e-5
    planted = with_trees(model, TreeConfig(args.budgets[0], args.samplers[0]), args)
    difference, _ = stream(planted, read[None, : args.context])
    print(f"tree attention streamed: differs by {difference:.1e}")
    assert difference < 1e-5
    axes = (figure := Figure(figsize=(7, 4))).subplots()
    for sampler in tqdm(args.samplers, desc="samplers", leave=False):
        found = {e: perplexity(with_trees(model, TreeConfig(e, sampler), args), read, args) for e in args.budgets}
        print(f"{sampler}: " + ", ".join(f"E = {e:g}: {value:.3f}" for e, value in found.items()), flush=True)
        axes.plot(list(found), list(found.values()), "o-", label=sampler)
    for name, value, style in (("attention", exact["attention"], "k-"), ("aaren-rsa", exact["aaren-rsa"], "k:")):
        axes.plot([args.budgets[0], 1], [value, value], style, label=f"{name}, exact")
    axes.set(xlabel="E: l^E terms of l characters", ylabel="perplexity of a character")
    axes.legend()
    figure.savefig(args.picture, bbox_inches="tight")


if __name__ == "__main__":
    main()
