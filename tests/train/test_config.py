"""Configuration: presets, round trip, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from aaren_rl.errors import UsageError
from aaren_rl.evaluate.command import make_parser as evaluate_parser
from aaren_rl.evaluate.scores import mismatch
from aaren_rl.policies.names import AGENTS
from aaren_rl.train.config import SECTIONS
from aaren_rl.train.optimizers import schedule
from aaren_rl.train.plan import make_parser as train_parser
from aaren_rl.train.plan import make_plan
from aaren_rl.train.settings import build_config, from_dict, load_preset, preset_names, read_config, to_dict


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("agent", AGENTS)
def test_every_preset_loads_and_comes_back(preset: str, agent: str) -> None:
    config = build_config(agent, 3, load_preset(preset, agent))
    assert from_dict(yaml.safe_load(yaml.safe_dump(to_dict(config)))) == config
    # Roll out as you trained: windows break a carried state, without any message.
    prepared = (("mixed", "carry"), ("episode", "carry"), ("window", "window"), ("window", "rolling"))
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
    plan = make_plan(train_parser(show_all=False).parse_args(["--env", "hopper-medium", *given.split()]))
    assert plan.config.evaluation.rollout_context == acts_with
    assert "rollout_context" not in plan.given.get("evaluation", {}) or "--rollout-context" in given


@pytest.mark.defect(2)
def test_another_k_than_trained_on_is_noted() -> None:
    assert mismatch("window", 20, "window", 20) is None
    note = mismatch("window", 50, "rolling", 20)
    assert note is not None and "windows of 50 steps, and acts with K = 20" in note


def test_the_papers_preset_is_the_papers() -> None:
    config = build_config("decision-aaren", 0, load_preset("paper", "decision-aaren"))
    assert (config.network.width, config.network.layers, config.network.heads) == (512, 4, 4)
    assert config.optimizer.updates == 100_000


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {}}, "unknown section model"),
        ({"network": {"widht": 3}}, "network: unknown key widht"),
        ({"network": {"width": "3"}}, "network.width: '3' is not int"),
        ({"network": {"width": True}}, "network.width: True is not int"),
        ({"network": [1]}, "network: must be a mapping"),
        ({"optimizer": {"updates": 0}}, "updates: must be at least 1, not 0"),
        ({"optimizer": {"average_decay": 1.0}}, "average_decay"),
        ({"data": {"context_length": 1}}, "context_length: must be at least 2"),
        ({"evaluation": {"rollout": "cary"}}, "rollout: 'cary' is not one of carry, rolling, window"),
    ],
)
def test_what_does_not_fit_is_named(sections: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_config("decision-aaren", 0, sections)


@pytest.mark.faults(35)
def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    file, mark = tmp_path / "config.yaml", tmp_path / "executed"
    file.write_text(f"!!python/object/apply:os.system ['touch {mark}']")
    with pytest.raises(UsageError, match=r"config\.yaml"):
        read_config(file)
    assert not mark.exists()


def test_every_setting_has_an_option_and_a_help() -> None:
    listed = train_parser(show_all=True).format_help()
    for cls in SECTIONS.values():
        for field in dataclasses.fields(cls):
            assert f"--{field.name.replace('_', '-')}" in listed and field.metadata["help"]


def test_help_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for parser in (train_parser(show_all=False), evaluate_parser()):
        assert len(parser.format_help().splitlines()) <= 40


def test_the_learning_rate_warms_up_and_ends_at_zero() -> None:
    cosine = {"updates": 100, "warmup_updates": 10, "schedule": "cosine"}
    config = build_config("decision-aaren", 0, {"optimizer": cosine}).optimizer
    rates = [config.learning_rate * schedule(update, config) for update in range(100)]
    assert rates[0] == pytest.approx(config.learning_rate / 10)
    assert max(rates) <= config.learning_rate and rates[-1] < 1e-3 * config.learning_rate
    flat = dataclasses.replace(config, schedule="constant")
    assert schedule(99, flat) == 1
