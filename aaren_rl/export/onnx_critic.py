"""A critic's choice among candidate actions as ONNX nodes, in float64 as `agents.fast.choice.PlainChoice`.

Shape suffixes: B environments, O observation, A action, J networks, H hidden units, K candidates.
"""

import numpy as np

from ..agents import Critic
from ..agents.mixers.forms import exact
from ..agents.model.critic import EPSILON, SCALE
from .onnx_layers import Layers


def chosen(graph: Layers, critic: Critic, own: str) -> str:
    """The actions (B, A), float32, in place of the policy's `own`, where the input `improves` (B,) is true."""

    def best() -> str:
        middle, half = (exact(x).astype(np.float32) for x in graph.policy.scaling.action_range)
        unit = graph.as_type(graph.add("Div", graph.add("Sub", own, middle), half), "float64", "float32")
        candidates = _candidates(graph, critic, graph.reshape(unit, -1, 1, len(middle)))
        number = graph.add("ArgMax", _least_advantages(graph, critic, candidates), axis=1, keepdims=0)
        taken = graph.add("GatherND", candidates, graph.reshape(number, -1, 1), batch_dims=1)
        scaled = graph.add("Mul", graph.as_type(taken, "float32", "float64"), half)
        changes = graph.add("And", "improves", graph.add("Greater", number, np.array(0)))
        return graph.add("Where", graph.reshape(changes, -1, 1), graph.add("Add", scaled, middle), own)

    def as_it_is() -> str:
        return graph.add("Identity", own)

    count = graph.add("ReduceSum", graph.as_type("improves", "int64", "bool"), keepdims=0)
    return graph.either(graph.add("Greater", count, np.array(0)), best, as_it_is, "float32")


def _candidates(graph: Layers, critic: Critic, own: str) -> str:
    """(B, K, A), from the policy's actions (B, 1, A) in the model's units."""
    around = graph.add("Add", own, exact(SCALE * critic.deviation * critic.offsets))
    return graph.add("Concat", own, graph.add("Clip", around, np.array(-1.0), np.array(1.0)), axis=1)


def _least_advantages(graph: Layers, critic: Critic, candidates: str) -> str:
    """(B, K), of candidates (B, K, A) over the first: the smallest over the networks. NaN is minus infinity."""
    count, dim = len(critic.offsets) + 1, critic.offsets.shape[1]
    seen = graph.normalized()
    first, second, last = (exact(weight) for weight in critic.weights)
    biases = [exact(bias) for bias in critic.biases]
    networks, inputs, hidden = first.shape
    flat, wide = first.transpose(1, 0, 2).reshape(inputs, -1), networks * hidden
    of_seen = graph.add("MatMul", graph.as_type(seen, "float64", "float32"), flat[:-dim])
    of_seen = graph.reshape(graph.add("Add", of_seen, biases[0].reshape(-1)), -1, 1, wide)
    x = graph.add("Add", of_seen, graph.add("MatMul", candidates, flat[-dim:]))
    x = _activated(graph, graph.add("Transpose", graph.reshape(x, -1, networks, hidden), perm=[1, 0, 2]), hidden)
    x = _activated(graph, graph.add("Add", graph.add("MatMul", x, second), biases[1]), hidden)
    values = graph.reshape(graph.add("MatMul", x, last), networks, -1, count)
    own = graph.add("Slice", values, *(np.array([i]) for i in (0, 1, 2)))
    gains = graph.add("Sub", values, own)
    gains = graph.add("Where", graph.add("IsNaN", gains), np.array(-np.inf), gains)
    least = graph.add("ReduceMin", gains, np.array([0]), keepdims=0)
    return graph.add("Max", least, np.array([0.0, *[-np.inf] * (count - 1)]))


def _activated(graph: Layers, x: str, hidden: int) -> str:
    """ReLU of the layer norm of the last dimension, H."""
    return graph.add("Relu", graph.add("LayerNormalization", x, np.ones(hidden), np.zeros(hidden), epsilon=EPSILON))
