"""The benchmarks: their figures, and that they give none for a result that is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.agents import DecisionModel
from aaren_rl.agents.fast.rollout_step import CompiledStep
from aaren_rl.bench import command as bench
from aaren_rl.bench import data as bench_data
from aaren_rl.bench import evaluate as bench_evaluate
from aaren_rl.bench import rollout as bench_rollout
from aaren_rl.errors import CommandError
from aaren_rl.train.contexts.batches import StepData

COMMAND = "python -m aaren_rl.bench rollout"
SMALL = ("rollout", "--steps", "300", "--width", "16", "--layers", "1", "--heads", "2")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rollout, "BLOCK", 20)
    monkeypatch.setattr(bench_rollout, "REPEATS", 3)
    monkeypatch.setattr(bench_rollout, "CACHED", 150)
    monkeypatch.setattr(bench_data, "REPEATS", 1)


def test_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, files = torch.get_num_threads(), (tmp_path / "rollout.json", tmp_path / "rollout.svg")
    assert bench.main([*SMALL, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    assert torch.get_num_threads() == threads
    result = json.loads(files[0].read_text())
    assert set(result["machine"]) == {"processor", "cores", "load_average", "threads", "python", "torch"}
    assert result["machine"]["threads"] == 1 and result["machine"]["torch"] == torch.__version__
    assert (result["width"], result["layers"], result["heads"]) == (16, 1, 2)
    assert [mode["name"] for mode in result["modes"]] == list(bench_rollout.MODES)
    for mode in result["modes"]:
        cache = mode["name"] == "decision-transformer:carry"
        assert [cost["step"] for cost in mode["costs"]] == ([10, 100, 150] if cache else [10, 100, 150, 300])
        assert all(0 < cost["fastest_microseconds"] <= cost["microseconds"] for cost in mode["costs"])
        assert mode["costs"][0]["ratio"] == 1 and 0 <= mode["checked_difference"] <= 1e-5
    assert all(mode["share"] > 0 for mode in result["modes"]) and result["modes"][-1]["share"] == 1
    out, drawn = capsys.readouterr().out, files[1].read_text()
    assert f"torch {torch.__version__}, 1 threads" in out and "of decision-transformer:window's time" in out
    assert "environment step" in drawn


def test_aarens_state_is_constant_and_attentions_cache_is_not(tmp_path: Path) -> None:
    assert bench.main([*SMALL, "--json", str(tmp_path / "rollout.json")]) == 0
    modes = json.loads((tmp_path / "rollout.json").read_text())["modes"]
    sizes = {mode["name"]: [cost["state_bytes"] for cost in mode["costs"]] for mode in modes}
    rest = 8 + 3 * 4  # return-to-go in float64; the last action, 3 numbers, in float32
    state = 8 * (2 + 2 + 16)  # m and u of 2 heads, w of 16 channels, in float64
    assert sizes["decision-aaren:carry"] == [state + rest] * 4
    assert sizes["decision-aaren:rolling"][1:] == [2 * state + rest] * 3
    # Keys and values of 16 channels in float32, three tokens a step, less the action that is not known yet.
    assert sizes["decision-transformer:carry"] == [2 * 16 * 4 * (3 * t - 1) + rest for t in (10, 100, 150)]
    # 20 steps of an observation, an action and a return-to-go in float32, and a timestep in int64.
    assert sizes["decision-transformer:window"] == [20 * (4 * (11 + 3 + 1) + 8) + rest] * 4


@pytest.mark.parametrize("wrong", ["forgets", "a little off", "no number"])
def test_a_wrong_fast_path_gets_no_figures(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = CompiledStep.step

    def wrong_step(stepper: CompiledStep, *arguments: object) -> tuple[Tensor, object]:
        if wrong == "forgets":
            return step(stepper, *arguments[:4], stepper.initial_state(1))
        action, state = step(stepper, *arguments)
        return action + 2e-5, state

    def no_number(model: DecisionModel, observations: Tensor, actions: Tensor, *_: object) -> tuple[Tensor, None]:
        return actions * torch.nan, None

    if wrong == "no number":
        monkeypatch.setattr(DecisionModel, "forward", no_number)
    else:
        monkeypatch.setattr(CompiledStep, "step", wrong_step)
    assert bench.main([*SMALL, "--json", str(tmp_path / "rollout.json")]) == 6
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "rollout.json").exists()
    assert err.startswith("error: the policy's actions differ from the float64 reference by") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "39"), "--steps: must be at least 40, not 39"),
        (
            ("--threads", "0"),
            "argument --threads: must be at least 1, not 0; see python -m aaren_rl.bench rollout --help",
        ),
        (("--heads", "3"), "width 16 is not a multiple of heads 3"),
        (("--json", "/nowhere/at/all.json"), "--json /nowhere/at/all.json: its folder does not exist; make it first"),
    ],
)
def test_arguments_that_cannot_be(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = bench.main([*SMALL, *arguments])
    except SystemExit as stopped:  # what the parser itself refuses
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("command", [f"{COMMAND} --steps 100000", "python -m aaren_rl.bench data --steps 1000000"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main([command.split()[3], "--help"])
    assert stopped.value.code == 0
    assert command in capsys.readouterr().out


def test_data_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["data", "--steps", "2000", "--json", str(tmp_path / "data.json")]) == 0
    result = json.loads((tmp_path / "data.json").read_text())
    assert set(result) == {"steps", "episodes", "file_bytes", "arrays_bytes", "stages", "machine"}
    assert (result["steps"], result["arrays_bytes"]) == (2000, 2000 * (4 * (11 + 3 + 1) + 2))
    names = ["load_episodes", "StepData", "samplers, mixed and window", "all"]
    assert [stage["name"] for stage in result["stages"]] == names
    for stage in result["stages"]:
        assert stage["seconds"] > 0 and stage["cpu_seconds"] > 0
        # Libraries touched for the first time; nothing like the 250 MiB of the process itself.
        assert 0 < stage["peak_bytes"] < 60 * 2**20
        assert stage["ratio"] == stage["peak_bytes"] / result["arrays_bytes"]
    assert result["stages"][-1]["seconds"] >= max(stage["seconds"] for stage in result["stages"][:-1])
    out, err = capsys.readouterr()
    assert err == "" and "2,000 steps of Hopper's size" in out and "gzip" in out
    assert all(f"\n{name}  " in out for name in names)


def test_data_of_a_file_that_holds_something_else_gets_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = bench_data.write_hdf5

    def write_wrong(path: Path, episodes: bench_data.Episodes, attrs: dict[str, str]) -> None:
        rewards = episodes.rewards.copy()
        rewards[-1] = np.nextafter(rewards[-1], np.float32(9))
        write(path, replace(episodes, rewards=rewards), attrs)

    monkeypatch.setattr(bench_data, "write_hdf5", write_wrong)
    assert bench.main(["data", "--steps", "2000", "--json", str(tmp_path / "data.json")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "data.json").exists()
    assert err == (
        "error: the loaded rewards are not those that were written; no figures are given for a result that is wrong\n"
    )


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "offsets", "terminated"])
def test_a_wrong_array_is_noticed(name: str) -> None:
    written = bench_data.make_episodes(3000)
    bench_data.check(written, StepData(written, 1000.0), written)
    array = getattr(written, name).copy()
    array[1] = ~array[1] if array.dtype == bool else array[1] + 1
    wrong = replace(written, **{name: array})
    with pytest.raises(CommandError, match=f"the loaded {name} are not"):
        bench_data.check(wrong, StepData(wrong, 1000.0), written)


@pytest.mark.parametrize("name", ["observations", "actions", "returns_to_go", "timesteps"])
def test_a_wrong_number_to_train_on_is_noticed(name: str) -> None:
    written = bench_data.make_episodes(3000)
    data = StepData(written, 1000.0)
    array = getattr(data, name).clone()
    array[2999] += 1e-3 if array.is_floating_point() else 1
    setattr(data, name, array)
    with pytest.raises(CommandError, match=f"the {name} to train on differ"):
        bench_data.check(written, data, written)


def test_a_measuring_process_that_dies_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_data.sys, "executable", "/bin/false")
    assert bench.main(["data", "--steps", "2000"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: the measuring process ended with code 1 (it said nothing)")


def test_data_without_room_for_the_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench_data, "write_hdf5", full)
    assert bench.main(["data", "--steps", "2000"]) == 1
    assert "data.hdf5: cannot be written (No space left on device); set TMPDIR" in capsys.readouterr().err
    assert bench.main(["data", "--steps", "99"]) == 2
    assert capsys.readouterr().err == "error: --steps: must be at least 100, not 99\n"


def test_evaluate_is_held_against_the_same_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["evaluate", "--episodes", "3", "--repeats", "1"]) == 0
    assert "the returns of both are the same" in capsys.readouterr().out
    handed_out = bench_evaluate._Replay.act
    monkeypatch.setattr(
        bench_evaluate._Replay, "act", lambda self, *rest: (handed_out(self, *rest)[0] * np.float32(0.9), None)
    )
    assert bench.main(["evaluate", "--episodes", "3", "--repeats", "1"]) == 6
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: the same actions gave other episodes")
