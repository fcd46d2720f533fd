"""The decision model: tokens of environment steps -> trunk -> next action.

The trunk is a stack of blocks, each of a mixer and a feed-forward network.

A step is one token or three:

* 3, Decision Transformer (Chen et al. 2021): return-to-go, observation, action, in this order. The action is predicted
  from the observation's token.
* 1, for a recurrent trunk (Decision S4, David et al. 2023, has the same three in one): LayerNorm(W_r R_t + W_s s_t + b
  + W_a a_{t-1}), plus the embedding of the time step where there is one. The action is predicted from this token.
  Where a sequence begins, the term of the previous action is 0.

Discrete actions are one-hot vectors, so that W_a is the table of their embeddings, and the head gives their logits.

`Scaling` is what lies between an environment's units and the model's: observations, actions, and the return that is
asked for.

Shape suffixes: B batch or environments, T environment steps, O observation, A action, C channels, J tokens per step, K
intervals of time steps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..mixers import MIXERS
from ..mixers.base import Mixer, MixerConfig
from ..mixers.rsa import RemConfig
from ..mixers.tree import TreeConfig, plant_trees
from ..scan.rows import RowModule, State
from .config import ModelConfig, check_names

Array: TypeAlias = npt.NDArray[Any]
# A `Step` in the model's units: the arguments of `DecisionModel.step`, but the state.
ModelStep: TypeAlias = tuple[Tensor, Tensor, int | Tensor, Tensor | None]
# Per number of tokens in a step: the tokens that actions are predicted from. With three, those of the observations.
ACTED_ON = {1: slice(None), 3: slice(1, None, 3)}
MAX_EXPECTILE = 0.995  # tau of the estimate of the maximum achievable return
WIDTH = 128  # of its two hidden layers
MOST_TIMES = 100_000  # whose embeddings are drawn at the start, at most
TrunkState: TypeAlias = tuple[State, ...]  # of every mixer


class Dropout(nn.Module):
    """Zeroes elements with a probability, in steps of 1 / 256, and scales the others to keep the mean, in training.

    One random byte per element: on a CPU a seventh of the time of `nn.Dropout`, which takes a tenth of a gradient step.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * probability), 255)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape; the same object where nothing is dropped."""
        if not self.training or not self.dropped:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        mask = words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.dtype)
        return x * mask.ge_(self.dropped).mul_(256 / (256 - self.dropped))


class Block(nn.Module):
    """x = LN1(x + mixer(x)); x = LN2(x + MLP(x)): the block of min-decision-transformer, the paper's code base.

    Args:
        mixer: a name in MIXERS.
        config: of the mixer; its dropout is on the outputs of the mixer and of the MLP, and on attention's weights.
        activation: of the MLP, "gelu", "gelu-tanh" or "relu".
        mlp_width: hidden units of the MLP; 4 C by default.
    """

    def __init__(self, mixer: str, config: MixerConfig, activation: str = "gelu", mlp_width: int | None = None) -> None:
        super().__init__()
        width = config.width
        self.mixer: Mixer = MIXERS[mixer].build(config)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        hidden = 4 * width if mlp_width is None else mlp_width
        act = nn.ReLU() if activation == "relu" else nn.GELU("tanh" if activation == "gelu-tanh" else "none")
        self.mlp = nn.Sequential(nn.Linear(width, hidden), act, nn.Linear(hidden, width))
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, state: State | None, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, State]:
        """Tokens (B, N, C) in parallel; with `keep`, nothing after the mixer is computed for other positions."""
        y, state = self.mixer(self._read(x), state, starts=starts, keep=keep)
        return self._rest(x if keep is None else x[:, keep], y), state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token (B, C)."""
        y, state = self.mixer.step(self._read(x), state)
        return self._rest(x, y), state

    def _read(self, x: Tensor) -> Tensor:
        return x  # what the mixer sees

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(y))
        return self.norm2(x + self.dropout(self.mlp(x)))  # type: ignore[no-any-return]


