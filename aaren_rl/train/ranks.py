"""Data-parallel training: the processes that torchrun starts for one run, and their communication.

    torchrun --nproc-per-node 2 -m aaren_rl.train --env hopper-medium

Every rank samples the same batch and takes its part of it. The batch is that of one process, and so is the result, up
to rounding. Rank 0 is the writer: only it logs, evaluates, saves and prints.
"""

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
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from ..base.errors import PeerError, UsageError, one_line

T = TypeVar("T")

CPU = torch.device("cpu")
# The others wait while the writer evaluates. A process that dies closes its connections, so the others stop at once.
PATIENCE = timedelta(days=1)
ARRIVAL = timedelta(minutes=10)  # of the other processes, at the beginning


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in its run. By default it is the only process, and every method costs nothing."""

    rank: int = 0  # rank of this process
    size: int = 1  # number of processes
    local_rank: int = 0  # rank among the processes of its machine

    @property
    def is_writer(self) -> bool:
        """Whether this process logs, evaluates, saves and prints."""
        return self.rank == 0

    def share(self, work: Callable[[], T]) -> T:
        """Run `work` on the writer and return its result on all processes. Raises PeerError if it failed there."""
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
        """Run `work` on every process: first on the writer, which makes files for the others. Only it prints."""
        done: list[T] = []
        self.share(lambda: done.append(work()))
        if not self.is_writer:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                done.append(work())
        return done[0]

    def agree(self, signal: int | None) -> int | None:
        """A signal that any process received, returned on all, so that all stop at the same gradient step."""
        if self.size == 1:
            return signal
        highest = torch.tensor(signal or 0)
        dist.all_reduce(highest, dist.ReduceOp.MAX)  # on the CPU: does not wait for the GPU queue
        return int(highest) or None

    def sum(self, value: Tensor) -> Tensor:
        """Sum the values of all processes, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """The values of all processes, ordered by rank. Call it on all of them."""
        if self.size == 1:
            return [tensors]
        found: list[list[Tensor]] = [[]] * self.size
        dist.all_gather_object(found, [part.cpu() for part in tensors])
        return found

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap `model` so that every backward pass averages gradients over the processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def seed_dropout(self, seed: int, update: int) -> None:
        """With several processes, seed torch for a gradient step: own dropout masks, and no random state to store."""
        if self.size > 1:
            (state,) = np.random.SeedSequence((seed, self.rank, update)).generate_state(1, np.uint64)
            torch.manual_seed(int(state))

    def device(self, chosen: torch.device) -> torch.device:
        """The device of this process, of the chosen kind. Raises UsageError if there is not one GPU per process."""
        if self.size == 1 or chosen.type != "cuda":
            return chosen
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", self.size)), torch.cuda.device_count()
        if chosen.index is not None:
            raise UsageError(f"--device {chosen}: {here} processes need a GPU each; use --device cuda")
        if here > gpus:
            raise UsageError(
                f"--device {chosen}: {here} processes need a GPU each, and there are {gpus}; use --device cpu"
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device


ALONE = Ranks()


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the processes of this run by the variables of torchrun. Without them, this is the only process.

    UsageError: they name no number of processes, or these do not meet.
    """
    given = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    if not given.isdecimal() or (size := int(given)) < 1:
        raise UsageError(f"WORLD_SIZE={given}: not a number of processes; unset RANK and WORLD_SIZE, or use torchrun")
    if size == 1:
        yield ALONE
        return
    # Both backends: NCCL for gradients on a GPU, Gloo for messages between the processes.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, _ = next(rendezvous("env://", timeout=ARRIVAL))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"the {size} processes of WORLD_SIZE did not meet at MASTER_ADDR and MASTER_PORT: {one_line(error)}; start "
            "them all, or unset RANK and WORLD_SIZE"
        ) from error
    try:
        yield Ranks(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        # The wrapped model is part of reference cycles and holds the group. If they lived until the interpreter exits,
        # threads of the group would outlive it and abort the process.
        gc.collect()
        dist.destroy_process_group()
