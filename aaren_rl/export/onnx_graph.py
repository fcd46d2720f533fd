"""One step of a policy as an ONNX graph: state in, action and new state out.

Inputs, for B environments: observation (B, O), raw; reward (B,), of the step before; and the state: return_to_go (B,)
in float64, timestep (B,), previous_action (B, A), memory (B, ...). Outputs: action (B, A) and next_return_to_go,
next_timestep, next_memory; the next previous_action is the action, or the executed one if it differs. Discrete actions
are int64 (B,), and there is an output logits (B, A), whose argmax is the action. Observations are float64 if a column
lies far from zero. **An episode begins with timestep 0**, the target return as return_to_go and reward 0. The memory
and the previous action are then ignored, so these three numbers reset an environment.

Each step has a row of features (previous action, return-to-go, observation), which become one token, or three in this
order.

Shape suffixes: B environments, S states of an environment, N = B S, T steps of context, J tokens per step,
F = A + 1 + O features, C channels, L layers, H heads.
"""

import numpy as np
import onnx

from .._version import __version__
from ..agents import Policy
from ..agents.mixers.forms import exact, layer
from ..base.errors import UsageError
from .onnx_layers import Layers, Sizes
from .onnx_weights import embedding

# Finite, unlike -inf: an unused position that attends to nothing then gives a number instead of NaN.
MASKED = {"float32": -1e30, "float64": -1e300}


def step_graph(policy: Policy, *, precision: str = "float32") -> onnx.ModelProto:
    """The graph of one step of a policy, in its rollout mode.

    Args:
        policy: the policy, in float32.
        precision: "float32"; "float64", whose actions in float32 do not depend on the order of sums; or "int8":
            the trunk weights as 8-bit integers, with an operator of ONNX Runtime.

    Raises:
        UsageError: the mixer has no ONNX graph, or none in this rollout mode.
    """
    config, mixer = policy.model.config, policy.model.trunk.mixer
    if not mixer.exported:
        masked = " with a mask (rem_max_power)" if config.rem_max_power else ""
        raise UsageError(f"the mixer {config.mixer}{masked} has no ONNX graph; use the policy itself")
    graph = _Graph(policy, precision)
    if reason := graph.mixers[0].refusal(policy.rollout, config.tokens_per_step):
        raise UsageError(f"the mixer {config.mixer} {reason}")
    memory, shape = graph.window() if policy.rollout == "window" else graph.recurrent()
    wide: tuple[str, list[int]] = ("float32", [config.action_dim])
    action: tuple[str, list[int]] = ("int64", []) if config.discrete else wide
    state: Sizes = {"return_to_go": ("float64", []), "timestep": ("int64", []), "memory": (memory, shape)}
    logits: Sizes = {"logits": wide} if config.discrete else {}
    model = graph.model(
        {
            "observation": ("float32" if policy.scaling.origin is None else "float64", [config.observation_dim]),
            "reward": ("float64", []),
            "previous_action": action,
            **state,
        },
        {"action": action, **logits, **{f"next_{name}": part for name, part in state.items()}},
        f"aaren-rl {__version__}",
    )
    onnx.checker.check_model(model, full_check=precision != "int8")
    return model


