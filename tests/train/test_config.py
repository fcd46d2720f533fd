"""Configuration: presets, round trip, and what is refused."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from aaren_rl.__main__ import main as aaren_rl
from aaren_rl.agents import DecisionModel
from aaren_rl.errors import UsageError
from aaren_rl.evaluate.command import make_parser as evaluate_parser
from aaren_rl.evaluate.scores import mismatch
from aaren_rl.policies.names import AGENTS
from aaren_rl.train.command import main as train
from aaren_rl.train.config import SETTINGS
from aaren_rl.train.optimizers import schedule
from aaren_rl.train.options import make_job
from aaren_rl.train.options import make_parser as train_parser
from aaren_rl.train.session import batch_bytes, model_bytes
from aaren_rl.train.settings import as_text, build_config, make_config, preset_names, read_config, read_settings


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("agent", AGENTS)
def test_every_preset_loads_and_comes_back(preset: str, agent: str) -> None:
    config = make_config({"agent": agent, "seed": 3}, preset)
    assert build_config(read_settings(as_text(config))) == config
    # Roll out as you trained: windows break a carried state, without any message.
    prepared = (("auto", "carry"), ("mixed", "carry"), ("window", "window"), ("window", "rolling"))
    assert (config.data.context, config.evaluation.rollout) in prepared
    if config.evaluation.rollout == "rolling":
        assert config.evaluation.rollout_context == config.data.context_length


@pytest.mark.defect(2)
@pytest.mark.parametrize(
    ("given", "acts_with"),
    [
        ("--agent decision-transformer", 20),
        ("--agent decision-transformer --context-length 50", 50),
        ("--agent decision-transformer --context-length 10", 10),
        ("--agent decision-transformer --context-length 50 --rollout-context 30", 30),
        ("--agent decision-transformer-tree", 50),
        ("--agent decision-aaren --context window --context-length 12 --rollout rolling", 12),
        ("--agent decision-aaren --context-length 12", 40),  # whole episodes: there are no windows to follow
    ],
)
def test_a_policy_acts_on_as_many_steps_as_it_was_trained_on(given: str, acts_with: int) -> None:
    job = make_job(train_parser().parse_args(["--env", "hopper-medium", *given.split()]))
    assert job.make_config().evaluation.rollout_context == acts_with
    assert "rollout_context" not in job.given or "--rollout-context" in given


@pytest.mark.defect(2)
def test_another_k_than_trained_on_is_noted() -> None:
    assert mismatch("window", 20, "window", 20) is None
    note = mismatch("window", 50, "rolling", 20)
    assert note is not None and "windows of 50 steps, and acts with K = 20" in note


def test_the_papers_preset_is_the_papers() -> None:
    config = make_config({}, "paper")
    assert (config.network.width, config.network.layers, config.network.heads) == (512, 4, 4)
    assert config.optimizer.updates == 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: {}}", "unknown section model"),
        ("{network: {widht: 3}}", "network: unknown key widht"),
        ("{network: {updates: 3}}", "network: unknown key updates"),
        ("{network: {width: '3'}}", "network.width: '3' is not int"),
        ("{network: {width: true}}", "network.width: True is not int"),
        ("{network: [1]}", "needs settings in sections"),
        ("{optimizer: {updates: 0}}", "updates: must be at least 1, not 0"),
        ("{optimizer: {average_decay: 1.0}}", "average_decay"),
        ("{data: {context_length: 1}}", "context_length: must be at least 2"),
        ("{evaluation: {rollout: cary}}", "rollout: 'cary' is not one of carry, rolling, window"),
        pytest.param("{data: {max_episode_steps: 0}}", "max_episode_steps: must be at", marks=pytest.mark.defect(16)),
        pytest.param("{evaluation: {eval_seed: -1}}", "eval_seed: must be at least 0", marks=pytest.mark.defect(16)),
        pytest.param("{optimizer: {learning_rate: .nan}}", "rate: must be finite, not", marks=pytest.mark.defect(16)),
        pytest.param(f"{{seed: {2**70}}}", "seed: must be at most", marks=pytest.mark.defect(16)),
    ],
)
def test_what_does_not_fit_is_named(text: str, message: str) -> None:
    """In a file; a sweep's grid goes the same way."""
    with pytest.raises(UsageError, match=message):
        read_settings(text)


