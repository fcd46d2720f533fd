"""A mixer from outside the package, through every command; and what a subclass of one of the package's declares."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from policies import OBSERVATION, make_card, make_policy, onnx_policy_of
from small_run import ROOT, quick, train_before
from table1_cells import read_results
from torch import Tensor

from aaren_rl import load_policy
from aaren_rl.agents import MIXERS, Aaren
from aaren_rl.compare import main as compare
from aaren_rl.evaluate import main as evaluate
from aaren_rl.export.export import TOLERANCE, check
from aaren_rl.export.export import main as export
from aaren_rl.policies.table import AGENTS

SMALL = "--width 16 --layers 1 --heads 2 --warmup-updates 1 --steps-per-update 100 --eval-every 4 --eval-episodes 1"


@pytest.fixture
def registered(monkeypatch) -> None:
    """What the module adds when it is imported, for this test alone; child processes find it, too."""
    import own_mixer

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    for table, name, added in ((MIXERS, "fading", own_mixer.Fading), (AGENTS, own_mixer.AGENT.name, own_mixer.AGENT)):
        table.pop(name, None)
        monkeypatch.setitem(table, name, added)


def test_its_policy_acts_and_is_exported(registered):
    policy = make_policy("fading", layers=1)
    card = make_card(policy.model)
    assert check(policy, onnx_policy_of(policy, card), card, 20, TOLERANCE) < 1e-5


@pytest.mark.slow
def test_it_trains_rolls_out_and_is_exported(registered, hopper_file, tmp_path, capsys):
    run = quick(tmp_path, hopper_file, "--register own_mixer", agent="decision-fading")
    policy = load_policy(run)
    observations = np.random.default_rng(0).normal(size=(40, 2, OBSERVATION)).astype(np.float32)
    state = policy.initial_state(2, 300.0)
    for observation in observations:
        action, state = policy.act(observation, np.zeros(2), state)
    assert np.isfinite(action).all() and policy.supports_reset
    assert evaluate([str(run), "--episodes", "1", "--register", "own_mixer"]) == 0
    capsys.readouterr()
    assert export([str(run), "--register", "own_mixer", "--out", str(tmp_path / "policy.onnx")]) == 0
    assert "checked against PyTorch" in capsys.readouterr().out


@pytest.mark.slow
def test_it_compares(registered, hopper_file, tmp_path, capsys):
    asked = "--env hopper-medium --seeds 1 --updates 4 --episodes 2 --agents decision-aaren decision-fading"
    asked += f" --register own_mixer --source {hopper_file} --out {tmp_path} -- {SMALL} --final-episodes 1"
    train_before(asked.split(), left=1)
    assert compare(asked.split()) == 0
    assert "Decision-Fading" in capsys.readouterr().out
    cells, _ = read_results(tmp_path / "results.json")
    assert [cell.agent for cell in cells] == ["decision-aaren", "decision-fading"]


def test_the_page_shows_this_module():
    page = (ROOT / "docs" / "howto" / "extend.md").read_text(encoding="utf-8")
    assert (Path(__file__).parent / "own_mixer.py").read_text(encoding="utf-8") in page


def test_an_agent_that_nobody_registered_is_refused(hopper_file, tmp_path, capsys):
    from aaren_rl.train.config import main as train

    assert train(f"--env hopper-medium --source {hopper_file} --out {tmp_path} --agent decision-fading".split()) == 2
    assert "agent: 'decision-fading' is not one of decision-aaren, " in capsys.readouterr().err


class Doubled(Aaren):
    """Computes something else than Aaren, and says nothing of it."""

    def run(self, x: Tensor, state, starts, keep):
        y, state = super().run(x, state, starts, keep)
        return 2 * y, state

    def run_one(self, x: Tensor, state):
        y, state = super().run_one(x, state)
        return 2 * y, state


def test_a_subclass_acts_as_it_trains(monkeypatch):
    """What Aaren declares of itself holds for Aaren alone: the compiled step leaves out the doubling."""
    assert not any(getattr(Doubled, name) for name in Aaren.DECLARED)
    monkeypatch.setitem(MIXERS, "doubled", Doubled)
    given, played = (np.ones((1, OBSERVATION)), np.zeros(1)), []
    for name in ("doubled", "aaren"):
        policy = make_policy(name, forget_gate=True)
        policies = policy, dataclasses.replace(policy, compiled=False)
        played += [own.act(*given, own.initial_state(1, 300.0))[0] for own in policies]
    np.testing.assert_array_equal(played[0], played[1])
    assert np.abs(played[1] - played[3]).max() > 1e-3
