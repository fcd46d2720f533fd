"""A training run from its job to its result: memory check, folder, data, loop."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch
import yaml

from ..base.entry import SMALLER
from ..base.errors import CheckpointError
from ..base.files import is_there, write_text
from ..base.ranges import RETURN_SCALE
from ..base.system import require_memory
from ..cli import StopRequest, choose_device
from ..envs import DataError, Episodes, Reference, Task, load_task
from ..evaluate.held_out import READING, if_moved
from ..policies.folder import CARD, read_card
from ..policies.names import AUTO
from ..runs.folder import RunFolder, holds_training
from .config import DataConfig, RunConfig
from .critic import FIT_UPDATES as CRITIC_UPDATES
from .critic import PER_UPDATE
from .loop import FIT_UPDATES, prepare, train
from .options import remarks
from .ranks import Ranks, join_ranks
from .settings import Job, build_config, differences, preset_settings, read_config, run_folder, settings_of, to_dict


def run_training(job: Job, config: RunConfig | None = None) -> int:
    """Train as a job describes. `config` is its configuration if already built. Returns the exit code."""
    with join_ranks() as ranks:
        return _train_together(job, ranks.in_turn(lambda: config or job.make_config()), ranks)


def _train_together(job: Job, asked: RunConfig, ranks: Ranks) -> int:
    if ranks.is_writer:
        for remark in remarks(asked, job.typed):
            print(remark, file=sys.stderr)
    device = ranks.in_turn(lambda: ranks.device(choose_device(job.device)))
    ranks.in_turn(lambda: require_room(asked, device))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    path = run_folder(asked, job.out)
    with ranks.in_turn(lambda: RunFolder(path, held=ranks.is_writer)) as folder:
        config = ranks.share(lambda: _choose_config(folder, asked, job))
        data = config.data
        unpinned = isinstance(data.source, str) and data.source.startswith((AUTO, "minari"))
        if job.resume and unpinned and is_there(path / "policy" / CARD):
            data = replace(data, source=read_card(path).same_source(data.source))
        task, episodes = ranks.in_turn(lambda: load_data(data, job.memory_map, resumed=job.resume))
        if data.return_scale is None:
            scale = choose_return_scale(episodes)
            config = replace(config, data=replace(config.data, return_scale=scale))
            if ranks.is_writer:
                print(f"return scale: {scale:g}, from the returns of the data (--return-scale X sets another)")
        training = prepare(config, task, episodes, device, path, ranks, job)
        del episodes  # of which the training may have a smaller copy
        # After reading the data, so that a mistyped path leaves no run folder, and other data no trace in it.
        text = yaml.safe_dump(to_dict(config), sort_keys=False)
        ranks.share(lambda: write_text(folder.config_file, text))
        with StopRequest() as stop:
            return train(training, stop, job.save_every)


def require_room(config: RunConfig, device: torch.device) -> None:
    """Raise ResourcesError if a run needs more memory than is free, before allocating anything."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    for what, needed in needed_bytes(config).items():
        require_memory(needed, what, SMALLER, free=free)


def needed_bytes(config: RunConfig) -> dict[str, int]:
    """The minimum memory of a run: 10 matrices per block in float32, with gradient, EMA and one optimizer moment.

    Activations kept for the backward pass: the input and the hidden MLP layer of every block, in bfloat16.
    """
    width, layers = config.network.width, config.network.layers
    data = config.data
    row = {"window": data.context_length, "tbptt": data.tbptt_length}.get(data.context, 0)
    steps = max(data.steps_per_update, row)
    return {"the model": 4 * 4 * 10 * layers * width**2, "a batch": 2 * (1 + 4) * 3 * steps * layers * width}


def _choose_config(folder: RunFolder, asked: RunConfig, job: Job) -> RunConfig:
    # A resumed run has its folder already, and a configuration once it has saved.
    if not job.resume:
        folder.require_new()
        return asked
    folder.require_run()
    config = read_config(folder.config_file)
    if job.given.get("updates", 0) > config.optimizer.updates:  # resuming may extend a run
        for note in _fewer_fitted(config):
            print(note, file=sys.stderr)
        config = build_config({**settings_of(config), "updates": job.given["updates"]})
    source = job.given["source"] if "source" in job.typed else config.data.source  # patterns are files by now
    if source != config.data.source:  # the checkpoint tells whose
        print(f"{folder.path}: the data are {source} from now on, no longer {config.data.source}", file=sys.stderr)
        config = build_config({**settings_of(config), "source": source})
    preset = {} if job.preset == "default" else preset_settings(job.preset, asked.agent)
    if differing := "; ".join(differences(config, preset | job.given)):
        if not holds_training(folder.path):
            print(f"{folder.path}: no checkpoint was saved yet; starting with {differing}", file=sys.stderr)
            return build_config({**settings_of(config), **preset, **job.given})
        if given := differences(config, job.given):
            raise CheckpointError(f"{folder.path}: the run to resume differs in {'; '.join(given)}")
        print(f"{folder.path}: keeps its settings, not those of --preset {job.preset}: {differing}", file=sys.stderr)
    return config


def _fewer_fitted(config: RunConfig) -> list[str]:
    """Notes on what a run of so few updates has fitted in fewer steps than a longer one would have."""
    fitted, network = config.optimizer.updates, config.model(1, 1, 1)
    notes = []
    if fitted < FIT_UPDATES and (network.max_return_estimate or network.mean_return_estimate):
        notes.append(
            f"note: the return estimates of this run, for auto and --guidance, were fitted for at most {fitted} "
            f"steps, not {FIT_UPDATES:,}; a new run of so many updates fits them better"
        )
    if network.critic and PER_UPDATE * fitted < CRITIC_UPDATES:
        notes.append(
            f"note: the critic of this run was fitted for {PER_UPDATE * fitted:,} steps, not {CRITIC_UPDATES:,}; "
            f"a new run of {CRITIC_UPDATES // PER_UPDATE:,} updates fits it better"
        )
    return notes


def choose_return_scale(episodes: Episodes) -> float:
    """The return scale for data of your own, with two digits: what tells episodes apart becomes about 1.

    That is the spread of the returns, 5% to 95%, between a tenth of the size of the returns-to-go and their size. The
    size is their 95% quantile, signs and zeros left out: returns are rare in some data, and a few may be huge.
    """
    sizes = np.abs(episodes.returns_to_go())
    if not (sizes := sizes[(sizes > 0) & np.isfinite(sizes)]).size:
        return 1.0
    size = float(np.quantile(sizes, 0.95))
    low, high = np.quantile(episodes.returns, [0.05, 0.95])
    scale = min(max(float(high - low), size / 10), size)
    return float(f"{min(max(scale, RETURN_SCALE.low), RETURN_SCALE.high):.2g}")


def load_data(data: DataConfig, memory_map: bool = False, *, resumed: bool = False) -> tuple[Task, Episodes]:
    """The task and its episodes. Raises the errors of `envs.load_task`."""
    reference = None
    if data.ref_min_score is not None and data.ref_max_score is not None:
        reference = Reference("reference returns given by the user", data.ref_min_score, data.ref_max_score)
    options = {name: getattr(data, name) for name in READING} | {"memory_map": memory_map}
    try:
        return load_task(data.env, data.source, reference=reference, **options)
    except DataError as error:
        raise DataError(f"{error}{if_moved(data.source) if resumed else ''}") from error
