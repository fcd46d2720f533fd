"""Updates as a GPU would make them, of tensors that have shapes and no memory, on a machine that has none."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels are neither launched nor machine code

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

try:
    from triton.runtime.jit import JITFunction
except ImportError as error:
    sys.exit(f"{sys.argv[0]}: Triton is not installed ({error}); pip install -e '.[dev]'")

from aaren_rl.agents import kernels
from aaren_rl.envs import Episodes
from aaren_rl.train.config import make_config
from aaren_rl.train.data import StepData
from aaren_rl.train.trainer import Trainer

SIZES: dict[str, Callable[[Any], int]] = {  # of a batch, by context
    "window": lambda data: max(1, round(data.steps_per_update / data.context_length)),
    "mixed": lambda data: data.steps_per_update,
    "episode": lambda data: -(-data.steps_per_update // 128) * 128,
}
STEPS, EPISODES, WIDTHS = 4000, 10, (11, 3, 1)  # of the data; its observations, actions and rewards are Hopper's


@contextlib.contextmanager
def as_on_a_gpu(launched: Callable[..., None]) -> Iterator[FakeTensorMode]:
    """Tensors are without memory and taken for a GPU's; `launched` is called in place of every launch by Triton."""
    kernels.load("scan_triton")
    mode = FakeTensorMode()
    with (
        mock.patch("aaren_rl.agents.scan.prefix.choose", lambda *_: "triton"),
        mock.patch("aaren_rl.agents.kernels.scan_triton._check", lambda *_: None),
        mock.patch.object(JITFunction, "run", launched),
        mock.patch.object(copy, "deepcopy", partial(deep_copy, copy.deepcopy)),
        mock.patch.object(torch.nn.Module, "to", lambda self, _: self),  # which parameters without memory refuse
        mode,
    ):
        yield mode


def deep_copy(right: Callable[..., Any], model: Any) -> Any:  # noqa: ANN401  what is copied, and its copy
    """A copy; of a model whose tensors have no memory, which `copy.deepcopy` would read and write."""
    if not isinstance(model, torch.nn.Module):
        return right(model)
    made = {id(p): torch.nn.Parameter(torch.empty_like(p), p.requires_grad) for p in model.parameters()}
    return right(model, made | {id(buffer): torch.empty_like(buffer) for buffer in model.buffers()})


def make_data() -> StepData:
    """Steps that nobody made."""
    rng = np.random.default_rng(0)
    observations, actions, rewards = (rng.normal(size=(STEPS, k)).astype(np.float32) for k in WIDTHS)
    offsets = np.arange(0, STEPS + 1, STEPS // EPISODES)
    return StepData(Episodes(observations, actions, rewards[:, 0], offsets, np.ones(EPISODES, bool)), 1000.0)


def make_trainer(mode: FakeTensorMode, data: StepData, agent: str, preset: str, settings: dict[str, Any]) -> Trainer:
    """An agent's, by a preset and what is given on top; called where tensors are without memory."""
    config = make_config({"agent": agent, **settings}, preset)
    for name, value in vars(data).items():
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            setattr(data, name, mode.from_tensor(value))
    data.normalize_by(data.observation_mean, data.observation_std)
    trainer = Trainer(config, data, action_dim=WIDTHS[1], horizon=1000, on_device=True)
    # The size of a row of episodes is read from what was drawn on the CPU, which has memory elsewhere.
    object.__setattr__(trainer.sampler, "prepare", lambda *_: SIZES[config.data.context](config.data))
    return trainer
