"""Decision Transformers of other code become ours: the same actions, against the other code itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from aaren_rl import load_policy
from aaren_rl.base.errors import CheckpointError
from aaren_rl.envs import load_episodes
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.import_weights.command import main
from aaren_rl.import_weights.decision_transformers import import_model
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
def test_hugging_faces_model_gives_the_same_actions(tmp_path: Path, changes: dict) -> None:
    model, data = hugging_face(tmp_path, **changes), steps()
    imported = import_model(tmp_path)
    expected = theirs(model, data)
    torch.testing.assert_close(imported.model(*data)[0], expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1 and imported.file.name == "model.safetensors"
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    torch.testing.assert_close(import_model(tmp_path).model(*data)[0], expected, rtol=0, atol=1e-5)


OTHERS = {".layers": "", "self_attn": "attention", "out_proj": "proj_net", "linear1": "mlp.0", "linear2": "mlp.2"}
OTHERS |= {"norm": "ln"}


class MinDecisionTransformer(nn.Module):
    """Its blocks are PyTorch's, by other names."""

    def __init__(self, heads: int, sizes: tuple[int, int] = (O, A)) -> None:
        super().__init__()
        observation, action = sizes
        layer = nn.TransformerEncoderLayer(C, heads, 4 * C, 0.1, "gelu", batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.embed_ln, self.embed_timestep = nn.LayerNorm(C), nn.Embedding(50, C)
        self.embed_rtg, self.embed_state, self.embed_action = (
            nn.Linear(1, C),
            nn.Linear(observation, C),
            nn.Linear(action, C),
        )
        self.predict_rtg, self.predict_state = nn.Linear(C, 1), nn.Linear(C, observation)
        self.predict_action = nn.Sequential(nn.Linear(C, action), nn.Tanh())

    def forward(self, observations: Tensor, actions: Tensor, returns_to_go: Tensor, timesteps: Tensor) -> Tensor:
        time = self.embed_timestep(timesteps)
        returns = self.embed_rtg(returns_to_go.unsqueeze(-1))
        tokens = torch.stack([returns, self.embed_state(observations), self.embed_action(actions)], 2)
        x = self.embed_ln((tokens + time.unsqueeze(2)).flatten(1, 2))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.predict_action(self.transformer(x, mask)[:, 1::3])

    def their_state(self) -> dict[str, Tensor]:
        """The parameters by min-decision-transformer's names."""
        state = {f"transformer.{i}.attention.mask": torch.ones(3 * K, 3 * K).tril()[None, None] for i in range(3)}
        for name, tensor in self.state_dict().items():
            for own, other in OTHERS.items():
                name = name.replace(own, other)
            if ".in_proj_" in name:
                for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                    state[name.replace("in_proj_", f"{part}_net.")] = rows.clone()
            else:
                state[name] = tensor
        return state


def min_dt(file: Path, heads: int = 1) -> MinDecisionTransformer:
    model = MinDecisionTransformer(heads)
    scatter(model)
    torch.save(model.their_state(), file)
    return model.eval()


@pytest.mark.parametrize("heads", [1, 2])
@torch.no_grad()
def test_min_decision_transformers_model_gives_the_same_actions(tmp_path: Path, heads: int) -> None:
    model, data = min_dt(tmp_path / "dt.pt", heads), steps()
    imported = import_model(tmp_path / "dt.pt", heads=heads)
    torch.testing.assert_close(imported.model(*data)[0], model(*data), rtol=0, atol=1e-5)
    assert imported.context_length == K and imported.model.config.max_timestep == 50


@torch.no_grad()
def test_an_imported_policy_plays_as_the_original_would(tmp_path: Path) -> None:
    """Normalized, scaled, over the last K steps: the whole of what a rollout with the original does."""
    model, rng = hugging_face(tmp_path / "theirs"), np.random.default_rng(0)
    mean, std = rng.normal(size=O), rng.uniform(0.5, 2, O)
    statistics = tmp_path / "statistics.json"
    statistics.write_text(json.dumps({"mean": mean.tolist(), "std": std.tolist()}))
    arguments = [
        str(tmp_path / "theirs"),
        str(tmp_path / "ours"),
        "--statistics",
        str(statistics),
        "--context-length",
        str(K),
    ]
    assert main([*arguments, "--heads", "2"]) == 2  # config.json says how many
    assert main(arguments) == 0
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


def test_the_command(hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    min_dt(tmp_path / "dt.pt")
    assert main([str(tmp_path / "dt.pt"), str(tmp_path / "ours"), "--source", str(hopper_file)]) == 0
    card, out = read_card(tmp_path / "ours"), capsys.readouterr().out
    assert "min-decision-transformer, 3 layers of width 16, K = 8" in out
    assert (card.rollout, card.rollout_context, card.source, card.target_return) == ("window", 8, "imported", 3600.0)
    mean, _ = load_episodes("hopper-medium", str(hopper_file)).observation_statistics()
    np.testing.assert_allclose(card.observation_mean, mean)
    assert evaluate([str(tmp_path / "ours"), "--episodes", "1"]) == 0
    assert "imported weights" in capsys.readouterr().out
    arguments = [str(tmp_path / "dt.pt"), str(tmp_path / "b"), "--statistics", str(tmp_path / "statistics.json")]
    for count, env, code in ((2, "hopper", 2), (17, "walker2d", 4)):
        (tmp_path / "statistics.json").write_text(json.dumps({"mean": [0] * count, "std": [1] * count}))
        assert main([*arguments, "--env", f"{env}-medium"]) == code
    (tmp_path / "statistics.json").write_text(json.dumps({"mean": [0] * 11, "std": [1] * 11}))
    for more, said in (
        (["--env-id", "Hopper-v5"], "hopper-medium is simulated on Hopper-v4"),
        (["--env-id", "Hopper-v5", "--env", "my hopper"], "name 'my hopper'"),
        (["--max-episode-steps", "9"], "goes with --env-id"),
        (["--source", "local"], "--statistics has the statistics"),
    ):
        capsys.readouterr()
        assert main([*arguments, *more]) == 2 and said in capsys.readouterr().err
    own = ["--env-id", "Hopper-v5", "--env", "mine", "--max-episode-steps", "9", "--target-return", "20"]
    assert main([*arguments, *own]) == 0 and read_card(tmp_path / "b").horizon == 9
    shutil.rmtree(tmp_path / "b")
    for mean_, std in ((11, 10), (10, 11)):
        (tmp_path / "statistics.json").write_text(json.dumps({"mean": [1e300] * mean_, "std": [1] * std}))
        capsys.readouterr()
        assert main(arguments) == 2 and "(needs 11 finite numbers each" in capsys.readouterr().err
    (tmp_path / "statistics.json").write_text(json.dumps({"mean": [0] * 11, "std": [1e-40] * 11}))
    assert main(arguments) == 2  # no policy loads with that, nor with a context of one step
    with pytest.raises(SystemExit):
        main([*arguments, "--context-length", "1"])
    assert not (tmp_path / "b").exists()


@torch.no_grad()
def test_actions_where_the_environment_has_other_bounds(tmp_path: Path) -> None:
    """The original passes its tanh on as it is: Pendulum's bounds are [-2, 2]."""
    scatter(model := MinDecisionTransformer(1, (3, 1)).eval())
    torch.save(model.their_state(), tmp_path / "dt.pt")
    (tmp_path / "statistics.json").write_text(json.dumps({"mean": [0] * 3, "std": [1] * 3}))
    own = ["--env", "pendulum", "--env-id", "Pendulum-v1", "--target-return", "-150", "--context-length", str(K)]
    files = [tmp_path / "dt.pt", tmp_path / "ours", "--statistics", tmp_path / "statistics.json"]
    assert main([*map(str, files), *own]) == 0
    policy, seen = load_policy(tmp_path / "ours"), torch.tensor([[[1.0, 0.0, 0.5], [0.9, 0.1, 0.5]]])
    state, taken = policy.initial_state(1, -150.0), torch.zeros(1, 2, 1)
    for t in range(2):
        expected = model(seen[:, : t + 1], taken[:, : t + 1], torch.full((1, t + 1), -0.15), torch.arange(t + 1)[None])
        action, state = policy.act(seen[:, t].numpy(), np.zeros(1), state)
        np.testing.assert_allclose(action[0], expected[0, -1], atol=1e-5)
        taken[0, t] = expected[0, -1]


class Touch:
    def __reduce__(self):
        return (open, ("owned", "w"))


def test_nothing_is_executed_and_bad_files_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(match: str, path: Path = tmp_path / "dt.pt", content: object = None) -> None:
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        with pytest.raises(CheckpointError, match=match) as caught:
            import_model(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)

    tensors = min_dt(tmp_path / "dt.pt").their_state()
    missing = {name: tensor for name, tensor in tensors.items() if name != "transformer.1.ln2.bias"}
    refused("not readable as tensors alone", content={"a": Touch()})
    assert not Path("owned").exists()
    refused("not readable as tensors alone", content=b"0")  # torch's reader: an IndexError
    refused("not a state dictionary", content=torch.zeros(3))
    refused("not a state dictionary", content={0: torch.zeros(3)})
    refused("weights of neither", content={"a": torch.zeros(3)})
    refused(r"Missing key.*trunk\.blocks\.1\.norm2\.bias", content=missing)
    refused(r"Unexpected key.*\.0\.adapter", content={**tensors, "transformer.0.adapter.weight": torch.zeros(1)})
    for width in (7, 2**20):  # the second does not fit into memory
        refused("multiple of heads|size mismatch", content={**tensors, "embed_ln.weight": torch.zeros(1).expand(width)})
    refused("not readable", tmp_path / "nowhere.pt")
    refused("config.json: not readable", tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"activation_function": "silu"}, "activation_function is 'silu'"),
        ({"n_head": "os.system"}, "n_head: 'os.system' is not int"),
        ({"n_head": 3}, "width 16 is not a multiple of heads 3"),
        ({"n_head": 0}, "n_head is 0; at least 1"),
    ],
)
def test_what_our_model_cannot_express_is_refused(tmp_path: Path, changes: dict, match: str) -> None:
    hugging_face(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**tree, **changes}))
    with pytest.raises(CheckpointError, match=match):
        import_model(tmp_path)
