"""Training beside its command's first use: from Python, from a file, from a policy, and longer than it was meant."""

import json
import shutil
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import small_run
import torch
import yaml
from minari_sets import small as small_set
from safetensors.torch import load_file
from small_run import records, typed

from aaren_rl import load_policy, train_policy
from aaren_rl.base.errors import AarenRLError
from aaren_rl.envs.data.episodes import held_out
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.policies.folder import read_card
from aaren_rl.train.config import main as train

SMALL = {**small_run.SMALL, "env": "hopper-medium", "updates": 4, "eval_every": 2, "dropout": 0.0}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "policy" / "model_raw.safetensors")


@pytest.fixture(scope="module")
def small(hopper_file, tmp_path_factory) -> Path:
    """A finished run of 4 updates; copy what is to be changed."""
    return train_policy(**SMALL, source=str(hopper_file), out=tmp_path_factory.mktemp("small")).folder


def test_a_run_from_python_is_the_commands(hopper_file, small, tmp_path):
    logged: list[tuple[int, dict[str, float]]] = []
    settings = {**SMALL, "source": str(hopper_file)}
    result = train_policy(**settings, out=tmp_path, save_every=1, on_log=lambda *line: logged.append(line))
    path = result.folder
    assert path == tmp_path / "hopper-medium" / "decision-aaren" / "seed0"
    # Also where no evaluation is due; and it changes nothing else.
    assert {file.name for file in (path / "checkpoints").iterdir()} == {"00000003.pt", "00000004.pt"}
    assert [{"update": update, **values} for update, values in logged] == records(path)
    assert {update for update, _ in logged} == {2, 4} and any("eval/mean_return" in values for _, values in logged)
    assert result.metrics.keys() == {tag for _, values in logged for tag in values}
    for tag, curve in result.metrics.items():
        assert curve == [(update, values[tag]) for update, values in logged if tag in values]
    assert result.policy.card == load_policy(path).card and result.policy is result.policy
    own = ["--config", str(path / "config.yaml"), "--threads=1"]  # the run's file is as good
    for given, out in ((typed(settings), tmp_path / "typed"), (own, tmp_path / "own")):
        assert train([*given, f"--out={out}"]) == 0
        other = out / "hopper-medium" / "decision-aaren" / "seed0"
        assert (other / "config.yaml").read_bytes() == (path / "config.yaml").read_bytes()
        assert all(torch.equal(weights(path)[name], tensor) for name, tensor in weights(other).items())


def test_what_a_callback_raises_ends_the_training(hopper_file, tmp_path):
    def enough(update: int, values: dict[str, float]) -> None:
        if "eval/mean_return" in values:
            raise LookupError(f"at {update}")

    settings = {**SMALL, "source": str(hopper_file), "out": tmp_path}
    with pytest.raises(LookupError, match="at 2"):
        train_policy(**settings, on_log=enough)
    run = tmp_path / "hopper-medium" / "decision-aaren" / "seed0"
    assert [read_card(run / name).updates for name in ("policy", "policy_best")] == [2, 2]  # what scored so is kept
    found: list[Path] = []
    thread = Thread(target=lambda: found.append(train_policy(**settings, resume=True).folder))  # no signals there
    thread.start()
    thread.join()
    assert read_card(found[0]).updates == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updtaes": 3}, "updtaes: unknown setting; did you mean updates"),
        ({"env": None, "source": "auto"}, "--env is missing"),
        ({"env_kwargs": {"a": 1j}}, "env_kwargs: Object of type complex is not JSON"),
        ({"env_kwargs": "{"}, "--env-kwargs is not JSON"),
        ({"threads": 0}, "threads: must be at least 1"),
        ({"device": "tpu"}, "--device 'tpu'"),
        ({"config": "nothing.yaml"}, "--config nothing.yaml"),
        ({"start_from": "nothing"}, "no policy here"),
        ({"save_every": 1.5}, "save_every: 1.5 is not int"),
        ({"threads": True}, "threads: True is not int"),
        ({"device": None}, "device: None is not str"),
        ({"agent": ["bc"]}, "agent: .* is not str"),
        ({"env": 5}, "env: 5 is not str"),
        ({"on_log": 3}, "on_log: 3 is not a function"),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused(changes, message, hopper_file, tmp_path):
    with pytest.raises(AarenRLError, match=message):
        train_policy(**{**SMALL, "source": str(hopper_file), "out": tmp_path, **changes})
    assert not list(tmp_path.iterdir())


