"""The mutable parts of a training run: model, EMA weights, optimizer, sampler and every random state."""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..agents import Aaren, Attention, Block, DecisionModel, Encoded, kernels
from ..agents.mixers import MinGRU
from ..base.errors import CheckpointError, one_line
from .acceleration import DeviceRates, Found, Graphs, uses_bfloat16
from .config import RunConfig
from .data.batches import StepData, part, part_of_rows
from .data.sampling import Carried, TbpttSampler, make_sampler
from .optimizers import Optimizers, Rates, rates_at
from .ranks import ALONE, Ranks

# Mixers that launch the same for the same shapes and wait for nothing, as CUDA graphs need.
RECORDED = (Aaren, Attention, MinGRU)


def mean_error(
    predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None = None, *, discrete: bool = False
) -> Tensor:
    """The mean error of actions (B, T, A) over the steps where the bool `mask` (B, T) is True.

    Of continuous actions the squared error, a mean over dimensions; of discrete ones, whose `target` is one-hot and
    whose `predicted` are logits, the cross entropy in nats. If this is a part of a batch with `count` true positions,
    the errors of all parts sum to that of the batch.
    """
    if discrete:
        errors = -(predicted.float().log_softmax(-1) * target).sum(-1)
    else:
        errors = (predicted.float() - target).square().mean(-1)
    return torch.where(mask, errors, 0.0).sum() / (mask.sum() if count is None else count)


