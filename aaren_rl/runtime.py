"""Run an exported policy with numpy and ONNX Runtime alone, without PyTorch.

    from aaren_rl.runtime import load_policy

    policy = load_policy("policy.onnx")
    state = policy.initial_state(n, target_return)
    action, state = policy.act(observation, reward, state)

`aaren-rl export RUN --out policy.onnx` makes the file. Names and contracts are those of
`aaren_rl.agents.Policy`, and `aaren_rl.envs.rollout` takes one as it takes the other.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

import json
import math
import operator
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .agents.policy.base import BasePolicy, PolicyState, array, check_temperature, integer
from .base.errors import CheckpointError, ResourcesError, one_line
from .base.fields import AUTO, THREADS
from .envs.tasks.spaces import as_flat, checked_layout

if TYPE_CHECKING:
    import onnxruntime

FORMAT = "2"
LARGEST_MEMORY = 2**28  # numbers per environment
# The key of a tensor whose numbers are in another file, behind its length in either form of Protocol Buffers.
_ELSEWHERE = re.compile(rb"[\x00\x08]location")
_INPUTS = {"observation", "reward", "return_to_go", "timestep", "previous_action", "memory"}
_OUTPUTS = {"action", "next_return_to_go", "next_memory"}  # of discrete actions, logits too


class OnnxPolicy(BasePolicy):
    """An exported policy: acts in B environments at once, one call per step. Made by `load_policy`.

    Attributes:
        card: how the policy was made and what it acts in: the fields of `aaren_rl.policies.card.PolicyCard`.
        export: how the file was made: its precision, and the check against PyTorch.
    """

    def __init__(self, session: onnxruntime.InferenceSession, card: dict[str, Any], export: dict[str, Any]) -> None:
        """Raises LookupError, ValueError, TypeError or OverflowError where they are not those of an exported policy."""
        inputs, outputs = ({value.name: value for value in of} for of in (session.get_inputs(), session.get_outputs()))
        if set(inputs) != _INPUTS or not _OUTPUTS <= set(outputs):
            raise ValueError(f"inputs {', '.join(inputs)}")
        if not isinstance(card, dict) or not isinstance(export, dict):
            raise ValueError("not a mapping")
        _check_card(card)
        self.card, self.export, self._session = card, export, session
        self.discrete = inputs["previous_action"].type == "tensor(int64)"
        acts = outputs["logits"] if self.discrete else inputs["previous_action"]
        self._outputs = ("logits" if self.discrete else "action", "next_memory")
        shapes = [of.shape[1:] for of in (inputs["memory"], inputs["observation"], acts)]
        if not all(isinstance(size, int) and 0 <= size < 2**31 for shape in shapes for size in shape):
            raise ValueError(f"inputs of the sizes {shapes}")
        self._memory_shape = tuple(inputs["memory"].shape[1:])
        if math.prod(self._memory_shape) > LARGEST_MEMORY:
            raise ValueError(f"a memory of the sizes {self._memory_shape}")
        self._memory_dtype, self.observation_dtype = (
            np.float64 if inputs[name].type == "tensor(double)" else np.float32 for name in ("memory", "observation")
        )
        self.sizes = inputs["observation"].shape[1], acts.shape[1]
        self.rollout, self.context_length = card["rollout"], int(card["rollout_context"])
        self.return_scale, self.target_return = card["return_scale"], card["target_return"]
        self.action_start, self.temperature = operator.index(card.get("action_start", 0)), None
        self.flatten = partial(as_flat, card.get("observation_space"))
        self.estimates_maximum = bool(card["model"].get("max_return_estimate"))

    def _new_memory(self, batch: int) -> npt.NDArray[Any]:
        return np.zeros((batch, *self._memory_shape), self._memory_dtype)

    def _checked_memory(self, memory: Any) -> tuple[npt.NDArray[Any], int]:  # noqa: ANN401
        memory = array("state: memory", memory, self._memory_dtype)
        batch = len(memory) if memory.ndim else 0
        return array("state: memory", memory, self._memory_dtype, (batch, *self._memory_shape)), batch

    def _memory_of(self, memory: npt.NDArray[Any], index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        chosen: npt.NDArray[Any] = memory[index]
        return chosen

    def _act(
        self, observed: npt.NDArray[Any], to_go: npt.NDArray[np.float64], state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        batch, previous = len(to_go), state.previous_action
        previous = self._no_action(batch) if previous is None else previous
        feed = {
            "observation": observed,
            "reward": np.zeros(batch),  # is subtracted already
            "return_to_go": to_go,
            "timestep": np.full(batch, state.timestep, np.int64),
            "previous_action": previous,
            "memory": state.memory,
        }
        try:
            out, memory = self._session.run(self._outputs, feed)
        except Exception as error:  # ONNX Runtime's own classes, see `from_bytes`
            raise CheckpointError(f"the exported policy fails in ONNX Runtime: {one_line(error)}") from error
        return out, memory


def _check_card(card: dict[str, Any]) -> None:
    """Raises LookupError, ValueError, TypeError or OverflowError if an entry that acting reads is invalid.

    `card_from_json` checks all entries, but imports Gymnasium.
    """
    target, scale = card["target_return"], card["return_scale"]
    if target != AUTO and not math.isfinite(target):
        raise ValueError(f"target_return {target}")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"return_scale {scale}")
    if not isinstance(card["rollout"], str) or not isinstance(card["model"], dict):
        raise TypeError("rollout must be a text, and model a mapping")
    operator.index(card["rollout_context"])
    if card.get("observation_space") is not None:
        checked_layout(card["observation_space"])


def load_policy(path: str | Path, *, threads: int = 1, temperature: float | None = None) -> OnnxPolicy:
    """An exported policy, ready to act.

    Args:
        path: the file that `aaren-rl export` wrote. ONNX Runtime runs its graph, which may ask for
            any memory and time. No other code in it is executed and no other file is read.
        threads: that ONNX Runtime computes on; one is fastest for a policy of the default size.
        temperature: discrete actions are sampled from softmax(logits / temperature); None: the most likely one.

    Raises:
        CheckpointError: the file is missing, damaged, or not an exported policy.
        ArgumentError: the number of threads or the temperature cannot be.
        ResourcesError: ONNX Runtime is not installed.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError("is not a file")  # a pipe would never end
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise CheckpointError(f"{path}: not readable: {getattr(error, 'strerror', error)}") from error
    return from_bytes(content, str(path), threads=threads, temperature=temperature)


def from_bytes(content: bytes, name: str, *, threads: int = 1, temperature: float | None = None) -> OnnxPolicy:
    """`load_policy` of a file's content; `name` is what messages call it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ResourcesError("an exported policy needs ONNX Runtime: pip install 'aaren-rl[runtime]'") from error
    integer("threads", threads, THREADS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong is raised, too
    options.add_session_config_entry("session.load_model_format", "ONNX")  # ONNX Runtime's own may name files
    if _ELSEWHERE.search(content):
        raise CheckpointError(f"{name}: its weights are in another file, which is not read")
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime raises a dozen classes of its own, derived from Exception.
    except Exception as error:
        raise CheckpointError(f"{name}: not an ONNX file, or damaged: {one_line(error)}") from error
    found = session.get_modelmeta().custom_metadata_map
    if found.get("aaren_rl_format") != FORMAT:
        raise CheckpointError(f"{name}: not a policy that `aaren-rl export` of this version wrote")
    try:
        policy = OnnxPolicy(session, json.loads(found["policy"]), json.loads(found["export"]))
    except (LookupError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{name}: the description of the policy in it is damaged: {error}") from error
    check_temperature(temperature, discrete=policy.discrete)
    policy.temperature = temperature
    return policy
