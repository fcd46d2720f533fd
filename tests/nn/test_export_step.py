"""A step as an ONNX file, without a policy."""

import numpy as np
import pytest
import torch
from torch import nn

from aaren_rl.agents.scan.rows import tensors
from aaren_rl.base.errors import NumericsError
from aaren_rl.nn import RSA, Aaren, AarenRSA, Attention, CrossAttention, RemConfig, TreeConfig, Trunk, export_step

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
WIDTH, HEADS = 8, 2
QUICK = "a model of one's own"  # the others are slow


class Own(nn.Module):
    """A user's model around a trunk."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.embed, self.trunk, self.head = nn.Linear(3, WIDTH), trunk, nn.Linear(WIDTH, 2)
        self.initial_state = trunk.initial_state

    def step(self, x, state):
        y, state = self.trunk.step(self.embed(x), state)
        return self.head(y), state


def cases():
    return {
        QUICK: (Own(Trunk("aaren", WIDTH, 2, HEADS, block="pre-norm")), 3),
        "AarenRSA": (AarenRSA(WIDTH, HEADS), WIDTH),
        "Attention": (Attention(WIDTH, HEADS), WIDTH),
        "CrossAttention": (CrossAttention(WIDTH, 3, HEADS), WIDTH),
    }


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == QUICK else pytest.mark.slow) for n in cases()])
def test_another_runtime_streams_the_file(name, tmp_path):
    torch.manual_seed(0)
    module, channels = cases()[name]
    module.train()
    part = next(module.children()).eval()  # stays as it is
    assert export_step(module, tmp_path / "step.onnx", torch.randn(3, 6, channels)) < 1e-5
    assert module.training and not part.training
    module.eval()
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(5, 9, channels)  # more rows and more tokens than in the example
    state = module.initial_state(5)
    inputs = {given.name: given for given in session.get_inputs() if given.name != "x"}
    assert {given.type for name, given in inputs.items() if "keys" not in name and "values" not in name} <= {
        "tensor(double)"
    }
    parts = None
    for token in x.unbind(1):
        if parts is None:
            leaves = [leaf for leaf in tensors(state) if leaf.numel() or name == "Attention"]
            parts = {key: leaf.numpy() for key, leaf in zip(inputs, leaves, strict=True)}
        with torch.no_grad():
            wanted, state = module.step(token, state)
        y, *after = session.run(None, {"x": token.numpy(), **parts})
        parts = dict(zip(inputs, after, strict=True))
        assert [f"next_{key}" for key in parts] == [out.name for out in session.get_outputs()[1:]]
        np.testing.assert_allclose(y, wanted.numpy(), atol=1e-5)


def test_a_nan_writes_nothing(tmp_path):
    module = Aaren(WIDTH, HEADS)
    next(module.output.parameters()).data[0] = torch.nan
    with pytest.raises(NumericsError):
        export_step(module, tmp_path / "step.onnx", torch.randn(2, 5, WIDTH))
    assert not (tmp_path / "step.onnx").exists()


def test_what_has_no_graph_is_refused(tmp_path):
    x = torch.randn(2, 5, WIDTH)
    with pytest.raises(ValueError, match="as tree attention's, has no ONNX graph"):
        export_step(Trunk("attention", WIDTH, 1, HEADS).with_trees(TreeConfig()), tmp_path / "a.onnx", x)
    masked = AarenRSA(WIDTH, HEADS, rems=RemConfig((2, 0, 0, 0, 0, 0), max_power=3))
    for module in (RSA(WIDTH, HEADS), masked, nn.Sequential(RSA(WIDTH, HEADS))):
        with pytest.raises(ValueError, match="mask powers"):
            export_step(module, tmp_path / "a.onnx", x)
    with pytest.raises(ValueError, match="its folder does not exist"):
        export_step(Aaren(8, 2), tmp_path / "none" / "step.onnx", torch.randn(2, 9, 8))
    with pytest.raises(ValueError, match="B from 2"):
        export_step(AarenRSA(WIDTH, HEADS), tmp_path / "a.onnx", x[:1])
    assert not any(tmp_path.iterdir())