class PreNormBlock(Block):
    """x = x + mixer(LN1(x)); x = x + MLP(LN2(x)): the block of GPT-2 and of Hugging Face's Decision Transformer."""

    def _read(self, x: Tensor) -> Tensor:
        return self.norm1(x)  # type: ignore[no-any-return]

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class Trunk(RowModule):
    """A stack of blocks with one state: a tuple of the mixers' states.

    Args:
        mixer: a name in MIXERS.
        width: C, channels of a token.
        layers: number of blocks.
        heads: of every mixer.
        dropout: probability.
        rems: recurrence encoding of every layer, where the mixer has one; None: the default one.
        block: "post-norm", `Block`, or "pre-norm", `PreNormBlock`; after these is one more layer norm, as in GPT-2.
        activation: of the MLPs, as in `Block`.
        mlp_width: hidden units of the MLPs; 4 C by default.
        forget_gate: whether tokens fade those before them, where the mixer has a gate.
    """

    def __init__(
        self,
        mixer: str,
        width: int,
        layers: int,
        heads: int,
        dropout: float = 0.0,
        rems: RemConfig | None = None,
        block: str = "post-norm",
        activation: str = "gelu",
        mlp_width: int | None = None,
        forget_gate: bool = False,
    ) -> None:
        super().__init__()
        check_names(mixer, block, activation)
        config = MixerConfig(width, heads, dropout, forget_gate, rems)
        made, norm = (PreNormBlock, nn.LayerNorm) if block == "pre-norm" else (Block, nn.Identity)
        self.blocks = nn.ModuleList(made(mixer, config, activation, mlp_width) for _ in range(layers))
        self.norm = norm(width)

    @property
    def mixer(self) -> Mixer:
        """The first block's: what it declares of itself holds for all."""
        return self.blocks[0].get_submodule("mixer")  # type: ignore[return-value]

    def run(
        self, x: Tensor, state: TrunkState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, TrunkState]:
        states = []
        self._check_state(state)
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1  # which computes no positions but the kept past its mixer
            x, new = block(x, None if state is None else state[i], starts, keep if last else None)
            states.append(new)
        return self.norm(x), tuple(states)

    def run_one(self, x: Tensor, state: TrunkState) -> tuple[Tensor, TrunkState]:
        states = []
        self._check_state(state)
        for block, old in zip(self.blocks, state, strict=True):
            x, new = block.step(x, old)  # type: ignore[operator]
            states.append(new)
        return self.norm(x), tuple(states)

    def _check_state(self, state: TrunkState | None) -> None:
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"the state is of {len(state)} blocks, and the trunk has {len(self.blocks)}")

    def initial_state(self, batch_size: int) -> TrunkState:
        """The state before any token."""
        return tuple(block.mixer.initial_state(batch_size) for block in self.blocks)  # type: ignore[union-attr,operator]

    def with_trees(self, config: TreeConfig) -> Trunk:
        """A copy for evaluation that attends through a tree of the tokens so far (Menet et al.), with today's weights.

        Raises:
            ValueError: no block's mixer is softmax attention.
        """
        planted = copy.deepcopy(self).eval().requires_grad_(False)
        plant_trees(planted, config)
        return planted


