"""Data-parallel training: the processes that torchrun starts for one run, and what they do together.

    torchrun --nproc-per-node 2 -m aaren_rl.train --env hopper-medium

Every rank draws the same batch and takes its part of it, so the batch and the result are those of one process, to
rounding. Rank 0 is the writer: it alone logs, evaluates, saves and prints.
"""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..cli import launched
from ..errors import PeerError, UsageError

T = TypeVar("T")

CPU = torch.device("cpu")
# The others wait for as long as the writer evaluates; one that dies closes its connections, which is noticed at once.
PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run; alone by default, where every method is free."""

    rank: int = 0  # this process
    size: int = 1  # of the run
    local_rank: int = 0  # this process among those of its machine

    @property
    def is_writer(self) -> bool:
        """Whether this process logs, evaluates, saves and prints."""
        return self.rank == 0

    def share(self, work: Callable[[], T]) -> T:
        """What `work` returns on the writer alone, on all; raises PeerError where it failed there."""
        if self.size == 1:
            return work()
        outcome: list[T] = []
        try:
            if self.is_writer:
                outcome.append(work())
        finally:
            box = [outcome]
            dist.broadcast_object_list(box, src=0, device=CPU)
        if not box[0]:
            raise PeerError
        return box[0][0]

    def in_turn(self, work: Callable[[], T]) -> T:
        """`work` on every process: on the writer first, which makes what the others find, and alone prints."""
        done: list[T] = []
        self.share(lambda: done.append(work()))
        if not self.is_writer:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                done.append(work())
        return done[0]

    def agree(self, signal: int | None) -> int | None:
        """The signal that any process has got, on all of them, so that all stop at the same update."""
        if self.size == 1:
            return signal
        highest = torch.tensor(signal or 0)
        dist.all_reduce(highest, dist.ReduceOp.MAX)  # on the CPU: a GPU's queue is not waited for
        return int(highest) or None

    def sum(self, value: Tensor) -> Tensor:
        """The sum of all processes' values, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """What every process gives, in the order of their ranks, on all of them; called on all."""
        if self.size == 1:
            return [tensors]
        found: list[list[Tensor]] = [[]] * self.size
        dist.all_gather_object(found, [part.cpu() for part in tensors])
        return found

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """`model`, its gradients averaged over the processes in every backward pass."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def seed_dropout(self, seed: int, update: int) -> None:
        """Seeds torch for an update, of several processes: masks of their own, and nothing to store for a resume."""
        if self.size > 1:
            (state,) = np.random.SeedSequence((seed, self.rank, update)).generate_state(1, np.uint64)
            torch.manual_seed(int(state))

    def device(self, chosen: torch.device) -> torch.device:
        """This process's device of the chosen kind: a GPU each, or UsageError where that cannot be."""
        if self.size == 1 or chosen.type != "cuda":
            return chosen
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", self.size)), torch.cuda.device_count()
        if chosen.index is not None:
            raise UsageError(f"--device {chosen}: every process has a GPU of its own; use --device cuda")
        if here > gpus:
            raise UsageError(f"--nproc-per-node {here}: this machine has {gpus} GPUs; use as many, or --device cpu")
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device


ALONE = Ranks()


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """The processes of this run, by the environment variables that torchrun sets; alone without them."""
    if (size := launched()) == 1:
        yield ALONE
        return
    # Both: gradients on a GPU go by NCCL, and what the processes say to each other goes by Gloo.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        # The wrapped model is part of reference cycles and holds the group: left to the interpreter's end, the group's
        # threads outlive it and abort the process.
        gc.collect()
        dist.destroy_process_group()
