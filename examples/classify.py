"""Whose voice is it? Utterances of the vowels "ae" by nine speakers (Feng et al. 2024, section 4.4 and table 4).

JapaneseVowels: 270 utterances to train on and 370 to test on, 12 cepstral coefficients, 7 to 29 frames. The files come
in the wheel of aeon (`pip install --no-deps aeon` is enough), or lie in a folder of yours. Settings are those of the
Time-Series-Library, which the paper took; it selects the epoch by the accuracy on the test set. Here that is printed
beside an honest selection, on a fifth of the training set that is then not trained on.

    python examples/classify.py --seeds 5
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from aaren_rl.nn import Trunk, state_bytes

NAME, FRAMES, WIDTH = "JapaneseVowels", 3, 128
SELECTIONS = ("validation", "test")


def folder() -> Path:
    """Of the data in aeon's wheel, without importing aeon."""
    found = importlib.util.find_spec("aeon")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            f"no data: pip install --no-deps aeon, or --data FOLDER with {NAME}_TRAIN.ts and {NAME}_TEST.ts"
        )
    return Path(found.submodule_search_locations[0], "datasets", "data", NAME)


def read(file: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Utterances (B, N, 12), padded with zeros, their lengths and their speakers."""
    rows, speakers = [], []
    for line in file.read_text().lower().partition("@data")[2].split():
        *channels, speaker = line.split(":")
        rows.append(torch.tensor([[float(value) for value in channel.split(",")] for channel in channels]).T)
        speakers.append(int(speaker) - 1)
    lengths = torch.tensor([len(row) for row in rows])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, torch.tensor(speakers)


class Model(nn.Module):
    """Three frames to a token, trunk, and a speaker from the mean of what the trunk says of every frame."""

    def __init__(self, mixer: str, channels: int, speakers: int) -> None:
        """As in the library: three layers, eight heads, dropout 0.1, MLPs of twice the width."""
        super().__init__()
        self.embed = nn.Linear(FRAMES * channels, WIDTH)
        self.trunk = Trunk(mixer, WIDTH, 3, 8, 0.1, mlp_width=2 * WIDTH)
        self.head = nn.Linear(WIDTH, speakers)

    def tokens(self, x: Tensor) -> Tensor:
        """(B, N + 2, 12) with two frames before the first token to (B, N, C): what came, and nothing later."""
        return self.embed(x.unfold(1, FRAMES, 1).flatten(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, 9): padding stands behind an utterance, where a causal trunk's outputs do not see it."""
        y, _ = self.trunk(self.tokens(nn.functional.pad(x, (0, 0, FRAMES - 1, 0))))
        there = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        return self.head((y * there.unsqueeze(-1)).sum(1) / lengths.unsqueeze(1))

    def stream(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
        """The same frame by frame, and the bytes of state an utterance: of trunk, window and sum."""
        batch, most, channels = x.shape
        state, total = self.trunk.initial_state(batch), torch.zeros(batch, WIDTH)
        window = torch.zeros(batch, FRAMES, channels)
        for at in range(most):
            window = torch.cat([window[:, 1:], x[:, at : at + 1]], 1)
            y, state = self.trunk.step(self.tokens(window)[:, 0], state)
            total = total + y * (at < lengths).unsqueeze(1)
        return self.head(total / lengths.unsqueeze(1)), state_bytes((state, window, total)) // batch


def accuracy(model: Model, x: Tensor, lengths: Tensor, speakers: Tensor) -> float:
    """The share of utterances whose speaker is found."""
    model.eval()
    with torch.no_grad():
        return float((model(x, lengths).argmax(1) == speakers).float().mean())


def split(speakers: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Utterances to train on and to select by, the same share of every speaker's."""
    order = torch.randperm(len(speakers))
    held = torch.cat(
        [own[: round(share * len(own))] for s in speakers.unique() for own in [order[speakers[order] == s]]]
    )
    return order[~torch.isin(order, held)], held


def train(mixer: str, seed: int, selection: str, args: argparse.Namespace, sets: tuple) -> tuple[Model, dict]:
    """RAdam at 0.001, norms clipped at 4, until `patience` epochs bring nothing; the selected epoch's model."""
    torch.manual_seed(seed)
    (x, lengths, speakers), test = sets
    rows, held = split(speakers, 0.2) if selection == "validation" else (torch.arange(len(x)), None)
    chosen_by = test if held is None else (x[held], lengths[held], speakers[held])
    model, began = Model(mixer, x.shape[2], int(speakers.max()) + 1), time.perf_counter()
    optimizer = torch.optim.RAdam(model.parameters(), 1e-3)
    best, loss_of_best, chosen, waited = -1.0, math.inf, {}, 0
    bar = tqdm(range(1, args.epochs + 1), desc=f"{mixer} seed {seed} by {selection}", unit="epoch", leave=False)
    for epoch in bar:
        model.train()
        total = 0.0
        for part in rows[torch.randperm(len(rows))].split(16):
            loss = nn.functional.cross_entropy(model(x[part], lengths[part]), speakers[part])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 4.0)
            optimizer.step()
            total += loss.item()
        score = accuracy(model, *chosen_by)
        waited += 1
        if (score, -total) > (best, -loss_of_best):  # the training loss decides between equals
            waited = 0 if score > best else waited
            best, loss_of_best, chosen = score, total, {k: v.clone() for k, v in model.state_dict().items()}
        bar.set_postfix(epoch=epoch, best=f"{best:.3f}")
        if waited == args.patience:
            break
    model.load_state_dict(chosen)
    return model, {
        "accuracy": accuracy(model, *test),
        "epochs": epoch,
        "s": time.perf_counter() - began,
    }


def draw(results: dict[tuple[str, str], list[dict]], file: Path) -> None:
    """Every seed's accuracy, and the means."""
    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    for at, runs in enumerate(results.values()):
        scores = [100 * run["accuracy"] for run in runs]
        axes.plot([at] * len(scores), scores, "o", alpha=0.5)
        axes.plot([at - 0.2, at + 0.2], [sum(scores) / len(scores)] * 2, "k-")
    axes.axhline(96.65, ls=":", color="gray", label="the paper's Aaren, selected on the test set")
    axes.set_xticks(range(len(results)), [f"{mixer},\nby {selection}" for mixer, selection in results])
    axes.set(ylabel="test accuracy (%)", title=NAME)
    axes.legend()
    figure.savefig(file, bbox_inches="tight")


def main() -> None:
    """Trains, scores, streams, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the two .ts files; aeon's copy by default")
    parser.add_argument("--mixers", nargs="+", default=["aaren", "attention"])
    parser.add_argument("--selections", nargs="+", choices=SELECTIONS, default=SELECTIONS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--picture", type=Path, default=Path("classify.png"))
    parser.add_argument("--quick", action="store_true", help="two epochs: shows that it runs, no result")
    args = parser.parse_args()
    args.epochs, args.seeds = (2, 1) if args.quick else (args.epochs, args.seeds)
    place = args.data or folder()
    sets = [read(place / f"{NAME}_{part}.ts") for part in ("TRAIN", "TEST")]
    seen = torch.cat([row[:n] for row, n in zip(*sets[0][:2], strict=True)])
    mean, std = seen.mean(0), seen.std(0)  # of the training set; the library takes each set's own
    sets = [((x - mean) / std * (torch.arange(x.shape[1]) < n.unsqueeze(1)).unsqueeze(-1), n, y) for x, n, y in sets]
    results: dict[tuple[str, str], list[dict]] = {}
    for selection in args.selections:
        for mixer in args.mixers:
            runs = results.setdefault((mixer, selection), [])
            for seed in range(args.seeds):
                model, run = train(mixer, seed, selection, args, sets)
                runs.append(run)
                told = f"{100 * run['accuracy']:.2f} % after {run['epochs']} epochs, {run['s']:.0f} s"
                print(f"{mixer} by {selection}, seed {seed}: {told}", flush=True)
            scores = torch.tensor([100 * run["accuracy"] for run in runs])
            print(f"{mixer} by {selection}: {scores.mean():.2f} +- {scores.std(correction=0):.2f} %, {len(runs)} seeds")
            x, lengths, _ = (part[:16] for part in sets[1])
            with torch.no_grad():
                (logits, size), wanted = model.stream(x, lengths), model(x, lengths)
            difference = float(((logits - wanted).abs() / wanted.abs().clamp(min=1)).max())
            print(f"{mixer} streamed: differs by {difference:.1e}, state {size:,} bytes after {x.shape[1]} frames")
            assert difference < 1e-5
    draw(results, args.picture)


if __name__ == "__main__":
    main()
