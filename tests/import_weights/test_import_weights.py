"""Decision Transformers of Hugging Face become ours: the same actions, against the original itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aaren_rl import load_policy
from aaren_rl.base.errors import CheckpointError
from aaren_rl.envs import load_episodes
from aaren_rl.evaluate import main as evaluate
from aaren_rl.import_weights import import_model, main
from aaren_rl.policies.folder import read_card

O, A, C, K = 11, 3, 16, 8  # noqa: E741  observation, action, width, context


def steps() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observations, actions, returns-to-go and timesteps."""
    torch.manual_seed(1)
    return torch.randn(2, K, O), torch.rand(2, K, A) * 2 - 1, torch.randn(2, K), torch.arange(5, 5 + K).expand(2, K)


def scatter(model: nn.Module) -> None:
    """Draws every parameter, biases and layer norms too, so that none can be left out unnoticed."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        scale = name.endswith("weight") and parameter.dim() == 1  # of a layer norm
        parameter.data = torch.randn(parameter.shape) * 0.3 + scale


def hugging_face(folder: Path, **changes) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"state_dim": O, "act_dim": A, "hidden_size": C, "n_layer": 3, "n_head": 2, "max_ep_len": 50}
    model = transformers.DecisionTransformerModel(transformers.DecisionTransformerConfig(**{**sizes, **changes}))
    scatter(model)
    model.save_pretrained(folder)
    return model.eval()


def theirs(model: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    observations, actions, returns_to_go, timesteps = data
    seen = {"states": observations, "actions": actions, "rewards": None, "returns_to_go": returns_to_go.unsqueeze(-1)}
    return model(**seen, timesteps=timesteps, attention_mask=torch.ones(timesteps.shape, dtype=torch.long)).action_preds


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "gelu_new", "n_head": 1},
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ],
)
@torch.no_grad()
def test_hugging_faces_model_gives_the_same_actions(tmp_path, changes):
    model, data = hugging_face(tmp_path, **changes), steps()
    imported = import_model(tmp_path)
    expected = theirs(model, data)
    torch.testing.assert_close(imported(*data)[0], expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1


@torch.no_grad()
def test_an_imported_policy_plays_as_the_original_would(tmp_path):
    """Normalized, scaled, over the last K steps: the whole of what a rollout with the original does."""
    model, rng = hugging_face(tmp_path / "theirs"), np.random.default_rng(0)
    mean, std = rng.normal(size=O), rng.uniform(0.5, 2, O)
    statistics = tmp_path / "statistics.json"
    statistics.write_text(json.dumps({"mean": mean.tolist(), "std": std.tolist()}))
    files = f"{tmp_path}/theirs {tmp_path}/ours --statistics {statistics}"
    assert main(f"{files} --context-length {K}".split()) == 0
    policy = load_policy(tmp_path / "ours")
    state, reward, to_go = policy.initial_state(1, 3600.0), 0.0, 3600.0
    past: list[list] = [[], [], [], []]
    for t in range(2 * K):
        observation = rng.normal(size=O)
        to_go -= reward
        for column, value in zip(past, ((observation - mean) / std, np.zeros(A), to_go / 1000, t), strict=True):
            column.append(value)
        window = [torch.tensor(np.array(column[-K:])[None]) for column in past]
        expected = theirs(model, (*(part.float() for part in window[:3]), window[3]))[0, -1]
        action, state = policy.act(observation[None], np.array([reward]), state)
        np.testing.assert_allclose(action[0], expected, atol=1e-5)
        past[1][-1], reward = action[0], rng.normal()


def test_the_command(hopper_file, tmp_path, capsys):
    hugging_face(tmp_path / "theirs")
    assert main([str(tmp_path / "theirs"), str(tmp_path / "ours"), "--source", str(hopper_file)]) == 0
    card, out = read_card(tmp_path / "ours"), capsys.readouterr().out
    assert "ours: 3 layers of width 16, K = 20" in out
    assert (card.rollout, card.rollout_context, card.source, card.target_return) == ("window", 20, "imported", 3600.0)
    mean, _ = load_episodes("hopper-medium", str(hopper_file)).observation_statistics()
    np.testing.assert_allclose(card.observation_mean, mean)
    assert evaluate([str(tmp_path / "ours"), "--episodes", "1"]) == 0
    assert "imported weights" in capsys.readouterr().out
    file = tmp_path / "statistics.json"
    arguments = [str(tmp_path / "theirs"), str(tmp_path / "b"), "--statistics", str(file)]
    for mean_, std, env, code in (
        ([0] * 4, [1] * 4, "cartpole-medium-replay", 2),
        ([0] * 2, [1] * 2, "hopper-medium", 2),
        ([0] * 17, [1] * 17, "walker2d-medium", 4),
        ([1e300] * 11, [1] * 11, "hopper-medium", 2),
        ([0] * 11, [1e-40] * 11, "hopper-medium", 2),  # no policy loads with that
    ):
        file.write_text(json.dumps({"mean": mean_, "std": std}))
        assert main([*arguments, "--env", env]) == code
    said = capsys.readouterr().err
    assert "has discrete actions" in said and "(needs 11 finite numbers each" in said
    assert main([*arguments, "--source", "local"]) == 2
    assert "--statistics has the statistics" in capsys.readouterr().err and not (tmp_path / "b").exists()


def test_bad_weights_are_one_line(tmp_path):
    hugging_face(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}  # not of the file, which is replaced

    def refused(match: str, content: dict[str, Tensor] | bytes) -> None:
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            save_file(content, file)
        with pytest.raises(CheckpointError, match=match) as caught:
            import_model(tmp_path)
        assert "\n" not in str(caught.value) and str(file) in str(caught.value)

    refused("not readable", b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.")
    refused("embed_ln.bias is missing", {"a": torch.zeros(3)})
    name = "encoder.h.1.ln_2.bias"
    refused(r"Missing key.*trunk\.blocks\.1\.norm2\.bias", {n: tensors[n] for n in tensors if n != name})
    refused(r"Unexpected key.*\.0\.adapter", {**tensors, "encoder.h.0.adapter.weight": torch.zeros(1)})
    refused("multiple of heads|size mismatch", {**tensors, "embed_ln.weight": torch.zeros(7)})
    file.unlink()
    with pytest.raises(CheckpointError, match="not readable"):
        import_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": ...}, "model_type is ''; only decision_transformer"),  # absent
        ({"activation_function": "silu"}, "activation_function is 'silu'"),
        ({"n_head": "os.system"}, "n_head: 'os.system' is not int"),
        ({"n_head": 3}, "width 16 is not a multiple of heads 3"),
        ({"n_head": 0}, "n_head is 0; at least 1"),
    ],
)
def test_what_our_model_cannot_express_is_refused(tmp_path, changes, match):
    hugging_face(tmp_path)
    tree = {**json.loads((tmp_path / "config.json").read_text()), **changes}
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in tree.items() if value != ...}))
    with pytest.raises(CheckpointError, match=match):
        import_model(tmp_path)
