"""One training run's moving parts: model, EMA weights, optimizer, sampler and every random state."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..agents import Block, DecisionModel, Encoded
from ..agents.scan.first_use import gpu_is_right
from ..envs.errors import one_line
from ..errors import CheckpointError
from .acceleration import DeviceRates, Found, Graphs, uses_bfloat16
from .config import RunConfig
from .contexts.batches import StepData, part, part_of_rows
from .contexts.sampling import Carried, TbpttSampler, make_sampler
from .optimizers import Optimizers, Rates, rates_at
from .ranks import ALONE, Ranks


def masked_mse(predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean squared error of (B, T, A) over the real positions of a bool mask (B, T).

    Where they are a part of a batch with `count` real positions, the parts' errors add up to the batch's.
    """
    errors = (predicted.float() - target).square().mean(-1)
    return torch.where(mask, errors, 0.0).sum() / (mask.sum() if count is None else count)


def masked_cross_entropy(logits: Tensor, target: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean cross entropy, in nats, of logits (B, T, n) and one-hot actions; all else as of `masked_mse`."""
    errors = -(logits.float().log_softmax(-1) * target).sum(-1)
    return torch.where(mask, errors, 0.0).sum() / (mask.sum() if count is None else count)


class Stopwatch:
    """Adds up the seconds spent inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Trainer:
    """Updates a decision model; everything that decides the next update is in `states`.

    Args:
        data: the steps to train on, on the training device.
        horizon: the environment's time limit, in steps.
        ranks: the processes that share every batch, on GPUs of one type. While dropout is 0, the weights are those of
            one process, to rounding; with dropout each draws its own masks.
        compiled: run the model through torch.compile: the same numbers to rounding, other dropout masks.
        on_device: nothing in an update waits for the device, and a GPU replays it as a CUDA graph. By default where one
            process trains a model, not `compiled`, on a GPU whose passes wait for nothing. On a CPU, for tests.
    """

    def __init__(
        self,
        config: RunConfig,
        data: StepData,
        action_dim: int,
        horizon: int,
        ranks: Ranks = ALONE,
        *,
        compiled: bool = False,
        on_device: bool | None = None,
    ) -> None:
        self.config, self.data, self.ranks = config, data, ranks
        self.update = 0  # updates done
        self._skipped = torch.zeros((), device=data.device)  # those among them that changed nothing
        self.mask = torch.zeros(0, 0, dtype=torch.bool)  # of the last update's batch
        torch.manual_seed(config.seed)
        shape = config.model(data.observations.shape[1], action_dim, horizon, discrete=data.discrete)
        self.model = DecisionModel(shape).to(data.device)
        self.ema = copy.deepcopy(self.model).eval()
        # Modules look their parameters up every time, for a percent of a small model's update.
        self._parameters: list[Tensor] = list(self.model.parameters())
        self._ema: list[Tensor] = list(self.ema.parameters())
        self._forward: Any = ranks.wrap(self.model, data.device)
        if compiled:  # on a GPU its launches are replayed as CUDA graphs
            mode = "reduce-overhead" if data.device.type == "cuda" else "default"
            self._forward = torch.compile(self._forward, mode=mode)
        self._bfloat16 = uses_bfloat16(config.optimizer, data.device)
        self.optimizers = Optimizers(self.model, config.optimizer, torch.bfloat16 if self._bfloat16 else torch.float32)
        self.sampler = make_sampler(config.data, data, horizon)
        self.generator = torch.Generator(self.sampler.draws_on).manual_seed(config.seed)
        if on_device is None:
            alone_on_a_gpu = data.device.type == "cuda" and ranks.size == 1 and not compiled
            on_device = alone_on_a_gpu and self.model.trunk.mixer.recordable and gpu_is_right(data.device)
        self._on_device = on_device
        self.carried: Carried | None = None
        if isinstance(self.sampler, TbpttSampler):
            mine = part_of_rows(len(self.sampler.next), ranks.rank, ranks.size)
            self._mine = mine if mine.stop > mine.start else slice(0, 1)  # `part` leaves none empty
            self.carried = Carried(self.model.initial_state(self._mine.stop - self._mine.start))
        self._gathered: list[list[Tensor]] = []
        self._start_over()

    def _start_over(self) -> None:
        config, device, on_device = self.config.optimizer, self.data.device, self._on_device
        self._rates = DeviceRates(config, device, self.update) if on_device else None
        recorded = on_device and device.type == "cuda"
        self._learn: Callable[[int], Found] = Graphs(self._update, self.generator) if recorded else self._update

    @property
    def skipped(self) -> int:
        """Updates that changed nothing, since they were not finite; waits for the device."""
        return int(self._skipped)

    def step(self) -> tuple[Tensor, Tensor]:
        """One update; returns its loss and the norm of its gradient before clipping, as tensors on the device.

        They may be overwritten by the next update.
        """
        if not self.model.training:
            self._forward.train()
        self.ranks.seed_dropout(self.config.seed, self.update)
        loss, norm, self.mask = self._learn(self.sampler.prepare(self.generator))
        self.update += 1
        return loss, norm

    def _update(self, size: int) -> Found:
        # On the device a function of nothing but what is there. The steps are those that one process draws.
        whole = self.sampler.draw(self.generator, size)
        rates = rates_at(self.update, self.config.optimizer) if self._rates is None else self._rates.take()
        batch = part(whole, self.ranks.rank, self.ranks.size)
        before = None if self.carried is None else self.carried.state
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self._bfloat16):
            rows = batch.observations, batch.actions, batch.returns_to_go, batch.timesteps
            begun = {"starts": batch.starts, "previous_action": batch.previous_action}
            actions, after = self._forward(*rows, before, **begun)
        measure = masked_cross_entropy if self.data.discrete else masked_mse
        loss = measure(actions, batch.actions, batch.mask, None if batch is whole else whole.mask.sum())
        for parameter in self._parameters:  # as the optimiser's zero_grad, in a tenth of its time
            parameter.grad = None
        # The ranks' gradients are averaged, and their losses are to be added up.
        (loss if self.ranks.size == 1 else loss * self.ranks.size).backward()
        limit = self.config.optimizer.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit, foreach=True).detach()
        loss = self.ranks.sum(loss.detach())
        bad = None
        if self.config.optimizer.non_finite == "skip":
            bad = 1 - (loss.isfinite() & norm.isfinite()).float()
            self._skipped += bad
        # Looking at it waits for the device: only where somebody asked for it.
        if self._on_device or bad is None or not bool(bad):
            self.optimizers.step(rates, bad if self._on_device else None)
            self._update_ema(rates, bad)
        if self.carried is not None:
            self.carried.keep(after, bad)
        return loss, norm, whole.mask

    @torch.no_grad()
    def _update_ema(self, rates: Rates, bad: Tensor | None) -> None:
        if not isinstance(rates.ema, Tensor):
            torch._foreach_lerp_(self._ema, self._parameters, rates.ema)
            return
        # a - r (a - w): a step of SGD, which takes its rate and whether it is taken from the device.
        plain: dict[str, Any] = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "is_first_step": False}
        plain |= {"weight_decay": 1.0, "lr": rates.ema, "maximize": True, "found_inf": bad}
        torch._fused_sgd_(self._ema, self._parameters, [], **plain)

    def recurrence(self) -> dict[str, float]:
        """Gate, lambdas, gammas and thetas of every layer's recurrence encoding, by tag; nothing without one."""
        return {
            f"recurrence/layer{i}/{name}": value
            for i, block in enumerate(self.model.trunk.blocks)
            if isinstance(block, Block) and isinstance(block.mixer, Encoded)
            for name, value in block.mixer.encoding.scalars().items()
        }

    def gather(self) -> None:
        """What every rank carries, for the writer's next `states`; called on all ranks."""
        if self.carried is not None:
            self._gathered = self.ranks.gather(self.carried.tensors())

    def states(self) -> dict[str, Any]:
        """Everything that `restore` needs."""
        states: dict[str, Any] = {"raw": dict(self.model.state_dict()), "ema": dict(self.ema.state_dict())}
        states |= {"optimizer": self.optimizers.state_dict(), "sampler": self.generator.get_state()}
        states |= {"torch": torch.get_rng_state(), "skipped": self.skipped}
        if isinstance(self.sampler, TbpttSampler):  # where every row goes on, and the state with which
            size = self.ranks.size
            rows = [part_of_rows(len(self.sampler.next), rank, size) for rank in range(size)]
            whole = [parts for mine, parts in zip(rows, self._gathered, strict=True) if mine.stop > mine.start]
            states["tbptt"] = [self.sampler.next, *map(torch.cat, zip(*whole, strict=True))]
        if self.data.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.data.device)
        return states

    def restore(self, update: int, states: dict[str, Any]) -> None:
        """Goes on after `update` updates, where `states` were taken, bit for bit on the same device with one thread.

        Raises CheckpointError where they are of another model, or of another kind of device.
        """
        try:
            self.model.load_state_dict(states["raw"])
            self.ema.load_state_dict(states["ema"])
            self.optimizers.load_state_dict(states["optimizer"])
            self.generator.set_state(states["sampler"])
            torch.set_rng_state(states["torch"])
            if self.data.device.type == "cuda":
                torch.cuda.set_rng_state(states["cuda"], self.data.device)
            self.update = update
            self._start_over()
            self._skipped.fill_(states["skipped"])
            if self.carried is not None and isinstance(self.sampler, TbpttSampler):
                following, *parts = states["tbptt"]
                self.sampler.next.copy_(following)
                self.carried.restore([part[self._mine] for part in parts])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            raise CheckpointError(
                f"the checkpoint of update {update} does not fit this run on {self.data.device} ({reason}); "
                "go on where it was trained, or start again with another --out"
            ) from error
