"""Take over a Decision Transformer that others trained: `aaren-rl import-weights SOURCE FOLDER`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..base.errors import UsageError, one_line
from ..base.files import check_free, read_small, sha256
from ..base.json_dataclass import read
from ..base.ranges import CONTEXT, RETURN, RETURN_SCALE
from ..cli import Parser, import_registering, positive, run
from ..envs import Task, get_task, load_task
from ..envs.tasks.environment import check_own_name, own_task
from ..evaluate.play import check_fits
from ..policies.card import LEAST, PolicyCard, task_fields, versions
from ..policies.folder import save_policy
from .decision_transformers import import_model

DESCRIPTION = """\
Make a policy of a Decision Transformer that min-decision-transformer or Hugging Face's transformers has trained.

  aaren-rl import-weights dt_halfcheetah-medium-v2_model.pt FOLDER --env halfcheetah-medium --source d4rl
  aaren-rl import-weights HF_FOLDER FOLDER --env hopper-medium --statistics mean_std.json
  aaren-rl evaluate FOLDER

SOURCE is a state dictionary of min-decision-transformer, or a folder with Hugging Face's config.json and
model.safetensors or pytorch_model.bin. Its actions depend on how observations were normalized, which neither stores:
the statistics are those of the data of --env and --source, or of a JSON file {"mean": [...], "std": [...]}, such as
the numbers of a Hugging Face model card. Nothing in SOURCE is executed.
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("import-weights", DESCRIPTION, "SOURCE FOLDER [options]")
    add = parser.add_argument
    add("weights", type=Path, metavar="SOURCE", help="file or folder with the weights")
    add("folder", type=Path, metavar="FOLDER", help="policy folder to write; must not exist, or be empty")
    add("--env", metavar="NAME", default="hopper-medium", help="task it was trained for [hopper-medium]")
    add("--source", metavar="NAME", help="data of the statistics, as in train [auto]")
    add("--statistics", type=Path, metavar="FILE", help='JSON {"mean": [...], "std": [...]} instead')
    add("--env-id", metavar="ID", help="your own Gymnasium environment; --env then names the data")
    add("--max-episode-steps", type=positive, metavar="N", help="length of an episode, where none is known")
    add("--heads", type=positive, metavar="N", help="of min-decision-transformer, which does not say [1]")
    add("--context-length", type=CONTEXT.integer, metavar="K", help="context in steps (as in the file, else 20)")
    add("--target-return", type=RETURN.number, metavar="R", help="return to ask for (the task's)")
    scale = "returns are divided by it [1000]"
    add("--return-scale", type=RETURN_SCALE.number, metavar="X", default=1000.0, help=scale)
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), take_over, argv)


def take_over(arguments: argparse.Namespace) -> int:
    """Converts the weights and writes the policy folder; returns the exit code."""
    check_free(arguments.folder)
    if arguments.statistics is not None and arguments.source is not None:
        raise UsageError(f"--source {arguments.source}: --statistics has the statistics already; leave one out")
    if arguments.heads is not None and arguments.weights.is_dir():
        raise UsageError(f"--heads {arguments.heads}: the config.json of Hugging Face's folder has it; leave it out")
    import_registering(arguments.register)
    imported = import_model(arguments.weights, heads=arguments.heads)
    task, mean, std = _statistics(arguments)
    if task.n_actions is not None:
        raise UsageError(f"{task.name} has discrete actions, and these weights are for continuous ones; choose another")
    if arguments.target_return is None and not task.target_returns:
        raise UsageError(f"{task.env_id} is not in the table; say which return to ask for with --target-return")
    length = arguments.context_length or imported.context_length or 20
    if problem := CONTEXT.problem(length):
        raise UsageError(f"--context-length: {problem}")
    target, config = arguments.target_return, imported.model.config
    size = len(task.action_low)  # the original's tanh goes to the environment as it is, whatever its bounds
    card = PolicyCard(
        **task_fields(task) | {"action_low": [-1.0] * size, "action_high": [1.0] * size},
        agent="decision-transformer",
        dataset=task.name,
        source="imported",
        source_path=str(imported.file),
        context="window",
        context_length=length,
        rollout="window",
        rollout_context=length,
        target_return=task.target_returns[0] if target is None else target,
        return_scale=arguments.return_scale,
        observation_mean=mean.tolist(),
        observation_std=std.tolist(),
        model=asdict(config),
        updates=0,
        seed=0,
        weights="ema",
        versions={**versions(), "device": "cpu", "weights": f"{imported.origin}, SHA-256 {sha256(imported.file)}"},
    )
    check_fits(card)
    save_policy(arguments.folder, card, {"ema": imported.model.state_dict()})
    shape = f"{config.layers} layers of width {config.width}, K = {card.context_length}"
    print(f"{arguments.folder}: {imported.origin}, {shape}")
    print(f"score it with: aaren-rl evaluate {arguments.folder}")
    return 0


def _statistics(arguments: argparse.Namespace) -> tuple[Task, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    # And mean and standard deviation of its observations, (O,) each.
    file, env_id, limit = arguments.statistics, arguments.env_id, arguments.max_episode_steps
    if file is None:
        task, episodes = load_task(arguments.env, arguments.source or "auto", env_id=env_id, max_episode_steps=limit)
        return task, *episodes.observation_statistics()
    if env_id is None:
        if limit is not None:
            raise UsageError(f"--max-episode-steps {limit} goes with --env-id; leave it out")
        task = get_task(arguments.env)
    else:
        task = own_task(check_own_name(arguments.env), env_id, max_episode_steps=limit)
    try:
        found = read(_Statistics, json.loads(read_small(file)))
        with np.errstate(over="ignore"):  # infinity is an error below
            mean, std = np.array(found.mean, np.float32), np.array(found.std, np.float32)
        sizes = {len(mean), len(std)}
        if sizes != {task.observation_dim} or not np.isfinite([mean, std]).all() or std.min() < LEAST:
            raise ValueError(f"needs {task.observation_dim} finite numbers each, and std of at least {LEAST:g}")
    except (OSError, ValueError, RecursionError) as error:
        reason = one_line(error)
        raise UsageError(f'{file}: not a JSON file {{"mean": [...], "std": [...]}} ({reason})') from error
    return task, mean, std


@dataclass(frozen=True)
class _Statistics:
    mean: list[float]
    std: list[float]