class Stopwatch:
    """Sums the seconds spent in `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Trainer:
    """Takes gradient steps on a decision model. `states` has everything that determines the next one.

    Args:
        data: the steps to train on, on the training device.
        horizon: the environment's time limit, in steps.
        max_timestep: rows of a timestep embedding; None: `horizon`.
        ranks: the processes that share every batch, on GPUs of one type. Without dropout the weights are those of one
            process, up to rounding. With dropout each process draws its own masks.
        on_device: gradient steps never synchronize with the device; a GPU replays them as CUDA graphs. True by default
            for one process on a GPU and a model that never synchronizes. On a CPU, for tests.
    """

    def __init__(
        self,
        config: RunConfig,
        data: StepData,
        action_dim: int,
        horizon: int,
        ranks: Ranks = ALONE,
        *,
        max_timestep: int | None = None,
        on_device: bool | None = None,
    ) -> None:
        self.config, self.data, self.ranks = config, data, ranks
        self.update = 0  # gradient steps done
        self.mask = torch.zeros(0, 0, dtype=torch.bool)  # of the last batch
        torch.manual_seed(config.seed)
        sizes = data.observations.shape[1], action_dim, max_timestep or horizon
        shape = config.model(*sizes, discrete=data.discrete)
        self.model = DecisionModel(shape).to(data.device)
        self.ema = copy.deepcopy(self.model).eval()
        # A lookup in the modules would take one percent of every step of a small model.
        self._parameters: list[Tensor] = list(self.model.parameters())
        self._ema: list[Tensor] = list(self.ema.parameters())
        self._forward: Any = ranks.wrap(self.model, data.device)
        self.dtype = torch.bfloat16 if uses_bfloat16(config.optimizer, data.device) else torch.float32
        self.optimizers = Optimizers(self.model, config.optimizer, self.dtype)
        self.sampler = make_sampler(config.data, data, horizon)
        self.generator = torch.Generator(self.sampler.draws_on).manual_seed(config.seed)
        if on_device is None:
            alone_on_a_gpu = data.device.type == "cuda" and ranks.size == 1
            able = type(self.model.trunk.mixer) in RECORDED
            on_device = alone_on_a_gpu and able and kernels.available("triton")
        self.on_device = on_device
        self.carried: Carried | None = None
        if isinstance(self.sampler, TbpttSampler):
            mine = part_of_rows(len(self.sampler.next), ranks.rank, ranks.size)
            self._mine = mine if mine.stop > mine.start else slice(0, 1)  # `part` leaves no process without data
            self.carried = Carried(self.model.initial_state(self._mine.stop - self._mine.start))
        self._gathered: list[list[Tensor]] = []
        self._start_over()

    def _start_over(self) -> None:
        # Records gradient steps again, from the present one on.
        config, device, on_device = self.config.optimizer, self.data.device, self.on_device
        self._rates = DeviceRates(config, device, self.update) if on_device else None
        recorded = on_device and device.type == "cuda"
        self._learn: Callable[[int], Found] = Graphs(self.learn, self.generator) if recorded else self.learn

    def step(self) -> tuple[Tensor, Tensor]:
        """Take one gradient step. Returns the loss and the gradient norm before clipping, as tensors on the device.

        The next call may overwrite them.
        """
        if not self.model.training:
            self._forward.train()
        self.ranks.seed_dropout(self.config.seed, self.update)
        loss, norm, self.mask = self._learn(self.sampler.prepare(self.generator))
        self.update += 1
        return loss, norm

    def learn(self, size: int) -> Found:
        """The gradient step of `step` on a batch of `size`, launch by launch, not counted in `update`."""
        # On the device, it reads only tensors that are there. Samples do not depend on the number of processes.
        whole = self.sampler.draw(size, self.generator)
        rates = rates_at(self.update, self.config.optimizer) if self._rates is None else self._rates.take()
        batch = part(whole, self.ranks.rank, self.ranks.size)
        before = None if self.carried is None else self.carried.state
        with torch.autocast(self.data.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            rows = batch.observations, batch.actions, batch.returns_to_go, batch.timesteps
            begun = {"starts": batch.starts, "previous_action": batch.previous_action}
            actions, after = self._forward(*rows, before, **begun)
        count = None if batch is whole else whole.mask.sum()
        loss = mean_error(actions, batch.actions, batch.mask, count, discrete=self.data.discrete)
        for parameter in self._parameters:  # same as zero_grad of the optimizer, in a tenth of its time
            parameter.grad = None
        # DDP averages the gradients of the ranks, but the losses must be summed.
        (loss if self.ranks.size == 1 else loss * self.ranks.size).backward()
        limit = self.config.optimizer.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit, foreach=True).detach()
        loss = self.ranks.sum(loss.detach())
        self.optimizers.step(rates)
        self._update_ema(rates)
        if self.carried is not None:
            self.carried.keep(after)
        return loss, norm, whole.mask

    @torch.no_grad()
    def _update_ema(self, rates: Rates) -> None:
        if not isinstance(rates.ema, Tensor):
            torch._foreach_lerp_(self._ema, self._parameters, rates.ema)
            return
        # a - r (a - w) as a step of SGD, which accepts its rate as a tensor on the device.
        plain: dict[str, Any] = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "is_first_step": False}
        plain |= {"weight_decay": 1.0, "lr": rates.ema, "maximize": True}
        torch._fused_sgd_(self._ema, self._parameters, [], **plain)

    def recurrence(self) -> dict[str, float]:
        """Gate, lambdas, gammas and thetas of the recurrence encoding of every layer, by tag. Empty without one."""
        return {
            f"recurrence/layer{i}/{name}": value
            for i, block in enumerate(self.model.trunk.blocks)
            if isinstance(block, Block) and isinstance(block.mixer, Encoded)
            for name, value in block.mixer.encoding.scalars().items()
        }

    @property
    def precision(self) -> str:
        """What gradient steps compute in: bfloat16 or float32."""
        return str(self.dtype).removeprefix("torch.")

    def gather(self) -> None:
        """The carried states of all ranks, for the next `states` of the writer. Call it on all ranks."""
        if self.carried is not None:
            self._gathered = self.ranks.gather(self.carried.tensors())

    def states(self) -> dict[str, Any]:
        """Everything that `restore` needs."""
        states: dict[str, Any] = {"raw": dict(self.model.state_dict()), "ema": dict(self.ema.state_dict())}
        states |= {"optimizer": self.optimizers.state_dict(), "sampler": self.generator.get_state()}
        states["torch"] = torch.get_rng_state()
        states["normalization"] = torch.stack([self.data.observation_mean, self.data.observation_std])
        if isinstance(self.sampler, TbpttSampler):  # position and carried state of every batch entry
            size = self.ranks.size
            rows = [part_of_rows(len(self.sampler.next), rank, size) for rank in range(size)]
            whole = [parts for mine, parts in zip(rows, self._gathered, strict=True) if mine.stop > mine.start]
            states["tbptt"] = [self.sampler.next, *map(torch.cat, zip(*whole, strict=True))]
        if self.data.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.data.device)
        return states

    def restore(self, update: int, states: dict[str, Any]) -> None:
        """Restore `states` saved after `update` gradient steps; bit-exact on the same device with one thread.

        Raises CheckpointError if they are of another model or another type of device.
        """
        try:
            self.model.load_state_dict(states["raw"])
            self.ema.load_state_dict(states["ema"])
            self.optimizers.load_state_dict(states["optimizer"])
            self.generator.set_state(states["sampler"])
            torch.set_rng_state(states["torch"])
            normalization = states["normalization"].to(self.data.device)
            self.data.normalize_by(*normalization)
            if self.data.device.type == "cuda":
                torch.cuda.set_rng_state(states["cuda"], self.data.device)
            self.update = update
            self._start_over()
            if self.carried is not None and isinstance(self.sampler, TbpttSampler):
                following, *parts = states["tbptt"]
                self.sampler.next.copy_(following)
                self.carried.restore([part[self._mine] for part in parts])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            raise CheckpointError(
                f"the checkpoint of gradient step {update} does not fit this run on {self.data.device} ({reason}); "
                "resume where it was trained, or start again with another --out"
            ) from error
