"""How tree attention chooses the buds that it expands: the probability masses of section 2.3.

Masses are not normalized, and are sums over the heads (section 2.4). A sampler may transform queries and keys, each
scaled by D^(-1/4), to features; the sum of <phi(q), phi(k)> over a bud's tokens is then its transformed alignment.

Signs: as printed, equations (4) and (7) have -(x)+ as their second half; equation (4)'s own right-hand side and the
kernel of equation (8) follow from (-x)+, which is meant. The sum in equation (3) runs from l - t - 1 to l - s - 1.

Shape suffixes: R rows of queries, H heads, D channels, K features (R in the paper).
"""

import math

import torch
from torch import Tensor

from ...kernels import HORIZON, LARGEST, MEAN, POSITIVE, UNIFORM

DTYPE = torch.float64


class Uniform:
    """The unselective baseline: every bud has the same mass. Random directions are drawn from the generator.

    Attributes:
        features: K.
        form: of the masses, which `kernels/tree_attention.py` computes: UNIFORM, HORIZON, MEAN or POSITIVE.
        by_features: whether the masses are of the transformed alignments.
    """

    form = UNIFORM
    by_features = False

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        self.features = 2 * dim if self.by_features else 0  # as in the paper's experiments

    def transform(self, x: Tensor) -> Tensor:
        """phi of a query or key, (..., D) -> (..., K); here no features."""
        return x[..., :0]


class ExponentialDecay(Uniform):
    """Exponentially decaying horizon, equation (3): a token that is k tokens old has the mass b^k."""

    form = HORIZON


class Alignments(Uniform):
    """The geometric mean of the bud's attention weights, exp(A_n / |n|)."""

    form = MEAN


class PositiveAlignments(Uniform):
    """Equation (4): exp of the mean of what is positive in the inner products, the sum of the positive q_i k_i."""

    form, by_features = MEAN, True

    def transform(self, x: Tensor) -> Tensor:
        return torch.cat([x.clamp(min=0), (-x).clamp(min=0)], -1)


class _RandomFeatures(Uniform):
    """Features from K / 2 = D random directions, which are orthogonal; the mass is the positive part of their sum."""

    form, by_features = POSITIVE, True

    def __init__(self, dim: int, generator: torch.Generator) -> None:
        super().__init__(dim, generator)
        lengths = self._lengths(dim, generator)
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=DTYPE))
        # Uniform (Haar): QR's signs alone depend on its algorithm.
        self.directions: Tensor = lengths * (q * r.diagonal().sign())

    def _lengths(self, dim: int, generator: torch.Generator) -> Tensor:
        # Of every direction, (D, 1): chi, so that each is standard normal.
        return torch.randn(dim, dim, generator=generator, dtype=DTYPE).square().sum(1, keepdim=True).sqrt()

    def project(self, x: Tensor) -> Tensor:
        """w^T x, (..., D) -> (..., D), in float64."""
        return x.to(DTYPE) @ self.directions.T


class RandomFourier(_RandomFeatures):
    """Random Fourier features, equation (5): an unbiased estimate of exp(q . k) that may be negative."""

    def transform(self, x: Tensor) -> Tensor:
        angle = self.project(x)
        size = (x.to(DTYPE).square().sum(-1, keepdim=True) / 2).clamp(max=LARGEST).exp()
        return torch.cat([angle.sin(), angle.cos()], -1) * size / math.sqrt(self.features / 2)


class Favor(_RandomFeatures):
    """FAVOR+, equation (6): positive hyperbolic features, an unbiased estimate of exp(q . k)."""

    def transform(self, x: Tensor) -> Tensor:
        along, size = self.project(x), x.to(DTYPE).square().sum(-1, keepdim=True) / 2
        return (torch.cat([along, -along], -1) - size).clamp(max=LARGEST).exp() / math.sqrt(self.features)


class FavorRelu(_RandomFeatures):
    """FAVOR+ReLU, equation (7): a kernel that grows with the norms and with the cosine of the angle."""

    def _lengths(self, dim: int, generator: torch.Generator) -> Tensor:
        return torch.full((1, 1), math.sqrt(dim), dtype=DTYPE)

    def transform(self, x: Tensor) -> Tensor:
        along = self.project(x)
        return torch.cat([along.clamp(min=0), (-along).clamp(min=0)], -1) / math.sqrt(self.features)


SAMPLERS: dict[str, type[Uniform]] = {
    "uniform": Uniform,
    "edh": ExponentialDecay,
    "align": Alignments,
    "pos-align": PositiveAlignments,
    "rff": RandomFourier,
    "favor": Favor,
    "favor-relu": FavorRelu,
}
