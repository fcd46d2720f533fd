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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .agents.policy.arguments import Arguments, blame
from .agents.policy.discrete import choose, next_seeds
from .base.errors import ArgumentError, CheckpointError, NonFiniteActionError, ResourcesError, one_line
from .base.ranges import AUTO, ENVS, THREADS
from .envs.tasks.spaces import as_flat, checked_layout

if TYPE_CHECKING:
    import onnxruntime

FORMAT = "2"
CHECK = Arguments(ArgumentError)
_INPUTS = {"observation", "reward", "return_to_go", "timestep", "previous_action", "memory"}
_OUTPUTS = ("action", "next_return_to_go", "next_memory")  # of discrete actions, logits too


class PolicyState(NamedTuple):
    """What a policy remembers between two steps of B environments; as `aaren_rl.agents.PolicyState`.

    Attributes:
        timestep: steps taken so far: one number, or int64 (B,) once some environments have begun another episode.
        return_to_go: return still to come, float64 (B,); infinite for the maximum achievable one.
        previous_action: handed out last, float32 (B, A) or int64 (B,), or None. Replace it if something else was
            executed.
        memory: what the rollout mode keeps, (B, ...).
        seeds: int64 (B,), what a policy with a temperature draws from; None of any other.
        improves: bool (B,), where a policy with a critic takes the best of its candidates; None of any other.
    """

    timestep: int | npt.NDArray[np.int64]
    return_to_go: npt.NDArray[np.float64]
    previous_action: npt.NDArray[Any] | None
    memory: npt.NDArray[Any]
    seeds: npt.NDArray[np.int64] | None = None
    improves: npt.NDArray[np.bool_] | None = None


