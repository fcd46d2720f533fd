"""One step of a policy as an ONNX graph: state in, action and state out.

Inputs, for B environments: observation (B, O), raw; reward (B,), of the step before; and the state: return_to_go (B,)
in float64, timestep (B,), previous_action (B, A), memory (B, ...). Outputs: action (B, A) and next_return_to_go,
next_timestep, next_memory; the next previous_action is the action, or whatever was executed instead. **An episode
begins with timestep 0**, the asked return as return_to_go and reward 0; the memory and the previous action are ignored
then, so that an environment is reset by these three numbers.

Each step brings a row of features (previous action, return-to-go, observation), which become three tokens in this
order.

Shape suffixes: B environments, S states of an environment, N = B S, T steps of context, F = A + 1 + O features,
C channels, L layers, H heads, D = C / H channels a head, Q positions whose outputs are wanted, M attended ones.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx

from .._version import __version__
from ..agents import Aaren, Encoded, Policy
from ..errors import UsageError
from .onnx_layers import Layers
from .onnx_nodes import Array
from .onnx_weights import TOKENS, action_range, embedding, encoding_maps, exact, layer

EXPORTED = ("aaren", "attention", "aaren-rsa")  # mixers
# Finite, unlike -inf: a position that may attend to nothing, and that nobody reads, then gives a number and not NaN.
MASKED = {"float32": -1e30, "float64": -1e300}
NEVER = -(2**40)  # a time before any episode


def step_graph(policy: Policy, *, precision: str = "float32") -> onnx.ModelProto:
    """The graph of a policy's step, in its rollout mode.

    Args:
        policy: the policy, in float32.
        precision: "float32"; "float64", whose actions do not depend, when rounded to float32, on the order of its sums;
            or "int8": the trunk's weights as 8-bit integers, by an operator of ONNX Runtime's own.

    Raises:
        UsageError: the mixer has no graph, or none in this rollout mode.
    """
    config = policy.model.config
    if config.mixer not in EXPORTED:
        raise UsageError(f"the mixer {config.mixer} has no ONNX graph yet; {', '.join(EXPORTED)} have")
    if config.mixer == "aaren-rsa" and (policy.rollout == "window" or config.rem_max_power):
        raise UsageError(
            "recurrence encoding has an ONNX graph without a mask (rem_max_power), in the rollouts carry and rolling; "
            "choose --rollout carry"
        )
    graph = _Graph(policy, precision)
    if policy.rollout == "window":
        memory, shape = graph.window()
    elif config.mixer in ("aaren", "aaren-rsa"):
        memory, shape = graph.recurrent()
    else:
        raise UsageError(
            f"the rollout {policy.rollout} of the mixer {config.mixer} has no state of constant size to export; "
            "choose --rollout window"
        )
    state: list[tuple[str, str, list[int | str]]] = [
        ("return_to_go", "float64", ["batch"]),
        ("timestep", "int64", ["batch"]),
        ("memory", memory, ["batch", *shape]),
    ]
    actions: list[int | str] = ["batch", config.action_dim]
    model = graph.nodes.model(
        [
            ("observation", "float32", ["batch", config.observation_dim]),
            ("reward", "float64", ["batch"]),
            ("previous_action", "float32", actions),
            *state,
        ],
        [("action", "float32", actions), *((f"next_{name}", dtype, size) for name, dtype, size in state)],
        f"aaren-rl {__version__}",
    )
    onnx.checker.check_model(model, full_check=precision != "int8")
    return model


class _Graph(Layers):
    """The whole step; `window` or `recurrent` once."""

    def recurrent(self) -> tuple[str, list[int | str]]:
        """The rollouts "carry" and "rolling": the scan's states, memory (B, S, L, H, D + 2) with w, u, m.

        With recurrence encoding, the sums of every head stand behind them, F D numbers more.
        """
        nodes, states = self.nodes, 2 if self.policy.rollout == "rolling" else 1
        layers, heads, size = len(self.blocks), self.heads, self.size
        encodings = [block.mixer.encoding for block in self.blocks if isinstance(block.mixer, Encoded)]
        sums = encoding_maps(encodings[0], heads)[0].shape[-1] if encodings else 0
        kept = size + 2 + sums * size  # numbers a head
        x = self._embed(nodes.add("Unsqueeze", self._features(), np.array([1])), 1)
        fresh = nodes.add("Equal", "timestep", np.array(0))
        memory = "memory"
        if states == 2:
            x, fresh, memory = self._stagger(x)
        x = nodes.reshape(x, -1, self.width)
        fresh = nodes.reshape(fresh, -1, 1, 1, 1)
        causal = _causal(TOKENS, TOKENS + 1, "float64")
        begin = causal.copy()
        begin[:, :2] = MASKED["float64"]  # no state yet, and no action before
        mask = nodes.add("Where", fresh, begin, causal)
        last = nodes.add("Where", fresh, begin[-1:], causal[-1:])

        parts = nodes.split(
            nodes.reshape(memory, -1, layers * heads, 1, kept), [size + 1, 1, *([sums * size] if sums else [])], -1
        )
        if sums:
            parts[2] = nodes.reshape(parts[2], -1, layers * heads, sums, size)
            parts[2] = nodes.add("Where", fresh, np.array(0.0), parts[2])
        old = [nodes.split(part, [heads] * layers, 1) if layers > 1 else [part] for part in parts]
        new: list[tuple[str, ...]] = []
        for i, block in enumerate(self.blocks):
            final, mixer = i == layers - 1, block.mixer
            inner = mixer.inner if isinstance(mixer, Encoded) else mixer
            mixed, values, state = self.scan(
                cast(Aaren, inner), x, (old[0][i], old[1][i]), last if final else mask, final
            )
            after = list(state)
            if isinstance(mixer, Encoded):
                mixed, encoded = self.encode(mixer.encoding, mixed, values, old[2][i], fresh, final)
                after.append(nodes.reshape(encoded, -1, heads, 1, sums * size))
            new.append(tuple(after))
            if final:
                x = self.last_token(x, TOKENS)
            x = self.rest(block, x, self.join_heads(self.as_type(mixed, self.dtype, "float64")))
        joined = [nodes.add("Concat", *parts, axis=1) for parts in zip(*new, strict=True)]
        self._finish(
            x if states == 1 else self.last_token(x, states, 0),
            nodes.reshape(nodes.add("Concat", *joined, axis=-1), -1, states, layers, heads, kept),
        )
        return "float64", [states, layers, heads, kept]

    def window(self) -> tuple[str, list[int | str]]:
        """The rollout "window": memory (B, K - 1, F) with the features of the steps before, scaled but not centred."""
        nodes, length = self.nodes, self.policy.context_length
        features = self._features()
        rows = nodes.add("Concat", "memory", nodes.add("Unsqueeze", features, np.array([1])), axis=1)
        x = nodes.reshape(self._embed(rows, length), -1, self.width)
        seen = nodes.add("GreaterOrEqual", self._times(length), np.array(0))
        seen = nodes.reshape(seen, -1, 1, 1, TOKENS * length)
        before = nodes.add("Where", seen, self.constant(0), self.constant(MASKED[self.dtype]))
        mask = nodes.add("Add", before, _causal(TOKENS * length, TOKENS * length, self.dtype))
        for i, block in enumerate(self.blocks):
            final = i == len(self.blocks) - 1
            attend = self.attend_fixed if isinstance(block.mixer, Aaren) else self.attend
            queried = self.last_token(x, TOKENS * length) if final else x
            mixed = attend(block.mixer, x, queried, before if final else mask, TOKENS * length)
            x = self.rest(block, queried, mixed)
        self._finish(x, nodes.part(rows, 1, 1, length))
        return "float32", [length - 1, self._feature_count]

    @property
    def _feature_count(self) -> int:
        config = self.policy.model.config
        return config.action_dim + 1 + config.observation_dim

    def _features(self) -> str:
        """The step's row (B, F); also hands out the next return-to-go and timestep."""
        nodes = self.nodes
        to_go = nodes.add("Sub", "return_to_go", "reward")
        nodes.name(to_go, "next_return_to_go")
        nodes.name(nodes.add("Add", "timestep", np.array(1)), "next_timestep")
        scaled = nodes.cast(self._asked(nodes.add("Div", to_go, np.array(self.policy.return_scale))), "float32")
        return nodes.add("Concat", "previous_action", nodes.reshape(scaled, -1, 1), "observation", axis=1)

    def _asked(self, scaled: str) -> str:
        """What the model sees, (B,): the return-to-go, or the estimate of the best in reach where that is infinite."""
        nodes, best = self.nodes, self.policy.model.best_return
        if best is None:
            return scaled
        mean, std = (x.cpu().numpy() for x in (self.policy.observation_mean, self.policy.observation_std))
        x = nodes.cast(nodes.add("Div", nodes.add("Sub", "observation", mean), std), "float64")
        for module in (best.first, best.second, best.last):
            weight, bias = layer(module)
            x = nodes.add("Add", nodes.add("MatMul", x, weight), bias)  # in float64, as `Policy` has it
            x = x if module is best.last else nodes.add("Relu", x)
        return nodes.add("Where", nodes.add("IsInf", scaled, detect_negative=0), nodes.reshape(x, -1), scaled)

    def _times(self, length: int) -> str:
        """The timestep of every token, (B, T, 3); below 0 where there was none."""
        offsets = np.arange(1 - length, 1)[:, None] + np.array([-1, 0, 0])
        if length > 1:
            offsets[0, 0] = NEVER  # the action before the window's first step is not in it
        return self.nodes.add("Add", self.nodes.reshape("timestep", -1, 1, 1), offsets)

    def _embed(self, rows: str, length: int) -> str:
        """Rows (B, T, F) to normalised tokens (B, T, 3, C)."""
        nodes, model = self.nodes, self.policy.model
        center, weights = embedding(self.policy)
        features = nodes.reshape(
            nodes.add("Sub", self.as_type(rows, self.dtype, "float32"), self.constant(center)), -1, len(center)
        )
        tokens = nodes.reshape(self.gemm(features, weights), -1, length, TOKENS, self.width)
        rows_of_table = nodes.add("Clip", self._times(length), np.array(0), np.array(model.config.max_timestep - 1))
        time = nodes.add("Gather", self.constant(exact(model.embed_timestep.weight)), rows_of_table, axis=0)
        return self.norm(nodes.add("Add", tokens, time), model.norm)

    def _stagger(self, x: str) -> tuple[str, str, str]:
        """The rollout "rolling": every K / 2 steps the younger state takes the older's place, and a fresh one begins.

        Returns:
            The tokens and which states begin, for both states, and the memory to start from. The younger state of the
            first K / 2 steps, which `Policy` leaves out, is a copy of the older and takes its place without effect.
        """
        nodes, half = self.nodes, self.policy.context_length // 2
        turn = nodes.add("Equal", nodes.add("Mod", "timestep", np.array(half)), np.array(0))
        begin = nodes.add("Equal", "timestep", np.array(0))
        fresh = nodes.add("Concat", nodes.reshape(begin, -1, 1), nodes.reshape(turn, -1, 1), axis=1)
        older, younger = nodes.split("memory", [1, 1], 1)
        older = nodes.add("Where", nodes.reshape(turn, -1, 1, 1, 1, 1), younger, older)
        return nodes.add("Concat", x, x, axis=1), fresh, nodes.add("Concat", older, younger, axis=1)

    def _finish(self, x: str, memory: str) -> None:
        """The action from the observation's token (B, C), in the environment's units."""
        nodes = self.nodes
        middle, half = action_range(self.policy)
        action = nodes.add("Tanh", self.gemm(x, layer(self.policy.model.head)))
        scaled = nodes.add("Mul", self.as_type(action, "float32"), half.astype(np.float32))
        nodes.name(nodes.add("Add", scaled, middle.astype(np.float32)), "action")
        nodes.name(memory, "next_memory")


def _causal(queries: int, attended: int, dtype: str) -> Array:
    """Added to scores (Q, M): 0 up to the query's own position, the last query's being the last, else MASKED."""
    allowed = np.tri(queries, attended, attended - queries, dtype=bool)
    return np.where(allowed, 0, MASKED[dtype]).astype(dtype)
