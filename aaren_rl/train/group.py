"""The trainers of several seeds, whose gradient steps are taken together: one launch of a kernel serves all.

The weights, the momenta of Muon, the carried states and the data of the trainers become views of stacked tensors, so
that everything else about them, such as a checkpoint, stays as of a trainer alone. Every seed keeps its random numbers,
its AdamW, its EMA weights, and its clipping of gradients; a step that is not finite is skipped for its seed alone.

Shape suffixes: S seeds, B rows of a seed's batch, T steps, A actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..agents.model.trunk import TrunkState
from ..agents.scan.rows import each
from ..agents.stacked import stack
from .acceleration import DeviceRates, Found, Graphs
from .data.batches import Batch, join_data
from .data.sampling import Sampler
from .loss import action_errors
from .optimizers import Muon, rates_at
from .trainer import Trainer


class Group:
    """Takes gradient steps of trainers that differ in their seeds and data alone, and have taken equally many."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, first = list(trainers), trainers[0]
        self._config = first.config.optimizer
        self.model = stack([trainer.model for trainer in trainers])
        self.model.train()
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # Of every seed, in the order of `_parameters`.
        self._own = [[p for p in trainer.model.parameters() if p.requires_grad] for trainer in trainers]
        for trainer in trainers:
            trainer.model.zero_grad()  # of estimators that were fitted
        self._muon = self._stack_muon()
        self._rates = DeviceRates(self._config, first.data.device, first.update) if first.on_device else None
        recorded = first.on_device and first.data.device.type == "cuda"
        self._generators = [trainer.generator for trainer in trainers]
        self._learn = Graphs(self.learn, *self._generators) if recorded else self.learn
        self._carry()
        self.sampler = self._join_samplers()

    def _stack_muon(self) -> Muon | None:
        every = [trainer.optimizers.muon for trainer in self.trainers]
        muons = [muon for muon in every if muon is not None]
        if not muons:
            return None
        names = {id(p): name for name, p in self.trainers[0].model.named_parameters()}
        stacked = dict(self.model.named_parameters())
        whole = Muon(
            [stacked[names[id(matrix)]] for matrix in muons[0].matrices], muons[0].weight_decay, muons[0].dtype
        )
        whole.momenta = [torch.stack(momenta) for momenta in zip(*(muon.momenta for muon in muons), strict=True)]
        for muon, momenta in zip(muons, zip(*whole.momenta, strict=True), strict=True):
            muon.momenta = list(momenta)
        return whole

    def _carry(self) -> None:
        """Joins the carried states, of which each trainer's becomes a view."""
        carried = [trainer.carried for trainer in self.trainers if trainer.carried is not None]
        self._state = each(torch.cat, [one.state for one in carried]) if carried else None
        for k, one in enumerate(carried):
            one.state = self._of(k, self._state)

    def _join_samplers(self) -> Sampler | None:
        """One that samples for all; None where the data stay on the disk, from which each seed reads its own."""
        samplers = [trainer.sampler for trainer in self.trainers]
        if any(sampler.data.on_disk for sampler in samplers):
            return None
        whole = self.trainers[0].sampler_of(join_data([sampler.data for sampler in samplers]))
        whole.follow(samplers)
        return whole

    def _of(self, k: int, state: TrunkState | None) -> TrunkState:
        """The state of a seed, a part of that of all."""
        part: TrunkState = each(lambda parts: parts[0].chunk(len(self.trainers))[k], [state])
        return part

    def step(self) -> tuple[Tensor, Tensor]:
        """One gradient step of every trainer. Returns the losses and the gradient norms before clipping, (S,).

        The next call may overwrite them.
        """
        if self.sampler is None:
            size = max(trainer.sampler.prepare(trainer.generator) for trainer in self.trainers)
        else:
            size = self.sampler.prepare(*self._generators)
        losses, norms, masks = self._learn(size)
        for trainer, mask in zip(self.trainers, masks.chunk(len(self.trainers)), strict=True):
            trainer.update += 1
            trainer.mask = mask
        return losses, norms

    def learn(self, size: int) -> Found:
        """The gradient step of `step` on batches of `size`, launch by launch, not counted in `update`."""
        first = self.trainers[0]
        batch = self._draw(size)
        rates = rates_at(first.update, self._config) if self._rates is None else self._rates.take()
        with torch.autocast(batch.mask.device.type, torch.bfloat16, enabled=first.dtype == torch.bfloat16):
            rows = batch.observations, batch.actions, batch.returns_to_go, batch.timesteps
            begun = {"starts": batch.starts, "previous_action": batch.previous_action}
            actions, after = self.model(*rows, self._state, **begun)
        errors = action_errors(actions, batch.actions, batch.mask, discrete=first.data.discrete)
        of_seeds = (x.view(len(self.trainers), -1).sum(1) for x in (errors, batch.mask))
        losses = torch.div(*of_seeds)
        for parameter in self._parameters:
            parameter.grad = None
        losses.sum().backward()
        norms = self._clipped()
        losses = losses.detach()
        bad = 1 - (losses.isfinite() & norms.isfinite()).float() if self._config.non_finite == "skip" else None
        if bad is not None and not first.on_device and not bool(bad.any()):
            bad = None  # reading it synchronizes with the device
        self._step_muon(rates.muon, bad)
        for k, trainer in enumerate(self.trainers):
            trainer.take(rates, self._of(k, after), None if bad is None else bad[k], muon=False)
        return losses, norms, batch.mask

    def _draw(self, size: int) -> Batch:
        if self.sampler is None:
            return joined([trainer.sampler.draw(size, trainer.generator) for trainer in self.trainers])
        return self.sampler.draw(size, *self._generators)

    def _step_muon(self, rate: float | Tensor, bad: Tensor | None) -> None:
        if self._muon is not None:
            self._muon.step(rate, bad)

    def _clipped(self) -> Tensor:
        """Gives every trainer its gradients, clipped; returns the norms before, (S,)."""
        with_gradient = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        stacked = [self._parameters[i].grad for i in with_gradient]
        of_seeds = list(zip(*(gradient.unbind() for gradient in stacked if gradient is not None), strict=True))
        found = torch._foreach_norm([gradient for own in of_seeds for gradient in own])
        norms: Tensor = torch.linalg.vector_norm(torch.stack(found).view(len(of_seeds), -1), dim=1)
        factors = (self._config.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for parameters, own, factor in zip(self._own, of_seeds, factors.unbind(), strict=True):
            torch._foreach_mul_(own, factor)
            for i, gradient in zip(with_gradient, own, strict=True):
                parameters[i].grad = gradient
        return norms


def joined(batches: Sequence[Batch]) -> Batch:
    """The batches of all seeds, one after another."""
    every = {field.name: [getattr(batch, field.name) for batch in batches] for field in dataclasses.fields(Batch)}
    whole: dict[str, Any] = {name: None if parts[0] is None else torch.cat(parts) for name, parts in every.items()}
    return Batch(**whole)
