"""The decision model: tokens of environment steps -> trunk -> next action.

A step is one token or three:

* 3, Decision Transformer (Chen et al. 2021): return-to-go, observation, action, in this order. The action is predicted
  from the observation's token.
* 1, for a recurrent trunk (Decision S4, David et al. 2023, has the same three in one): LayerNorm(W_r R_t + W_s s_t + b
  + W_a a_{t-1}), plus the embedding of the time step where there is one. The action is predicted from this token.
  Where a sequence begins, the term of the previous action is 0.

Discrete actions are one-hot vectors, so that W_a is the table of their embeddings, and the head gives their logits.

Shape suffixes: B batch, T environment steps, O observation, A action, C channels, J tokens per step.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .trunk import Trunk, TrunkState

# Per number of tokens in a step: the tokens that actions are predicted from. With three, those of the observations.
ACTED_ON = {1: slice(None), 3: slice(1, None, 3)}
MAX_EXPECTILE = 0.995  # tau of the estimate of the maximum achievable return
WIDTH = 128  # of its two hidden layers
DRAWN = 100_000  # time steps at most


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
            torch.randn(min(config.max_timestep, DRAWN), width)
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
        tokens = self.step_tokens(observation, return_to_go, timestep, previous_action, begins)
        starts = None
        if begins is not None:  # at the return-to-go, behind which there are at most two tokens of the step
            first = max(0, len(tokens) - 2)
            starts = F.pad(begins.unsqueeze(1), (first, len(tokens) - first - 1))
        actions, state = self._act(torch.stack(tokens, 1), state, starts, slice(-1, None))
        return actions[:, 0], state

    def step_tokens(
        self,
        observation: Tensor,
        return_to_go: Tensor,
        timestep: int | Tensor,
        previous_action: Tensor | None,
        begins: Tensor | None = None,
    ) -> list[Tensor]:
        """The tokens (B, C) of `step`, one or three, before their layer norm.

        Of three the first, of the previous action, belongs to the sequence before where `begins` is True.
        """
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
