"""One gradient step, and everything that determines the next: model, EMA, optimizers, sampler, every random state.

Faster by bfloat16, reuse of freed memory and, on a GPU, CUDA graphs with learning rates on the device.
"""

import copy
import ctypes
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..agents.kernels import available
from ..agents.mixers.rsa import Encoded
from ..agents.model.decision import MAX_EXPECTILE, Block, DecisionModel, ReturnEstimate, expectile_loss
from ..base.errors import CheckpointError, NumericsError
from ..policies.folder import SavedPolicy
from .config import OptimizerConfig, RunConfig
from .data import Carried, StepData, TbpttSampler, make_sampler, part, part_of_rows
from .optimizers import Optimizers, Rates, rates_at
from .ranks import ALONE, Ranks

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h of glibc
KEPT = 1 << 30  # bytes
EAGER = 2  # eager calls per size before recording: they compile kernels and allocate optimizer moments
MOST = 32  # most sizes recorded; every graph keeps its memory
RETURN_UPDATES = 1500  # gradient steps of the return estimator: a few seconds on one core
RETURN_RECIPE = (1280, 3e-3, 1e-4)  # steps per gradient step, peak rate with cosine decay to zero, weight decay

Found = tuple[Tensor, Tensor, Tensor]  # loss, gradient norm, mask