LARGE = str(2**70)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param("--target-return inf", "--target-return: must be finite, not inf", marks=pytest.mark.defect(11)),
        pytest.param("--target-return 1e300", "--target-return: must be at most", marks=pytest.mark.defect(4)),
        pytest.param("--eval-seed -1", "--eval-seed: must be at least 0, not -1", marks=pytest.mark.defect(12)),
        pytest.param("--threads 10000", "--threads: must be at most", marks=pytest.mark.defect(13)),
        pytest.param("--return-scale 1e-40", "--return-scale: must be at least 1e-09", marks=pytest.mark.defect(15)),
        pytest.param("--seed " + LARGE, "--seed: must be at most", marks=pytest.mark.defect(16)),
        pytest.param("--width " + LARGE, "--width: must be at most", marks=pytest.mark.defect(16)),
        pytest.param("--max-episode-steps 0", "--max-episode-steps: must be at least 1", marks=pytest.mark.defect(16)),
        pytest.param("--out runs\udcff", r"'runs\udcff' is not UTF-8; use another name", marks=pytest.mark.defect(16)),
        pytest.param("--learning-rate nan", "--learning-rate: must be finite, not nan", marks=pytest.mark.defect(23)),
        pytest.param("--learning-rate -1", "--learning-rate: must be above 0, not -1", marks=pytest.mark.defect(23)),
        pytest.param("--clip-norm 0", "--clip-norm: must be above 0, not 0", marks=pytest.mark.defect(23)),
        pytest.param("--width 1.5", "--width: must be an integer, not '1.5'", marks=pytest.mark.defect(23)),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_option(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        train(["--env", "hopper-medium", *given.split(" ")])
    assert left.value.code == 2 and message in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param("evaluate RUN --target-return 1 nan", "must be finite", marks=pytest.mark.defect(11)),
        pytest.param("evaluate RUN --target-return 1e300", "must be at most", marks=pytest.mark.defect(11)),
        pytest.param("compare --env x --target-returns nan", "must be finite", marks=pytest.mark.defect(11)),
        pytest.param("hub RUN OUT --target-return inf", "must be finite", marks=pytest.mark.defect(11)),
        pytest.param("evaluate RUN --seed -1", "--seed: must be at least 0", marks=pytest.mark.defect(12)),
        pytest.param("compare --env x --eval-seed -1", "must be at least 0", marks=pytest.mark.defect(12)),
        pytest.param("export RUN --out x.onnx --seed -1", "must be at least 0", marks=pytest.mark.defect(12)),
        pytest.param("evaluate RUN --rollout-context 1", "must be at least 2", marks=pytest.mark.defect(12)),
        pytest.param("collect --env x --threads 10000", "must be at most", marks=pytest.mark.defect(13)),
        pytest.param("collect --env x --seed " + LARGE, "must be at most", marks=pytest.mark.defect(16)),
        pytest.param("collect --env x --learning-rate inf", "must be finite", marks=pytest.mark.defect(23)),
    ],
)
def test_so_it_is_in_every_command(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        aaren_rl(command.split())
    assert left.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.defect(14)
@pytest.mark.parametrize("given", ["--width 4000000000", "--layers 1000000000", "--steps-per-update 1000000000000"])
def test_what_does_not_fit_into_memory_is_refused_before_it_is_made(
    given: str, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert train(["--env", "hopper-medium", "--source", str(hopper_file), "--out", str(tmp_path), *given.split()]) == 7
    error = capsys.readouterr().err
    assert "out of memory (" in error and "GB are free)" in error and "--width" in error
    assert list(tmp_path.iterdir()) == [] and time.monotonic() - began < 10


@pytest.mark.defect(14)
def test_what_fits_is_let_through() -> None:
    """The paper's preset, the largest that ships, takes less than a GB by this estimate; the model alone more."""
    config = make_config({}, "paper")
    model = DecisionModel(config.model(17, 6, 1000))
    assert model_bytes(config) < 16 * sum(parameter.numel() for parameter in model.parameters()) < 1e9
    assert batch_bytes(config) < 1e9


@pytest.mark.faults(35)
def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    file, mark = tmp_path / "config.yaml", tmp_path / "executed"
    file.write_text(f"!!python/object/apply:os.system ['touch {mark}']")
    with pytest.raises(UsageError, match=r"config\.yaml"):
        read_config(file)
    assert not mark.exists()


def test_every_setting_has_an_option() -> None:
    listed = train_parser(make_config({})).format_help()
    assert len(SETTINGS) > 40 and all(f"--{name.replace('_', '-')}" in listed for name in SETTINGS)


@pytest.mark.defect(28)
@pytest.mark.parametrize(
    ("given", "k", "optimizer"),
    [([], "40", "muon"), (["--agent", "decision-transformer"], "20", "muon"), (["--preset", "paper"], "40", "adamw")],
)
def test_help_all_shows_the_values_of_the_agent_and_the_preset(
    given: list[str], k: str, optimizer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert train([*given, "--help-all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for option, value in (("--rollout-context", k), ("--optimizer", optimizer)):
        assert next(line for line in lines if line.strip().startswith(f"{option} ")).endswith(f"[{value}]")


def test_help_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for parser in (train_parser(), evaluate_parser()):
        assert len(parser.format_help().splitlines()) <= 40


def test_the_learning_rate_warms_up_and_ends_at_zero() -> None:
    config = build_config({"updates": 100, "warmup_updates": 10, "schedule": "cosine"}).optimizer
    rates = [config.learning_rate * schedule(update, config) for update in range(100)]
    assert rates[0] == pytest.approx(config.learning_rate / 10)
    assert max(rates) <= config.learning_rate and rates[-1] < 1e-3 * config.learning_rate
    flat = dataclasses.replace(config, schedule="constant")
    assert schedule(99, flat) == 1