class _Graph(Layers):  # the whole step, for both rollout modes
    def recurrent(self) -> tuple[str, list[int]]:
        """Memory (B, S, L, H, P): for every head the parts of the mixer's state (`MixerGraph.parts`), P numbers."""
        states, tokens = 2 if self.policy.rollout == "staggered" else 1, self.tokens
        layers, heads, kinds = len(self.blocks), self.mixers[0].heads, self.mixers[0].parts
        kept = sum(numbers for numbers, _ in kinds)
        rows, times, memory = self._features(), self.reshape("timestep", -1, 1), "memory"
        first = self.add("Equal", times, np.array(0))
        if states == 2:
            first, memory = self._stagger(first)
            rows = self.reshape(self.add("Concat", rows, rows, axis=1), -1, self.features)
            times = self.reshape(self.add("Concat", times, times, axis=1), -1, 1)
        x = self._embed(rows, first, times)
        fresh = self.reshape(first, -1, 1, 1, 1)
        ignored = self.add("And", fresh, np.eye(3, 1, dtype=bool).reshape(3, 1, 1)) if tokens == 3 else None

        parts = self.split(self.reshape(memory, -1, layers, heads, kept), [numbers for numbers, _ in kinds], -1)
        for k, (_, begin) in enumerate(kinds):
            parts[k] = self.add("Where", fresh, np.array(begin), parts[k])
        old = [self.split(part, [1] * layers, 1) if layers > 1 else [part] for part in parts]
        new: list[tuple[str, ...]] = []
        for i, mixer in enumerate(self.mixers):
            outputs, after = mixer.step(self, self.read(i, x), [part[i] for part in old], ignored)
            new.append(tuple(after))
            if i == layers - 1:
                x, outputs = self.last_token(x, tokens), outputs[-1:]
            mixed = outputs[0] if len(outputs) == 1 else self.add("Concat", *outputs, axis=1)
            x = self.rest(i, x, self.reshape(self.as_type(mixed, self.dtype, "float64"), -1, self.width))
        joined = [self.add("Concat", *parts, axis=1) for parts in zip(*new, strict=True)]
        self.reshape(self.add("Concat", *joined, axis=-1), -1, states, layers, heads, kept, out="next_memory")
        self._act(self.last_token(x, states, 0))
        return "float64", [states, layers, heads, kept]

    def window(self) -> tuple[str, list[int]]:
        """The rollout "window": memory (B, K - 1, F) with the features of previous steps, scaled but not centered."""
        length = self.policy.context_length
        count = self.tokens * length
        rows = self.add("Concat", "memory", self.add("Unsqueeze", self._features(), np.array([1])), axis=1)
        times = self.add("Add", self.reshape("timestep", -1, 1), np.arange(1 - length, 1))
        first = self.add("Or", self.add("Equal", times, np.array(0)), np.arange(length) == 0)
        seen = self.reshape(self.add("GreaterOrEqual", times, np.array(0)), -1, length, 1)
        # Rows of an earlier episode would overflow to NaN, which no weight of 0 takes out.
        rows = self.add("Where", seen, rows, np.array(0, np.float32))
        x = self._embed(self.reshape(rows, -1, self.features), first, self.reshape(times, -1, 1))
        if self.tokens == 3:
            # Without the action before the first step of the window or episode.
            action = self.add("And", self.reshape(first, -1, length, 1), np.array([True, False, False]))
            seen = self.add("And", seen, self.add("Not", action))
        seen = self.reshape(seen, -1, 1, 1, count)
        before = self.add("Where", seen, self.constant(0), self.constant(MASKED[self.dtype]))
        causal = np.where(np.tri(count, dtype=bool), 0, MASKED[self.dtype])
        mask = self.add("Add", before, self.constant(causal))
        for i, mixer in enumerate(self.mixers):
            final, seen = i == len(self.blocks) - 1, self.read(i, x)
            queried = self.last_token(seen, count) if final else seen
            mixed = mixer.attend(self, seen, queried, before if final else mask, count)
            x = self.rest(i, self.last_token(x, count) if final else x, mixed)
        self.add("Slice", rows, *(np.array([i]) for i in (1, length, 1)), out="next_memory")
        self._act(x)
        return "float32", [length - 1, self.features]

    def _features(self) -> str:
        # The row (B, F) of this step; also outputs the next return-to-go and timestep.
        to_go = self.add("Sub", "return_to_go", "reward", out="next_return_to_go")
        self.add("Add", "timestep", np.array(1), out="next_timestep")
        to_go = self._asked(to_go)
        if (limits := self.policy.return_range) is not None:  # as `ReturnRange.clamp`
            interval = self.add("Div", "timestep", np.array(limits.every))
            row = self.add("Min", interval, np.array(len(limits.bounds) - 1))
            low, high = (self.add("Gather", bounds, row, axis=0) for bounds in np.asarray(limits.bounds, np.float64).T)
            to_go = self.add("Min", self.add("Max", to_go, low), high)
        scaled = self.add("Div", to_go, np.array(self.policy.return_scale))
        scaled = self.reshape(self.as_type(scaled, "float32", "float64"), -1, 1)
        return self.add("Concat", self._previous(), scaled, self.observed(), axis=1)

    def _previous(self) -> str:
        # The previous action as the input of the embedding, (B, A).
        if not self.policy.discrete:
            return "previous_action"
        index = self.add("Sub", "previous_action", np.array(self.policy.action_start))
        return self.add("OneHot", index, np.array(self.policy.model.config.action_dim), np.array([0, 1], np.float32))

    def _asked(self, to_go: str) -> str:
        # The target (B,): the return-to-go, or the estimated maximum achievable return if it is infinite.
        best = self.policy.model.max_return_estimate
        if best is None:
            return to_go

        def best_in_reach() -> str:
            x = self.as_type(self.normalized(), "float64", "float32")
            for module in (best.first, best.second, best.last):
                weight, bias = layer(module)
                x = self.add("Add", self.add("MatMul", x, weight), bias)  # in float64, as in `Policy`
                x = x if module is best.last else self.add("Relu", x)
            estimate = self.add("Mul", self.reshape(x, -1), np.array(self.policy.return_scale))
            return self.add("Where", self.add("IsInf", to_go, detect_negative=0), estimate, to_go)

        def as_it_is() -> str:
            return self.add("Identity", to_go)

        largest = self.add("ReduceMax", to_go, keepdims=0)
        return self.either(self.add("IsInf", largest, detect_negative=0), best_in_reach, as_it_is, "float64")

    def _embed(self, rows: str, first: str, times: str) -> str:
        # Rows (R, F) of the time steps (R, 1) to normalized tokens (R J, C). With one token per step, the action has no
        # effect if `first`, bool of R elements. With three, the action token is ignored later.
        model = self.policy.model
        center, weights = embedding(self.policy)
        if self.tokens == 1:
            action = np.arange(len(center)) < model.config.action_dim
            ignored = self.add("And", self.reshape(first, -1, 1), action)
            rows = self.add("Where", ignored, center.astype(np.float32), rows)
        features = self.add("Sub", self.as_type(rows, self.dtype, "float32"), self.constant(center))
        x = self.gemm(features, weights)
        if self.tokens == 3:
            x = self.reshape(x, -1, self.width)
        if model.embed_timestep is not None:
            each = self.add("Add", times, np.array([-1, 0, 0])) if self.tokens == 3 else times  # (R, J)
            each = self.add("Clip", each, np.array(0), np.array(model.config.max_timestep - 1))
            time = self.add("Gather", self.constant(exact(model.embed_timestep.weight)), each, axis=0)
            x = self.add("Add", x, self.reshape(time, -1, self.width))
        return self.norm(x, model.norm, self.carried(0))

    def _stagger(self, begin: str) -> tuple[str, str]:
        # Which states start, (B, 2), and the memory to start from: every K / 2 steps the younger replaces the older.
        # In the first K / 2 steps the younger is a copy of the older (`Policy` omits it), so this has no effect.
        half = self.policy.context_length // 2
        turn = self.add("Equal", self.add("Mod", "timestep", np.array(half)), np.array(0))
        fresh = self.add("Concat", begin, self.reshape(turn, -1, 1), axis=1)
        older, younger = self.split("memory", [1, 1], 1)
        older = self.add("Where", self.reshape(turn, -1, 1, 1, 1, 1), younger, older)
        return fresh, self.add("Concat", older, younger, axis=1)

    def _act(self, x: str) -> None:
        if self.policy.discrete:
            logits = self.as_type(self.gemm(x, layer(self.policy.model.head)), "float32")
            self.add("Identity", logits, out="logits")
            likely = self.add("ArgMax", logits, axis=1, keepdims=0)
            self.add("Add", likely, np.array(self.policy.action_start), out="action")
            return
        middle, half = (exact(x).astype(np.float32) for x in self.policy.scaling.action_range)
        action = self.add("Tanh", self.gemm(x, layer(self.policy.model.head)))
        scaled = self.add("Mul", self.as_type(action, "float32"), half)
        self.add("Add", scaled, middle, out="action")