def action_loss(
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


class Trainer:
    """Takes gradient steps on a decision model. `states` has everything that determines the next one.

    Args:
        data: the steps to train on, on the training device.
        horizon: the longest episode that there can be in the data, in steps.
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
            on_device = alone_on_a_gpu and self.model.trunk.mixer.capturable and available("triton")
        self.on_device = on_device
        self.carried: Carried | None = None
        if isinstance(self.sampler, TbpttSampler):
            mine = part_of_rows(len(self.sampler.next), ranks.rank, ranks.size)
            self._mine = mine if mine.stop > mine.start else slice(0, 1)  # `part` leaves no process without data
            self.carried = Carried(self.model.initial_state(self._mine.stop - self._mine.start))
        self._gathered: list[list[Tensor]] = []
        self._record()

    def _record(self) -> None:
        # Records gradient steps from the present one on.
        config, device = self.config.optimizer, self.data.device
        self._rates = DeviceRates(config, device, self.update) if self.on_device else None
        recorded = self.on_device and device.type == "cuda"
        self._learn: Callable[[int], Found] = Graphs(self.learn, self.generator) if recorded else self.learn

    def fit_return_estimate(self) -> None:
        """Fit the return estimate to all episodes drawn, in steps of its own before the first. Raises NumericsError."""
        if self.model.max_return_estimate is None or self.ema.max_return_estimate is None:
            return
        updates = min(RETURN_UPDATES, self.config.optimizer.updates)
        fit_return(self.model.max_return_estimate, self.data, MAX_EXPECTILE, self.config.seed, updates)
        self.ema.max_return_estimate.load_state_dict(self.model.max_return_estimate.state_dict())

    def start_from(self, policy: SavedPolicy, name: str) -> None:
        """Start with the weights and the normalization of a policy. Raises CheckpointError for another shape."""
        own, there = dataclasses.asdict(self.model.config), dataclasses.asdict(policy.model.config)
        # Settings that weights do not depend on may differ: dropout, and rollout settings of tree attention.
        free = ["dropout", "action_dropout", "tree_budget", "tree_sampler"]
        if not own["timestep_embedding"]:
            free += ["max_timestep", "timestep_std"]
        if differing := [f"{k} ({v}, here {own[k]})" for k, v in there.items() if k not in free and own[k] != v]:
            raise CheckpointError(f"--from {name}: the policy's model has another {', '.join(differing)}")
        statistics = (
            torch.tensor(x, dtype=torch.float64) for x in (policy.card.observation_mean, policy.card.observation_std)
        )
        self.data.normalize_by(*(x.to(self.data.observation_mean) for x in statistics))
        for model in (self.model, self.ema):
            model.load_state_dict(policy.model.state_dict())

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
        loss = action_loss(actions, batch.actions, batch.mask, count, discrete=self.data.discrete)
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

    def gather(self) -> None:
        """The carried states of all ranks, for the next `states` of the writer. Call it on all ranks."""
        if self.carried is not None:
            self._gathered = self.ranks.gather(self.carried.tensors())

    def states(self) -> dict[str, Any]:
        """Everything that `restore` needs; on several ranks right only after `gather`."""
        states: dict[str, Any] = {"raw": dict(self.model.state_dict()), "ema": dict(self.ema.state_dict())}
        # "sampler" is the generator's; the state of a sampler is "tbptt".
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
        """Restore `states` saved after `update` gradient steps; bit-exact on the same device and threads.

        Raises KeyError, TypeError, ValueError, RuntimeError or AttributeError if they are of another model or another
        type of device.
        """
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
        self._record()
        if self.carried is not None and isinstance(self.sampler, TbpttSampler):
            following, *parts = states["tbptt"]
            self.sampler.next.copy_(following)
            self.carried.restore([part[self._mine] for part in parts])


def fit_return(
    model: ReturnEstimate, data: StepData, expectile: float, seed: int, updates: int = RETURN_UPDATES
) -> None:
    """Fit an estimator of an expectile of the returns-to-go, such as MAX_EXPECTILE, to a whole dataset with AdamW.

    Raises NumericsError if the final loss is not finite.
    """
    count, rate, decay = RETURN_RECIPE
    generator = torch.Generator(data.device).manual_seed(seed)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        rows = torch.randint(len(data), (count,), generator=generator, device=data.device)
        loss = expectile_loss(model(data.observed(rows)), data.returns_to_go[rows], expectile)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(False)
    if not loss.isfinite():
        raise NumericsError(
            "returns-to-go of the dataset are too large for the return estimator: raise --return-scale, or turn it "
            "off with --no-max-return-estimate"
        )


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory for the next gradient step. Saves 3 to 8% of a default step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def uses_bfloat16(config: OptimizerConfig, device: torch.device) -> bool:
    """Whether to use bfloat16. With "auto", only if the processor supports it natively."""
    if config.precision != "auto":
        return config.precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # The oneDNN test also accepts emulated bfloat16, which is slower than float32, so check the instructions.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class DeviceRates:
    """A table of the rates of every gradient step and the index `update` of the next one, both on the device.

    The rates are float64 on a CPU.
    """

    def __init__(self, config: OptimizerConfig, device: torch.device, update: int) -> None:
        rows = [rates_at(number, config) for number in range(config.updates)]
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self._table = torch.tensor(rows, dtype=dtype, device=device)
        self._next = torch.tensor([update], device=device)

    def take(self) -> Rates:
        """The rates of the next gradient step. After the last step, its rates again."""
        row = self._table.index_select(0, self._next)
        self._next.add_(1).clamp_(max=len(self._table) - 1)
        return Rates(*row[0].unbind())


class Graphs:
    """Calls a function of a size. From the third call per size it replays a CUDA graph of the launches.

    The function launches the same at every call of a size, and waits for nothing. The next replay overwrites the
    tensors that a replay returned. `generator` is what it draws by, besides the device's default one.
    """

    def __init__(self, update: Callable[[int], Found], generator: torch.Generator) -> None:
        self._update, self._generator = update, generator
        self._calls: Counter[int] = Counter()
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Found]] = {}

    def __call__(self, size: int) -> Found:
        if size not in self._recorded:
            self._calls[size] += 1
            if self._calls[size] <= EAGER or len(self._recorded) == MOST:
                return self._launch(size)
            self._recorded[size] = self._capture(size)
        graph, found = self._recorded[size]
        graph.replay()
        return found

    def _launch(self, size: int) -> Found:
        """The function's result, launched on a stream of its own; what is launched next comes after it."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            found = self._update(size)
        here.wait_stream(aside)
        return found

    def _capture(self, size: int) -> tuple[torch.cuda.CUDAGraph, Found]:
        """The graph, and the function's result, which every replay overwrites."""
        graph = torch.cuda.CUDAGraph()
        if self._generator.device.type == "cuda":  # a CPU's is not drawn by inside of it
            graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            found = self._update(size)
        return graph, found
