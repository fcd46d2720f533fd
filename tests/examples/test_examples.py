"""The examples, with --quick, on strings they make and on small made-up files of the real ones' layouts."""

import datetime
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import ROOT

AGENT = ROOT / "examples" / "decision_aaren.py"
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {AGENT})


def vowels(folder: Path) -> list:
    rng = np.random.default_rng(0)
    for part, count in (("TRAIN", 27), ("TEST", 18)):
        lines = ["#made up", "@problemName JapaneseVowels", "@dimensions 12", "@classLabel true 1 2 3", "@data"]
        for i in range(count):
            channels = rng.normal(i % 3, 1, (12, rng.integers(7, 30))).round(6)
            lines.append(":".join(",".join(map(str, channel)) for channel in channels) + f":{i % 3 + 1}")
        (folder / f"JapaneseVowels_{part}.ts").write_text("\n".join(lines) + "\n")
    return ["--data", folder]


def transformer(folder: Path) -> list:
    rng = np.random.default_rng(0)
    hours = [datetime.datetime(2016, 7, 1) + datetime.timedelta(hours=i) for i in range(500)]
    waves = np.sin(np.arange(500)[:, None] * 2 * np.pi / 24 + np.arange(7)) + rng.normal(0, 0.1, (500, 7))
    rows = [f"{hour}," + ",".join(f"{value:.4f}" for value in wave) for hour, wave in zip(hours, waves, strict=True)]
    (folder / "ETTh1.csv").write_text("\n".join(["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *rows]) + "\n")
    return ["--data", folder / "ETTh1.csv"]


def badges(folder: Path) -> list:
    rng, arrays = np.random.default_rng(0), {}
    for part in ("train", "val", "test"):
        lengths = rng.integers(2, 30, 24).astype(np.int32)
        times = [1.3e9 + rng.lognormal(12, 1, n).cumsum() for n in lengths]
        marks = rng.integers(1, 5, lengths.sum()).astype(np.uint8)
        arrays |= {f"{part}_lengths": lengths, f"{part}_times": np.concatenate(times), f"{part}_marks": marks}
    np.savez(folder / "events.npz", **arrays)
    return ["--data", folder / "events.npz"]


def text(folder: Path) -> list:
    words, rng = ["the", "state", "of", "a", "stream", "is", "small"], np.random.default_rng(0)
    for name in ("train", "test"):
        (folder / f"{name}.txt").write_text(" ".join(rng.choice(words, 600)))
    return ["--train", folder / "train.txt", "--test", folder / "test.txt"]


DATA = {
    "languages": lambda folder: [],
    "classify": vowels,
    "forecast": transformer,
    "events": badges,
    "stream_text": text,
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a file as a program in an empty folder, in this process, which has imported torch; what it prints."""

    def as_program(file, *given):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(file), *map(str, given)])
        threads = torch.get_num_threads()
        runpy.run_path(str(file), run_name="__main__")
        torch.set_num_threads(threads)
        return capsys.readouterr().out

    return as_program


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "example",
    # Two that take seconds show that training, streaming and drawing work.
    [pytest.param(path, marks=() if path.stem in ("events", "forecast") else pytest.mark.slow) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_trains_streams_and_draws(example, run, tmp_path):
    printed = run(example, "--quick", "--picture", tmp_path / "picture.png", *DATA[example.stem](tmp_path))
    assert any(path.suffix == ".png" for path in tmp_path.iterdir())
    differences = [float(found) for found in re.findall(r"differs by ([\d.e+-]+?)[,;\s]", printed)]
    assert len(differences) >= 2 and max(differences) < 1e-5, printed
    assert re.search(r"[\d,]+ bytes after \d+", printed)


def test_the_agent_in_one_file_trains_and_acts(hopper_file, run):
    printed = run(AGENT, "--data", hopper_file, "--updates", 5, "--episodes", 1)
    assert re.search(r"gradient step 5: loss \d\.\d{4}\nasked for \d+: \d+, score \d+\.\d; \d+ s", printed)
    assert len(AGENT.read_text().splitlines()) <= 150


@torch.no_grad()
def test_the_agent_in_one_file_acts_as_it_trains():
    torch.manual_seed(0)
    model = runpy.run_path(str(AGENT))["DecisionAaren"](11, 3).eval()
    tokens, starts = torch.randn(1, 60, 15), torch.arange(60).remainder(30).eq(0).unsqueeze(0)
    parallel, _ = model(tokens, starts=starts)
    for begin in (0, 30):
        states, acted = None, []
        for t in range(begin, begin + 30):
            action, states = model(tokens[:, t : t + 1], states)
            acted.append(action)
        torch.testing.assert_close(torch.cat(acted, 1), parallel[:, begin : begin + 30], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """From logs to a policy, a video and an ONNX file."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "logs_to_video.ipynb").read_text(encoding="utf-8"))["cells"]
    scope = {"__name__": "notebook"}
    for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        for line in source.splitlines() if source.startswith("!") else ():
            program, *given = line[1:].split()
            subprocess.run([str(Path(sys.executable).with_name(program)), *given], check=True)
        if not source.startswith("!"):
            exec(source, scope)
    assert scope["balanced"] == 150, "the policy does not balance the pole"
    assert (tmp_path / "pole.gif").stat().st_size and (tmp_path / "pole.onnx").stat().st_size