class DecisionModel(nn.Module):
    """Decision-Aaren (mixer "aaren"), Decision Transformer ("attention"), or either with recurrence encoding.

    Observations are expected normalized and returns-to-go scaled; `Policy` does both at rollout.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        # One bias per token.
        self.embed_return = nn.Linear(1, width, bias=config.tokens_per_step == 3)
        self.embed_observation = nn.Linear(config.observation_dim, width)
        self.embed_action = nn.Linear(config.action_dim, width, bias=config.tokens_per_step == 3)
        self.embed_timestep = None
        if config.timestep_embedding:
            self.embed_timestep = nn.Embedding(config.max_timestep, width)
            self.embed_timestep.weight.data *= config.timestep_std  # nn.Embedding draws with a deviation of 1
        else:  # drawn all the same, so that the other weights of a seed are those of earlier versions
            torch.randn(min(config.max_timestep, MOST_TIMES), width)
        if not config.return_conditioned:
            nn.init.zeros_(self.embed_return.weight)
            self.embed_return.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(width)
        blocks = config.layers, config.heads, config.dropout, config.rems(), config.block, config.activation
        self.trunk = Trunk(config.mixer, width, *blocks, forget_gate=config.forget_gate)
        self.head = nn.Linear(width, config.action_dim)
        # Last, so that the other weights are drawn as without it. What is asked for, no part of `forward` or `step`.
        self.max_return_estimate = ReturnEstimate(config.observation_dim) if config.max_return_estimate else None

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns_to_go: Tensor,
        timesteps: Tensor,
        state: TrunkState | None = None,
        *,
        starts: Tensor | None = None,
        previous_action: Tensor | None = None,
    ) -> tuple[Tensor, TrunkState]:
        """Predicts the action of every step from what came before it, in parallel.

        Args:
            observations: (B, T, O), normalized.
            actions: (B, T, A), one-hot where they are discrete; the one of step t is seen from step t + 1 on.
            returns_to_go: (B, T), scaled.
            timesteps: (B, T) integers, of the episode.
            state: of the trunk before these steps.
            starts: bool (B, T), True where a new sequence begins.
            previous_action: (B, A), of the step before the first; not read with three tokens, `state` has seen it.

        Returns:
            Actions (B, T, A) in (-1, 1), or logits of discrete ones, and the state of the trunk: after the last action
            with three tokens per step, before it with one.
        """
        actions = self._drop_some(actions)
        # A return-to-go has more digits than bfloat16.
        with torch.autocast(observations.device.type, enabled=False):
            time = self._time(timesteps)
            to_go, seen = self.embed_return(returns_to_go.unsqueeze(-1)), self.embed_observation(observations)
            if self.config.tokens_per_step == 1:
                first = torch.zeros_like(actions[:, 0]) if previous_action is None else previous_action
                before = torch.cat([first.to(actions.dtype).unsqueeze(1), actions[:, :-1]], 1)
                before = before if starts is None else before.masked_fill(starts.unsqueeze(-1), 0.0)
                tokens = to_go + seen + self.embed_action(before) + time
            else:
                tokens = torch.stack([to_go + time, seen + time, self.embed_action(actions) + time], 2).flatten(1, 2)
                starts = None if starts is None else F.pad(starts.unsqueeze(2), (0, 2)).flatten(1)
        return self._act(tokens, state, starts, ACTED_ON[self.config.tokens_per_step])

    def step(
        self,
        observation: Tensor,
        return_to_go: Tensor,
        timestep: int | Tensor,
        previous_action: Tensor | None,
        state: TrunkState,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, TrunkState]:
        """One environment step: predicts a_t from a_{t-1}, R_t, s_t and the state.

        Args:
            observation: s_t (B, O), normalized.
            return_to_go: R_t (B,), scaled.
            timestep: t, one for all or integers (B,).
            previous_action: a_{t-1} as executed, (B, A); None at the first step the state sees.
            state: of the trunk after R_{t-1}, s_{t-1}.
            begins: bool (B,), True where a sequence begins: neither its state nor its previous action counts.

        Returns:
            The action (B, A) in (-1, 1), or logits of discrete ones, and the state of the trunk after s_t.
        """
        tokens = self.step_tokens((observation, return_to_go, timestep, previous_action), begins)
        starts = None
        if begins is not None:  # at the return-to-go, behind which there are at most two tokens of the step
            first = max(0, len(tokens) - 2)
            starts = F.pad(begins.unsqueeze(1), (first, len(tokens) - first - 1))
        actions, state = self._act(torch.stack(tokens, 1), state, starts, slice(-1, None))
        return actions[:, 0], state

    def step_tokens(self, given: ModelStep, begins: Tensor | None = None) -> list[Tensor]:
        """The tokens (B, C) of `step`, one or three, before their layer norm.

        Of three the first, of the previous action, belongs to the sequence before where `begins` is True.
        """
        observation, return_to_go, timestep, previous_action = given
        now = self._time(timestep)
        to_go, seen = self.embed_return(return_to_go.unsqueeze(-1)), self.embed_observation(observation)
        if self.config.tokens_per_step == 1:
            token = to_go + seen + now
            if previous_action is None:
                return [token]
            before = previous_action if begins is None else previous_action.masked_fill(begins.unsqueeze(1), 0.0)
            return [token + self.embed_action(before)]
        tokens = [to_go + now, seen + now]
        if previous_action is not None:
            tokens.insert(0, self.embed_action(previous_action) + self._time(timestep - 1))
        return tokens

    def _drop_some(self, actions: Tensor) -> Tensor:
        # A model that always sees its last action learns to go by it, and at rollout goes by its own mistakes.
        if not self.training or not self.config.actions_dropped:
            return actions
        return actions * (torch.rand(*actions.shape[:2], 1, device=actions.device) >= self.config.actions_dropped)

    def initial_state(self, batch_size: int) -> TrunkState:
        """The trunk's state before any step."""
        return self.trunk.initial_state(batch_size)

    def _act(
        self, tokens: Tensor, state: TrunkState | None, starts: Tensor | None, keep: slice
    ) -> tuple[Tensor, TrunkState]:
        with torch.autocast(tokens.device.type, enabled=False):
            tokens = self.norm(tokens)
        x, state = self.trunk(tokens, state, starts=starts, keep=keep)
        return self.predict(x), state

    def predict(self, x: Tensor) -> Tensor:
        """Actions (..., A) in (-1, 1), or logits of discrete ones, from outputs of the trunk (..., C)."""
        out = self.head(x)
        return out if self.config.discrete else torch.tanh(out)

    def _time(self, timestep: int | Tensor) -> Tensor | float:
        """The embedding of time steps (...), (..., C): (C,) of one number. 0 without one."""
        if self.embed_timestep is None:
            return 0.0
        newest = self.config.max_timestep - 1
        if isinstance(timestep, Tensor):
            return self.embed_timestep(timestep.clamp(0, newest))  # type: ignore[no-any-return]
        return self.embed_timestep.weight[min(timestep, newest)]


