"""A training run from its command line on: what is asked for, whether it fits, the folder, the data, the loop."""

from __future__ import annotations

import argparse
import dataclasses
import sys

import torch
import yaml

from ..cli import StopRequest, choose_device
from ..envs import Episodes, Reference, Task, load_task
from ..envs.system import require_memory
from ..errors import SMALLER, CheckpointError
from ..files import write_text
from ..runs.folder import RunFolder, holds_training
from .config import DataConfig, RunConfig
from .loop import How, train
from .plan import Plan, make_plan, remarks
from .ranks import Ranks, join_ranks
from .settings import Nested, differences, read_config, to_dict
from .training_run import OnLog


def run_training(arguments: argparse.Namespace, plan: Plan | None = None, on_log: OnLog | None = None) -> int:
    """Trains as a command line asks for, by its plan where that is made already; returns the exit code."""
    with join_ranks() as ranks:
        return _train_together(arguments, ranks.in_turn(lambda: plan or make_plan(arguments)), ranks, on_log)


def _train_together(arguments: argparse.Namespace, plan: Plan, ranks: Ranks, on_log: OnLog | None) -> int:
    if ranks.is_writer:
        for remark in remarks(plan):
            print(remark, file=sys.stderr)
    device = ranks.in_turn(lambda: ranks.device(choose_device(arguments.device)))
    ranks.in_turn(lambda: require_room(plan.config, device))
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with ranks.in_turn(lambda: RunFolder(plan.run, held=ranks.is_writer)) as folder:
        config = ranks.share(lambda: _choose_config(folder, plan, resume=arguments.resume))
        task, episodes = ranks.in_turn(lambda: load_data(config.data))
        # Not before the data: a mistyped path leaves no run behind.
        text = yaml.safe_dump(to_dict(config), sort_keys=False)
        ranks.share(lambda: write_text(folder.config_file, text))
        with StopRequest() as stop:
            how = How(arguments.resume, arguments.compile, arguments.save_every, on_log)
            return train(config, task, episodes, device, plan.run, ranks, stop, how)


def require_room(config: RunConfig, device: torch.device) -> None:
    """Refuses a run that cannot fit, before anything is made for it.

    Raises:
        ResourcesError: it needs more memory than is free.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    require_memory(model_bytes(config), "the model", SMALLER, free=free)
    require_memory(batch_bytes(config), "a batch", SMALLER, free=free)


def model_bytes(config: RunConfig) -> int:
    """Of weights, their gradient, their moving average and one moment, in float32; of the blocks' matrices alone.

    A block has 2 matrices of width x width in its mixer at the least, and 8 in its MLP.
    """
    return 4 * 4 * 10 * config.network.layers * config.network.width**2


def batch_bytes(config: RunConfig) -> int:
    """Of an update's activations, kept for the backward: a block's input and its MLP's hidden layer, in bfloat16."""
    steps = max(config.data.steps_per_update, config.data.context_length if config.data.context == "window" else 0)
    return 2 * (1 + 4) * 3 * steps * config.network.layers * config.network.width


def _choose_config(folder: RunFolder, plan: Plan, *, resume: bool) -> RunConfig:
    """The planned configuration or, on a resume, that of the run that is there, if it has saved anything yet.

    Raises:
        UsageError: a run is there, or on a resume none is.
        CheckpointError: a setting that stood on the command line is not the run's; the message names each.
    """
    if not resume:
        folder.require_new()
        return plan.config
    folder.require_run()
    config = _extended(read_config(folder.config_file), plan.given)
    if differing := differences(to_dict(config), plan.given):
        if not holds_training(folder.path):
            print(f"{folder.path}: nothing was saved yet; starting with {'; '.join(differing)}", file=sys.stderr)
            return plan.config
        raise CheckpointError(f"{folder.path}: the run to resume differs in {'; '.join(differing)}")
    return config


def _extended(config: RunConfig, given: Nested) -> RunConfig:
    """The configuration of a run that is resumed, with more updates where more were asked for."""
    asked = given.get("optimizer", {}).get("updates", 0)
    if asked <= config.optimizer.updates:
        return config
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, updates=asked))


def load_data(data: DataConfig) -> tuple[Task, Episodes]:
    """The task and its episodes.

    Raises:
        EnvsError: see `envs.load_task`.
    """
    reference = None
    if data.ref_min_score is not None and data.ref_max_score is not None:
        reference = Reference("reference returns given by the user", data.ref_min_score, data.ref_max_score)
    return load_task(
        data.env,
        data.source,
        env_id=data.env_id,
        reference=reference,
        clip_actions=data.clip_actions,
        max_episode_steps=data.max_episode_steps,
        local_steps=data.local_steps,
    )