class OnnxPolicy:
    """An exported policy: acts in B environments at once, one call a step. Made by `load_policy`.

    Attributes:
        card: how the policy was made and what it acts in: the fields of `aaren_rl.policies.card.PolicyCard`.
        export: how the file was made: its precision, and the check against PyTorch.
        observation_dtype: in which `act` reads observations: float64 where a column is far from zero.
        discrete: whether an action is an integer, from `action_start` on.
        temperature: as in `aaren_rl.agents.Policy`.
        candidates: how many candidate actions its critic chooses among; 1: it has no critic.
    """

    def __init__(self, session: onnxruntime.InferenceSession, card: dict[str, Any], export: dict[str, Any]) -> None:
        inputs, outputs = ({value.name: value for value in of} for of in (session.get_inputs(), session.get_outputs()))
        if set(inputs) - {"improves"} != _INPUTS or not set(_OUTPUTS) <= set(outputs):
            raise ValueError(f"inputs {', '.join(inputs)}")
        if not isinstance(card, dict) or not isinstance(export, dict):
            raise ValueError("not a mapping")
        self.card, self.export, self._session = card, export, session
        self._content, self._threads = b"", 1  # of the file, for copies
        self.candidates = operator.index(export.get("candidates", 1))
        if self.candidates < 1 or ("improves" in inputs) != (self.candidates > 1):
            raise ValueError(f"{self.candidates} candidates and inputs {', '.join(inputs)}")
        self.discrete = inputs["previous_action"].type == "tensor(int64)"
        self.temperature: float | None = None
        acts = outputs["logits"] if self.discrete else inputs["previous_action"]
        self._outputs = ("logits" if self.discrete else "action", *_OUTPUTS[1:])
        self.action_start = operator.index(card.get("action_start", 0))
        _check_card(card)
        shapes = [of.shape[1:] for of in (inputs["memory"], inputs["observation"], acts)]
        if not all(isinstance(size, int) and 0 <= size < 2**31 for shape in shapes for size in shape):
            raise ValueError(f"inputs of the sizes {shapes}")
        self._memory_shape = tuple(inputs["memory"].shape[1:])
        self._memory_dtype = np.float64 if inputs["memory"].type == "tensor(double)" else np.float32
        self.observation_dtype = np.float64 if inputs["observation"].type == "tensor(double)" else np.float32
        self._observation_dim, self._action_dim = (of.shape[1] for of in (inputs["observation"], acts))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have a session of their own."""
        return _again, (self._content, self._threads, self.temperature)

    def flatten(self, observation: Any, dtype: npt.DTypeLike = np.float32) -> Any:  # noqa: ANN401
        """Observations as `act` reads them, (B, O), from those of the environment; ArgumentError: they are not its."""
        try:
            return as_flat(self.card.get("observation_space"), observation, dtype)
        except ValueError as error:
            raise ArgumentError(str(error)) from error

    @property
    def rollout(self) -> str:
        """The rollout mode: "recurrent", "staggered" or "window"."""
        return str(self.card["rollout"])

    @property
    def supports_reset(self) -> bool:
        """Whether some environments can begin another episode while others go on: always."""
        return True

    @property
    def context_length(self) -> int:
        """K of the modes staggered and window, in steps."""
        return int(self.card["rollout_context"])

    @property
    def target_return(self) -> float | str:
        """The card's, where `initial_state` gets none: a number, or "auto", the maximum achievable return."""
        target: float | str = self.card["target_return"]
        return target

    def initial_state(
        self,
        batch_size: int,
        target_return: npt.ArrayLike | None = None,
        *,
        seed: npt.ArrayLike = 0,
        candidates: int | None = None,
    ) -> PolicyState:
        """The state at the beginning of an episode with this target return, as `Policy.initial_state`.

        Raises:
            ArgumentError: the target return is no number, "auto" or (B,), or is "auto" and the policy holds no estimate
                of the maximum achievable return; or a seed is none, or `candidates` is neither 1 nor the policy's.
        """
        batch_size = CHECK.integer("batch_size", batch_size, ENVS)
        memory = np.zeros((batch_size, *self._memory_shape), self._memory_dtype)
        seeds = None if self.temperature is None else CHECK.seeds("seed", seed, batch_size)
        wanted = self._targets(target_return, batch_size)
        improves = CHECK.improves(candidates, self.candidates, wanted, named=target_return is not None)
        return PolicyState(0, wanted, None, memory, seeds, improves)

    def reset(
        self,
        state: PolicyState,
        indices: npt.ArrayLike,
        target_return: npt.ArrayLike | None = None,
        *,
        candidates: int | None = None,
    ) -> PolicyState:
        """The state with new episodes begun in the environments with `indices` (R,), no mask; the others go on.

        `target_return` is that of the new episodes, one number, "auto" or (R,), as in `initial_state`, and so are
        `candidates`.

        Raises:
            ArgumentError: as `initial_state`, or an index is none of the state's.
        """
        state = self._checked(state)
        index = CHECK.rows("indices", indices, len(state.return_to_go))
        times, return_to_go = np.full(len(state.return_to_go), state.timestep), state.return_to_go.copy()
        times[index], return_to_go[index] = 0, self._targets(target_return, len(index))
        if (seeds := state.seeds) is not None:
            seeds = seeds.copy()
            seeds[index] = next_seeds(seeds[index])
        begun = CHECK.improves(candidates, self.candidates, return_to_go[index], named=target_return is not None)
        if (improves := state.improves) is not None:
            improves = improves.copy()
            improves[index] = begun
        return state._replace(timestep=times, return_to_go=return_to_go, seeds=seeds, improves=improves)

    def act(
        self, observation: npt.ArrayLike, reward: npt.ArrayLike, state: PolicyState
    ) -> tuple[npt.NDArray[Any], PolicyState]:
        """The next action of every environment, float32 (B, A) in its units or int64 (B,), and the new state.

        Takes raw observations (B, O), or as the environment gives them, rewards (B,) of the step before, 0 at the
        first, and the last call's state.

        Raises:
            ArgumentError: the shapes are not the policy's and the state's.
            NonFiniteActionError: the action is NaN or infinite; the message names the argument that is, if one is.
            CheckpointError: ONNX Runtime cannot run the file.
        """
        _, after = self._advance(observation, reward, state)
        action: Any = after.previous_action
        # A copy: the caller may write to it.
        return action.copy(), after

    def logits(
        self, observation: npt.ArrayLike, reward: npt.ArrayLike, state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        """The logits (B, n) of discrete actions in place of a choice; all else as `act`.

        Raises:
            ArgumentError: as `act`, or the actions are continuous.
        """
        if not self.discrete:
            raise ArgumentError("logits: are of discrete actions, and this policy's are continuous")
        return self._advance(observation, reward, state)

    def _advance(
        self, observation: npt.ArrayLike, reward: npt.ArrayLike, state: PolicyState
    ) -> tuple[npt.NDArray[np.float32], PolicyState]:
        timestep, return_to_go, previous, memory, seeds, improves = self._checked(state)
        batch, observation = len(return_to_go), self.flatten(observation, self.observation_dtype)
        if previous is None:
            none = np.zeros((batch, self._action_dim), np.float32)
            previous = np.full(batch, self.action_start, np.int64) if self.discrete else none
        feed: dict[str, Any] = {
            "observation": CHECK.array(
                "observation", observation, self.observation_dtype, (batch, self._observation_dim)
            ),
            "reward": CHECK.array("reward", reward, np.float64, (batch,)),
            "return_to_go": return_to_go,
            "timestep": np.full(batch, timestep, np.int64),
            "previous_action": previous,
            "memory": memory,
            **({} if self.candidates == 1 else {"improves": improves}),
        }
        try:
            out, return_to_go, memory = self._session.run(self._outputs, feed)
        except Exception as error:  # ONNX Runtime's own classes, see `from_bytes`
            raise CheckpointError(f"the exported policy fails in ONNX Runtime: {one_line(error)}") from error
        # An infinite return-to-go means the maximum achievable return; one that a reward made not finite, nothing.
        if not math.isfinite(out.sum() + feed["reward"].sum()) or math.isnan(return_to_go.sum()):
            given = {name: feed[name] for name in ("observation", "reward", "previous_action")}
            raise NonFiniteActionError(blame(given, feed["return_to_go"], timestep, out))
        action = choose(out, self.action_start, self.temperature, seeds, timestep) if self.discrete else out
        return out, PolicyState(timestep + 1, return_to_go, action, memory, seeds, improves)

    def select(self, state: PolicyState, rows: npt.NDArray[np.int64]) -> PolicyState:
        """The state of some of the environments, in the order of their indices `rows` (R,)."""
        timestep, return_to_go, previous, memory, seeds, improves = self._checked(state)
        index = CHECK.rows("rows", rows, len(return_to_go))
        timestep = timestep[index] if isinstance(timestep, np.ndarray) else timestep
        previous = None if previous is None else previous[index]
        seeds = None if seeds is None else seeds[index]
        improves = None if improves is None else improves[index]
        return PolicyState(timestep, return_to_go[index], previous, memory[index], seeds, improves)

    def _checked(self, state: PolicyState) -> PolicyState:
        if not isinstance(state, PolicyState):
            raise ArgumentError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
        timestep, return_to_go, previous, memory, seeds, improves = state
        memory = CHECK.array("state: memory", memory, self._memory_dtype)
        batch = len(memory) if memory.ndim else 0
        CHECK.array("state: memory", memory, self._memory_dtype, (batch, *self._memory_shape))
        return_to_go = CHECK.array("state: return_to_go", return_to_go, np.float64, (batch,))
        if previous is not None:
            if self.discrete:
                previous = CHECK.choices("previous_action", previous, batch, self.action_start, self._action_dim)
            else:
                previous = CHECK.array("previous_action", previous, np.float32, (batch, self._action_dim))
        elif np.any(timestep):
            raise ArgumentError("previous_action: is None after the first step")
        if seeds is not None or self.temperature is not None:
            seeds = CHECK.seeds("state: seeds", seeds, batch)
        if self.candidates > 1:
            improves = CHECK.array("state: improves", improves, np.bool_, (batch,))
        return PolicyState(CHECK.timestep(timestep, batch), return_to_go, previous, memory, seeds, improves)

    def _targets(self, target_return: npt.ArrayLike | None, count: int) -> npt.NDArray[np.float64]:
        wanted = self.target_return if target_return is None else target_return
        infinite = bool(self.card.get("model", {}).get("max_return_estimate"))
        return CHECK.targets(wanted, count, self.card["return_scale"], infinite=infinite)


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
    CHECK.integer("threads", threads, THREADS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong is raised, too
    try:
        # From memory: a model in a file may ask for other files beside it.
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
    CHECK.temperature(temperature, discrete=policy.discrete)
    policy.temperature, policy._content, policy._threads = temperature, content, threads
    return policy


def _again(content: bytes, threads: int, temperature: float | None) -> OnnxPolicy:
    return from_bytes(content, "the copied policy", threads=threads, temperature=temperature)