class ReturnEstimate(nn.Module):
    """The return still to come, as the data know it: normalized observations (..., O) -> scaled returns-to-go (...).

    An expectile (Newey & Powell 1987) of the returns-to-go G after an observation: the value v that minimizes
    E |tau - 1[G < v]| (G - v)^2. At tau = 1/2 it is their mean. As tau nears 1 it tends to the maximum achievable
    return, a target that a policy can follow at every step, as in Reinformer (Zhuang et al. 2024).
    """

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(observation_dim, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)
        self.requires_grad_(False)  # not the optimizer's: `aaren_rl.train` fits it to the data by itself

    def forward(self, observations: Tensor) -> Tensor:
        """The estimate, in the type of the weights."""
        x = observations.to(self.last.weight.dtype)
        return self.last(self.second(self.first(x).relu()).relu()).squeeze(-1)  # type: ignore[no-any-return]


def expectile_loss(predicted: Tensor, target: Tensor, expectile: float) -> Tensor:
    """The mean of |tau - 1[target < predicted]| (target - predicted)^2 over tensors of one shape."""
    error = target - predicted
    return torch.where(error > 0, expectile, 1 - expectile).mul(error.square()).mean()


class Step(NamedTuple):
    """One environment step of B environments, as a policy's engine has it: in the environment's units.

    Attributes:
        observation: s_t (B, O), float32, without the policy's origin.
        return_to_go: R_t (B,), float64, within the policy's `ReturnRange`.
        timestep: t, one for all or int64 (B,).
        previous_action: a_{t-1} as executed, (B, A), float32; None at the first step the state sees.
    """

    observation: Array
    return_to_go: Array
    timestep: int | Array
    previous_action: Array | None

    def begins(self) -> Array | None:
        """Where environments that are at different steps begin an episode, bool (B,); None where all are at one."""
        return self.timestep == 0 if isinstance(self.timestep, np.ndarray) else None


