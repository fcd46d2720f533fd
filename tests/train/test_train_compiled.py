"""`train --compile`: the same training to rounding; the compiler itself only with -m slow."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_run import arguments, folder, records

from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.train import acceleration
from aaren_rl.train.command import main as train

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler uses what torch deprecates
    pytest.mark.skipif(torch.__version__ < acceleration.MIN_TORCH_TO_COMPILE, reason="torch is too old for --compile"),
]
COMPILED = ["--compile", "--dropout", "0", "--precision", "float32"]


def losses(run: Path) -> list[float]:
    return [line["train/loss"] for line in records(run) if "train/loss" in line]


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def compiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes asked for; "aot_eager" stops before code is made."""
    if request.param == "inductor" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    torch.compiler.reset()
    modes: list[str] = []
    make = torch.compile

    def compile_(model: torch.nn.Module, *, mode: str) -> Callable[..., object]:
        modes.append(mode)
        return make(model, backend=request.param)

    monkeypatch.setattr(torch, "compile", compile_)
    return modes


def test_the_same_training_and_it_can_be_resumed(hopper_file: Path, tmp_path: Path, compiles: list[str]) -> None:
    own = arguments(hopper_file, tmp_path / "own", *COMPILED[1:])
    compiled = arguments(hopper_file, tmp_path / "compiled", *COMPILED)
    assert train(own) == 0 and not compiles
    assert train(compiled) == 0 and compiles == ["default"]
    run = folder(tmp_path / "compiled")
    assert losses(run) == pytest.approx(losses(folder(tmp_path / "own")), rel=1e-4)
    assert train([*compiled, "--resume"]) == 0
    assert evaluate([str(run), "--episodes", "1"]) == 0


def test_what_cannot_be_compiled_is_said_in_a_line(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def backend(*_: object) -> Callable[..., object]:
        raise RuntimeError("no C++ compiler\nwas found")

    torch.compiler.reset()
    make = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: make(model, backend=backend))
    compiled = arguments(hopper_file, tmp_path, *COMPILED)
    assert train(compiled) == 7
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: torch could not compile the model (backend='backend' raised: RuntimeError: no C++")
    assert said.endswith("; train without --compile")
    monkeypatch.setattr(acceleration, "MIN_TORCH_TO_COMPILE", "99.1")
    assert train(compiled) == 2
    assert "--compile needs torch 99.1 or newer, here is " in capsys.readouterr().err
