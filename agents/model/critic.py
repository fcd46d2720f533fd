"""A critic: an ensemble of networks Q_j(s, a), which chooses among candidates around a policy's action.

It is one step of policy improvement on the data (Brandfonbrener et al. 2021, "Offline RL without off-policy
evaluation"), among actions near those of a model of behavior (EMaQ, Ghasemipour et al. 2021; IDQL, Hansen-Estruch et
al. 2023).

Shape suffixes: B environments, O observation, A action, J networks, H hidden units, K candidates.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NETWORKS = 10  # J; of two critics of 5 networks one lost 40 points on hopper-medium-replay
HIDDEN = 64  # H, of both layers; a multiple of four, as K, for `kernels.critic`
CANDIDATES = 16  # K, the policy's own action among them
SCALE = 0.5  # of the offsets, in deviations
LARGEST_DEVIATION = 0.25  # an eighth of the range of actions
EPSILON = 1e-5  # of the layer norms
OFFSETS_SEED = 0  # the same offsets for every policy


class Critic(nn.Module):
    """Q_j(s, a) of normalized observations and actions in [-1, 1]. Before `draw`, all are 0, and choose nothing else.

    Attributes:
        offsets: (K - 1, A), fixed standard normal numbers.
        deviation: (A,), the policy's deviation from the actions in the data; 0 before it is known.
    """

    offsets: Tensor
    deviation: Tensor

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        super().__init__()
        sizes = observation_dim + action_dim, HIDDEN, HIDDEN, 1
        weights = [torch.zeros(NETWORKS, *pair) for pair in pairwise(sizes)]
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([torch.zeros(NETWORKS, 1, size) for size in sizes[1:]])
        generator = torch.Generator("cpu").manual_seed(OFFSETS_SEED)
        offsets = torch.randn(CANDIDATES - 1, action_dim, generator=generator, device="cpu")
        self.register_buffer("offsets", offsets)
        self.register_buffer("deviation", torch.zeros(action_dim))
        self.requires_grad_(False)  # not the optimizer's: `aaren_rl.train` fits it to the data by itself

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Initial weights before it is fitted. No other random numbers change."""
        generator = torch.Generator("cpu").manual_seed(seed)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            drawn = torch.randn(weight.shape, generator=generator, device="cpu")
            weight.copy_(drawn / weight.shape[1] ** 0.5)
            bias.zero_()

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Q_j(s, a), (J, B), of normalized observations (B, O) and actions (B, A) in [-1, 1]."""
        x = torch.cat([observation, action], -1).expand(len(self.weights[0]), -1, -1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            # Normalized, without a scale or a shift: where there are few data, Q grows less far.
            x = x if i == last else F.layer_norm(x, x.shape[-1:], eps=EPSILON).relu()
        return x.squeeze(-1)

    def candidates(self, action: Tensor) -> Tensor:
        """The candidates (B, K, A) around the policy's actions (B, A), which come first, unchanged."""
        around = action.unsqueeze(1) + SCALE * self.deviation * self.offsets
        return torch.cat([action.unsqueeze(1), around.clamp(-1, 1)], 1)

    def best(self, observation: Tensor, candidates: Tensor) -> Tensor:
        """The numbers (B,) of the candidates (B, K, A) whose smallest advantage over the first is largest.

        The advantage is Q_j(s, c) - Q_j(s, a), and the smallest is over the networks. The first candidate, the policy's
        own action, wins ties, and wherever an advantage is NaN that candidate is not chosen.
        """
        batch, count, _ = candidates.shape
        values = self(observation.repeat_interleave(count, 0), candidates.flatten(0, 1)).unflatten(1, (batch, count))
        least = (values - values[:, :, :1]).amin(0).nan_to_num(nan=-torch.inf)
        least[:, 0] = 0.0
        numbers = torch.arange(count, device=least.device)
        return torch.where(least == least.amax(1, keepdim=True), numbers, count).amin(1)  # the first of equal ones

    def choose(self, observation: Tensor, action: Tensor) -> Tensor:
        """The chosen candidates (B, A), of normalized observations (B, O) and the policy's actions (B, A)."""
        candidates = self.candidates(action)
        return candidates[torch.arange(len(action), device=action.device), self.best(observation, candidates)]
