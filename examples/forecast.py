"""Oil temperatures and loads of a transformer station, hours ahead (Feng et al. 2024, section 4.3; Huang et al., 4.1).

ETTh1, from its own file (`--data ETTh1.csv`, https://github.com/zhouhaoyi/ETDataset): 8,640 hours to train on, 2,880 to
select by, 2,880 to test, 7 channels scaled by the training's mean and deviation, errors on that scale. 96 hours are
seen. Other than the paper's: a direct head on the last position instead of a decoder, a width of 128, and
a learning rate of 0.0003 instead of 0.0001.

    python examples/forecast.py --data ETTh1.csv --horizons 192 24
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

from aaren_rl.nn import Trunk, state_bytes

SEEN, HOURS = 96, (8640, 2880, 2880)  # to train on, to select by, to test


def windows(file: Path, horizon: int) -> list[Tensor]:
    """Of each part every stretch of 96 hours and the horizon after them, (windows, 7, 96 + horizon)."""
    values = torch.from_numpy(np.loadtxt(file, delimiter=",", skiprows=1, usecols=range(1, 8), dtype=np.float32))
    if len(values) < sum(HOURS):  # a small file of the same layout: the same shares
        ends = [len(values) * 3 // 5, len(values) * 4 // 5, len(values)]
        print(f"{file}: has {len(values):,} hours, ETTh1 {sum(HOURS):,} or more; split in shares of 60, 20 and 20 %")
    else:
        ends = [sum(HOURS[: i + 1]) for i in range(3)]
    scaled = (values - values[: ends[0]].mean(0)) / values[: ends[0]].std(0, correction=0)
    begins = [0, ends[0] - SEEN, ends[1] - SEEN]
    return [scaled[a:b].unfold(0, SEEN + horizon, 1) for a, b in zip(begins, ends, strict=True)]


class Model(nn.Module):
    """An hour is a token; the last one's output is the whole horizon, added to what the window's mean and scale say."""

    def __init__(self, mixer: str, width: int, horizon: int) -> None:
        """Two layers of eight heads, as the paper's encoder."""
        super().__init__()
        self.embed, self.trunk = nn.Linear(7, width), Trunk(mixer, width, 2, 8, 0.1)
        self.place = nn.Parameter(0.02 * torch.randn(SEEN, width))
        self.head = nn.Linear(width, 7 * horizon)

    def normalized(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A window (B, 96, 7), by its own mean and deviation, and these (Liu et al. 2022)."""
        mean, std = seen.mean(1, keepdim=True), seen.std(1, keepdim=True, correction=0) + 1e-5
        return (seen - mean) / std, mean, std

    def forward(self, seen: Tensor) -> Tensor:
        """(B, 96, 7) to the next hours (B, horizon, 7)."""
        x, mean, std = self.normalized(seen)
        y, _ = self.trunk(self.embed(x) + self.place, keep=slice(-1, None))
        return self.head(y[:, 0]).unflatten(1, (-1, 7)) * std + mean

    def stream(self, seen: Tensor) -> tuple[Tensor, int]:
        """The same an hour at a time, when the window's mean and deviation are known; bytes of state a window."""
        x, mean, std = self.normalized(seen)
        state = self.trunk.initial_state(len(x))
        for at in range(SEEN):
            y, state = self.trunk.step(self.embed(x[:, at]) + self.place[at], state)
        return self.head(y).unflatten(1, (-1, 7)) * std + mean, state_bytes(state) // len(x)


@torch.no_grad()
def errors(model: nn.Module, part: Tensor) -> tuple[float, float]:
    """Mean squared and mean absolute error over all windows, hours and channels."""
    model.eval()
    squared, absolute, count = 0.0, 0.0, 0
    for rows in part.split(256):
        whole = rows.transpose(1, 2)
        off = (model(whole[:, :SEEN]) - whole[:, SEEN:]).double()
        squared, absolute = squared + float(off.square().sum()), absolute + float(off.abs().sum())
        count += off.numel()
    return squared / count, absolute / count


class Baseline(nn.Module):
    """The last value, or the window's mean, for every hour to come."""

    def __init__(self, of_mean: bool, horizon: int) -> None:
        """Without parameters."""
        super().__init__()
        self.of_mean, self.horizon = of_mean, horizon

    def forward(self, seen: Tensor) -> Tensor:
        """As `Model`."""
        value = seen.mean(1, keepdim=True) if self.of_mean else seen[:, -1:]
        return value.expand(-1, self.horizon, -1)


def train(mixer: str, seed: int, args: argparse.Namespace, parts: list[Tensor], horizon: int) -> tuple[Model, dict]:
    """Adam, halved every epoch; the epoch with the smallest validation error, until `patience` bring nothing."""
    torch.manual_seed(seed)
    model, began = Model(mixer, args.width, horizon), time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    best, chosen, waited = float("inf"), {}, 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        order = torch.randperm(len(parts[0])).split(32)
        bar = tqdm(order, desc=f"{mixer} seed {seed} epoch {epoch}, validation {best:.3f}", unit="update", leave=False)
        for rows in bar:
            whole = parts[0][rows].transpose(1, 2)
            loss = (model(whole[:, :SEEN]) - whole[:, SEEN:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        halving.step()
        score, waited = errors(model, parts[1])[0], waited + 1
        if score < best:
            best, chosen, waited = score, {key: part.clone() for key, part in model.state_dict().items()}, 0
        if waited == args.patience:
            break
    model.load_state_dict(chosen)
    mse, mae = errors(model, parts[2])
    return model, {"mse": mse, "mae": mae, "validation": best, "epochs": epoch, "s": time.perf_counter() - began}


def draw(models: dict[str, Model], part: Tensor, file: Path) -> None:
    """One test window's oil temperature (the last channel), and what each model says of it."""
    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    whole = part[len(part) // 2].T
    axes.plot(range(-SEEN, len(whole) - SEEN), whole[:, -1], color="gray", label="measured")
    for name, model in models.items():
        with torch.no_grad():
            axes.plot(model(whole[None, :SEEN])[0, :, -1], label=name)
    axes.set(xlabel="hours from now", ylabel="oil temperature, scaled", title="ETTh1")
    axes.legend()
    figure.savefig(file, bbox_inches="tight")


def main() -> None:
    """Trains, scores, streams, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="ETTh1.csv")
    parser.add_argument("--horizons", nargs="+", type=int, default=[192, 24])
    parser.add_argument("--mixers", nargs="+", default=["aaren", "attention"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--picture", type=Path, default=Path("forecast.png"), help="one for each horizon, _24.png")
    parser.add_argument("--quick", action="store_true", help="one epoch of few windows: shows that it runs, no result")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.seeds, args.width, args.horizons = 1, 1, 16, args.horizons[-1:]
    for horizon in args.horizons:
        parts = [part[:200] if args.quick else part for part in windows(args.data, horizon)]
        for name in ("last value", "mean"):
            mse, mae = errors(Baseline(name == "mean", horizon), parts[2])
            print(f"horizon {horizon}, {name}: MSE {mse:.3f}, MAE {mae:.3f}, {len(parts[2]):,} test windows")
        models: dict[str, Model] = {}
        for mixer in args.mixers:
            runs = []
            for seed in range(args.seeds):
                models[mixer], run = train(mixer, seed, args, parts, horizon)
                runs.append(run)
                told = ", ".join(f"{name} {value:.4g}" for name, value in run.items())
                print(f"horizon {horizon}, {mixer} seed {seed}: {told}", flush=True)
            seen = parts[2][:8].transpose(1, 2)[:, :SEEN]
            with torch.no_grad():
                (streamed, size), wanted = models[mixer].stream(seen), models[mixer](seen)
            difference = float((streamed - wanted).abs().max())
            print(f"{mixer} streamed: differs by {difference:.1e}, state {size:,} bytes after {SEEN} hours")
            assert difference < 1e-5
        draw(models, parts[2], args.picture.with_stem(f"{args.picture.stem}_{horizon}"))


if __name__ == "__main__":
    main()
