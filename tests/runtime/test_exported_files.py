"""Exported files: those that are no policy are refused, and those that are need only NumPy and ONNX Runtime."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from policies import OBSERVATION, TARGET, make_card, make_model, make_policy, onnx_file_of

import aaren_rl
from aaren_rl.agents import Policy
from aaren_rl.base.errors import CheckpointError, ResourcesError
from aaren_rl.envs import rollout
from aaren_rl.runtime import load_policy

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    model = make_model()
    file = tmp_path_factory.mktemp("exported") / "policy.onnx"
    policy = Policy(model, torch.zeros(OBSERVATION), torch.ones(OBSERVATION), 1000.0, "recurrent", 20)
    file.write_bytes(onnx_file_of(policy, make_card(model)))
    return file


def described(content: bytes, **props: str) -> bytes:
    """A policy's file with other metadata."""
    model = onnx.load_from_string(content)
    onnx.helper.set_model_props(model, {p.key: p.value for p in model.metadata_props} | props)
    return model.SerializeToString()


def with_entry(name: str, value: object) -> Callable[[bytes], bytes]:
    """Another value of an entry of the card; without it, if the value is None."""

    def changed(content: bytes) -> bytes:
        card = {p.key: p.value for p in onnx.load_from_string(content).metadata_props}["policy"]
        entries = {key: old for key, old in json.loads(card).items() if key != name}
        return described(content, policy=json.dumps(entries | ({} if value is None else {name: value})))

    return changed


def elsewhere(content: bytes) -> bytes:
    """Weights that are another file's, of the right size."""
    model = onnx.load_from_string(content)
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    size = len(weight.raw_data)
    Path("private.bin").write_bytes(bytes(size))
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "private.bin", "offset": "0", "length": str(size)}.items():
        weight.external_data.add(key=key, value=value)
    return model.SerializeToString()


def elsewhere_in_disguise(content: bytes) -> bytes:
    """With the length of the word in two bytes, which Protocol Buffers reads as one."""
    spoiled = elsewhere(content)
    entry = b"\x0a\x08location\x12\x0bprivate.bin"
    assert spoiled.count(b"\x17" + entry) == 1  # the entry's own length, 23
    return spoiled.replace(b"\x17" + entry, b"\x18\x0a\x88\x00" + entry[2:])


def huge(content: bytes) -> bytes:
    """A state that no machine holds, of a policy that repeats its last action."""
    model, most = onnx.load_from_string(content), 2**31 - 1
    for value in (*model.graph.input, *model.graph.output):
        if "memory" in value.name:
            del value.type.tensor_type.shape.dim[1:]
            for _ in range(2):
                value.type.tensor_type.shape.dim.add(dim_value=most)
    del model.graph.node[:], model.graph.initializer[:]
    for value in model.graph.output:
        given = "previous_action" if value.name == "action" else value.name.removeprefix("next_")
        model.graph.node.append(onnx.helper.make_node("Identity", [given], [value.name]))
    return model.SerializeToString()


def foreign(content: bytes | None = None) -> bytes:
    """ONNX, but no policy; under the metadata of the one that is given."""
    props = {} if content is None else {p.key: p.value for p in onnx.load_from_string(content).metadata_props}
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    other = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.helper.set_model_props(other, props)
    return other.SerializeToString()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"", "not an ONNX file, or damaged"),
        (elsewhere, "its weights are in another file, which is not read"),
        (elsewhere_in_disguise, "its weights are in another file, which is not read"),
        (huge, "description of the policy in it is damaged: a memory of the sizes"),
        (lambda content: content[: len(content) // 2], "not an ONNX file, or damaged"),
        (lambda content: foreign(), "not a policy that"),
        (lambda content: described(content, aaren_rl_format="9"), "not a policy that"),
        (lambda content: described(content, policy="{"), "description of the policy in it is damaged"),
        (lambda content: described(content, export="[]"), "description of the policy in it is damaged"),
        (foreign, "description of the policy in it is damaged"),
        (with_entry("target_return", None), "description of the policy in it is damaged: 'target_return'"),
        (with_entry("target_return", "best"), "description of the policy in it is damaged"),
        (with_entry("target_return", 10**400), "description of the policy in it is damaged"),
        (with_entry("return_scale", 0), "description of the policy in it is damaged: return_scale 0"),
        (with_entry("return_scale", "x"), "description of the policy in it is damaged"),
        (with_entry("rollout", []), "description of the policy in it is damaged"),
        (with_entry("rollout_context", 2.5), "description of the policy in it is damaged"),
        (with_entry("model", []), "description of the policy in it is damaged"),
    ],
)
def test_files_that_are_no_policy_are_refused(exported, tmp_path, monkeypatch, spoil, message):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "spoiled.onnx"
    file.write_bytes(spoil(exported.read_bytes()))
    for load in (load_policy, aaren_rl.load_policy):
        with pytest.raises(CheckpointError, match="No such file"):
            load(tmp_path / "absent.onnx")
    with pytest.raises(CheckpointError, match=message) as raised:
        load_policy(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


def test_without_onnxruntime_the_extra_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ResourcesError, match=r"pip install 'aaren-rl\[runtime\]'"):
        load_policy(exported)


PLAYING = """
import json, sys
from importlib.abc import MetaPathFinder

class NoTorch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoTorch())
hooks = set(sys.modules)  # site-packages may have hooks of their own, which every interpreter imports
import numpy as np
from aaren_rl import load_policy
policy = load_policy(sys.argv[1])
state = policy.initial_state(3, 3600.0)
for _ in range(3):
    action, state = policy.act(np.zeros((3, 11)), np.zeros(3), state)
used = {m.partition(".")[0] for m in set(sys.modules) - hooks}
from aaren_rl.envs import rollout
out = rollout(policy, "Hopper-v4", episodes=8, target_return=3600.0, seed=7, workers=0)
print(json.dumps({"used": sorted(used), "returns": out.returns.tolist()}))
from aaren_rl.__main__ import main
sys.exit(main(["evaluate", sys.argv[1], "--episodes", "2"]))
"""


def test_episodes_with_numpy_and_onnxruntime_alone_have_pytorchs_returns(exported):
    """And `evaluate` plays them."""
    policy = Policy(make_model(), torch.zeros(OBSERVATION), torch.ones(OBSERVATION), 1000.0, "recurrent", 20)
    wanted = rollout(policy, "Hopper-v4", episodes=8, target_return=3600.0, seed=7, workers=0)
    done = subprocess.run([sys.executable, "-c", PLAYING, exported], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    used = {name for name in found["used"] if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert used == {"aaren_rl", "numpy", "onnxruntime"}
    assert len(set(found["returns"])) == 8
    np.testing.assert_allclose(found["returns"], wanted.returns, rtol=1e-3)
    assert "2 episodes" in done.stdout


def test_copies_and_pickles_act_alike():
    policy, given = make_policy("aaren"), (np.ones((2, OBSERVATION)), np.zeros(2))
    acted, state = policy.act(*given, policy.initial_state(2, TARGET))
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert np.array_equal(acted, other.act(*given, other.initial_state(2, TARGET))[0])
        assert np.array_equal(policy.act(*given, state)[0], other.act(*given, state)[0])