class ReturnRange(NamedTuple):
    """The smallest and the largest return-to-go that a policy feeds its model at a time step.

    In one token per step a return-to-go far outside of the training data would drown the observation.

    Attributes:
        every: time steps of an interval, at least 1.
        bounds: (K, 2), float64, the smallest and the largest in every interval; later steps use the last one.
    """

    every: int
    bounds: Array

    def clamp(self, return_to_go: Array, timestep: int | Array) -> Array:
        """Returns-to-go (B,) moved into the range of their time step; an exported graph has the same formula."""
        last, interval = len(self.bounds) - 1, timestep // self.every
        if isinstance(interval, int):  # a slice: operations on arrays are faster than on an array and a number
            row: Any = slice(min(interval, last), min(interval, last) + 1)
        else:
            row = np.minimum(interval, last)
        pair = self.bounds[row]
        clamped: Array = np.minimum(np.maximum(return_to_go, pair[:, 0]), pair[:, 1])
        return clamped


def middle_and_half(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The middle and half the range of actions from `low` to `high`, each (A,) in float32.

    Half is rounded down so that middle - half and middle + half are inside the bounds, which environments check.
    """
    # A bound in float64 may lie between two float32 numbers: the one inside.
    inside_low, inside_high = low.float(), high.float()
    up, down = (torch.full_like(inside_low, end) for end in (torch.inf, -torch.inf))
    low = torch.where(inside_low < low, torch.nextafter(inside_low, up), inside_low)
    high = torch.where(inside_high > high, torch.nextafter(inside_high, down), inside_high)
    middle = (high + low) / 2
    half = torch.minimum(high - middle, middle - low)
    outside = (middle + half > high) | (middle - half < low)
    return middle, torch.where(outside, torch.nextafter(half, torch.zeros_like(half)), half)


@dataclass(frozen=True)
class Scaling:
    """How a model sees its environment: in training, in a policy, in its compiled step and in an exported graph.

    Attributes:
        observation_mean, observation_std: (O,), float32, of the training data less the origin.
        return_scale: returns-to-go are divided by it.
        action_middle: (A,), of the environment's actions; the model's 0.
        action_half: (A,), half of their range.
        origin: (O,), float64, is subtracted from observations before they become float32; None: nothing is.
    """

    observation_mean: Tensor
    observation_std: Tensor
    return_scale: float
    action_middle: Tensor
    action_half: Tensor
    origin: Array | None = None

    @staticmethod
    def of(mean: Tensor, std: Tensor, scale: float, low: Tensor, high: Tensor, origin: Array | None = None) -> Scaling:
        """Of the mean and deviation (O,) of raw observations, the scale of returns, and bounds (A,) of actions."""
        if origin is not None:
            mean = mean - torch.from_numpy(origin).to(mean.device)
        return Scaling(mean.float(), std.float(), scale, *middle_and_half(low, high), origin)

    def from_origin(self, observation: Array) -> Array:
        """Raw observations (B, O) as float32."""
        return observation if self.origin is None else (observation - self.origin).astype(np.float32)

    def normalized(self, observation: Tensor) -> Tensor:
        """Observations (..., O) from the origin, normalized."""
        return (observation - self.observation_mean) / self.observation_std

    def unit_actions(self, action: Tensor) -> Tensor:
        """Actions (..., A) in the model's units, in which they span [-1, 1]."""
        return (action - self.action_middle) / self.action_half

    def actions(self, unit: Tensor) -> Tensor:
        """Actions (..., A) in the environment's units, of the model's."""
        return self.action_middle + self.action_half * unit

    def to_model(self, step: Step) -> ModelStep:
        """A step in the model's units, on its device."""
        device = self.observation_mean.device
        given: Any = (x if x is None or isinstance(x, int) else torch.tensor(x, device=device) for x in step)
        observation, to_go, timestep, previous = given
        return (
            self.normalized(observation),
            (to_go / self.return_scale).float(),
            timestep,
            None if previous is None else self.unit_actions(previous),
        )


def to_array(action: Tensor) -> Array:
    """Actions as float32 in the processor's memory."""
    return action.detach().cpu().numpy().astype(np.float32, copy=False)