def test_a_finished_run_goes_on(hopper_file, tmp_path):
    """With a constant rate it is the run that was to have so many updates from the begin on."""
    constant = {**SMALL, "source": str(hopper_file), "lr_schedule": "constant", "eval_every": 4}
    long = train_policy(**{**constant, "updates": 8}, out=tmp_path / "long").folder
    path = train_policy(**constant, out=tmp_path / "short").folder
    with pytest.raises(AarenRLError, match=r"optimizer.updates \(run: 4, requested: 3\)"):
        train_policy(**{**constant, "updates": 3}, out=tmp_path / "short", resume=True)
    train_policy(**{**constant, "updates": 8}, out=tmp_path / "short", resume=True)
    assert yaml.safe_load((path / "config.yaml").read_text())["optimizer"]["updates"] == 8
    # The estimate of returns is fitted before the first update, for as long as the run was to be.
    trained = {name: tensor for name, tensor in weights(long).items() if not name.startswith("max_return_estimate")}
    assert len(trained) > 10 and all(torch.equal(weights(path)[name], tensor) for name, tensor in trained.items())
    assert [record["update"] for record in records(path) if "eval/mean_return" in record] == [4, 8]


def test_a_run_of_a_preset_with_settings_from_a_policy_goes_on(hopper_file, small, tmp_path):
    """The policy's settings override the preset's when it starts, so they do when it resumes."""
    kept = {name: SMALL[name] for name in SMALL.keys() - {"width", "layers", "heads", "dropout"}}
    asked = {**kept, "source": str(hopper_file), "out": tmp_path, "preset": "paper", "start_from": str(small)}
    path = train_policy(**{**asked, "updates": 2}).folder
    assert yaml.safe_load((path / "config.yaml").read_text())["network"]["width"] == 16
    train_policy(**{**asked, "updates": 3}, resume=True)
    assert [record["update"] for record in records(path) if "eval/mean_return" in record] == [2, 3]


def test_settings_from_a_file(hopper_file, small, tmp_path):
    """A part of a run's own, of which the command line changes some."""
    tree = yaml.safe_load((small / "config.yaml").read_text())
    tree |= {"agent": "bc", "seed": 5, "evaluation": {"final_episodes": 1}}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(tree))
    assert train(["--config", str(tmp_path / "part.yaml"), "--seed=6", "--out", str(tmp_path), "--threads=1"]) == 0
    made = yaml.safe_load((tmp_path / "hopper-medium" / "bc" / "seed6" / "config.yaml").read_text())
    assert made["network"]["width"] == 16 and made["evaluation"]["eval_every"] == 500


def test_fine_tuning_starts_from_a_policy(hopper_file, small, tmp_path):
    """Its size, its agent and its scale follow; its normalization stays. Its estimates of returns are fitted again."""
    card_file = shutil.copytree(small, tmp_path / "old") / "policy" / "config.json"
    card = json.loads(card_file.read_text())
    card["observation_mean"] = [mean + 1 for mean in card["observation_mean"]]
    card |= {"return_scale": 500.0, "card_sha256": None}
    card_file.write_text(json.dumps(card))
    more = {name: value for name, value in SMALL.items() if name not in ("width", "layers", "heads", "dropout")}
    more |= {"source": hopper_file, "seed": 9, "updates": 1, "learning_rate": 1e-9, "muon_learning_rate": 1e-9}
    tuned = train_policy(**more, start_from=tmp_path / "old", out=tmp_path).folder
    made, old = read_card(tuned), load_policy(small).model.state_dict()
    assert made.observation_mean == pytest.approx(card["observation_mean"], rel=1e-6) and made.return_scale == 500.0
    assert made.model == card["model"]
    for states in (weights(tuned), load_policy(tuned).model.state_dict()):  # and the moving average
        for name, tensor in states.items():
            moved = float((tensor - old[name]).abs().max())
            assert moved > 1e-4 if "return_estimate" in name else moved < 1e-6
    card_file.write_text(json.dumps(card | {"observation_mean": [0.0] * len(card["observation_mean"])}))
    (card_file.parent / "model.safetensors").unlink()  # a resumed run has its own weights
    train_policy(**{**more, "updates": 2}, start_from=str(tmp_path / "old"), out=tmp_path, resume=True)
    assert read_card(tuned).updates == 2 and read_card(tuned).observation_mean == made.observation_mean
    train_policy(**more, start_from=str(small), out=tmp_path / "hidden", action_dropout=0.25)  # no matter of weights
    with pytest.raises(AarenRLError, match=r"--from .*: the policy's model has another width \(16, here 32\)"):
        train_policy(**more, start_from=str(small), out=tmp_path / "wide", width=32)
    with pytest.raises(AarenRLError, match=r"the policy's model has another rem_gate"):  # the weights have their own
        train_policy(**more, start_from=str(small), out=tmp_path / "gate", rem_gate=3.0)


def test_the_context_does_not_depend_on_the_episodes_that_a_seed_holds_out(tmp_path):
    """Episodes are whole up to a mean of 160 / 1.5 steps. The mean of all is 106.5, that of the trained ones varies."""
    episodes = small_set(lengths=[50, 163] * 20)
    write_hdf5(tmp_path / "data.hdf5", episodes, {})
    means = [np.delete(episodes.lengths, held_out(len(episodes), 0.3, seed)).mean() for seed in range(2)]
    assert min(means) < 160 / 1.5 < max(means)
    for seed in range(2):
        made = train_policy(**SMALL | {"source": tmp_path / "data.hdf5", "seed": seed, "held_out": 0.3}, out=tmp_path)
        assert made.policy.card.context == "episode"
