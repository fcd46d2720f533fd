"""Record data with policies that Stable-Baselines3 trained: `aaren-rl collect`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from ..base.errors import UsageError
from ..base.fields import COUNT, COUNT_FROM_0, SAC_SEED
from ..base.files import check_outputs
from ..cli import Parser, choose_device, import_registering, positive, run
from ..envs.tasks.environment import inspect_spaces, is_bounded
from ..envs.tasks.table import env_kwargs
from . import ALGORITHMS

DESCRIPTION = """\
Record a dataset in D4RL's layout with policies that you trained with Stable-Baselines3.

  aaren-rl collect --env-id Hopper-v4 --policy random --out hopper.hdf5
  aaren-rl collect --env-id Ant-v4 --policy model.zip --out ant.hdf5
  aaren-rl collect --env-id Ant-v4 --policy random a.zip b.zip --out mixed.hdf5
  aaren-rl train --env-id Ant-v4 --env my-ant --source ant.hdf5
"""
EPILOG = """\
Files of Stable-Baselines3 hold pickles, and loading them runs the code in them: give files that
you saved yourself. Observations and rewards are recorded as the environment returns them, also
where VecNormalize scales what a policy sees.
Exit codes: 2 usage, 3 data, 5 environment.
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("collect", DESCRIPTION, "--env-id ID --policy ZIP [ZIP ...] --out FILE [options]", epilog=EPILOG)
    add = parser.add_argument
    add("--env-id", metavar="ID", required=True, help="Gymnasium environment, such as Hopper-v4 or CartPole-v1")
    add("--policy", nargs="+", metavar="ZIP", required=True, help="models' save(), in turn; random: random actions")
    add("--vec-normalize", type=Path, metavar="PKL", help="VecNormalize's save(): scales what the policies see")
    add("--algorithm", choices=ALGORITHMS, help="of the policies [as the files say]")
    add("--steps", type=COUNT.integer, metavar="N", default=200_000, help="steps per policy [200000]")
    add("--noise", type=COUNT_FROM_0.number, metavar="X", default=0.0, help="deviation of Gaussian action noise [0]")
    add("--deterministic", action="store_true", help="the mean or best action in place of a sample")
    add("--max-episode-steps", type=positive, metavar="N", help="truncate episodes after N steps [as registered]")
    add("--env-kwargs", metavar="JSON", help="arguments of the environment, as a JSON object")
    add("--seed", type=SAC_SEED.integer, metavar="N", default=0, help="of the first episode, of samples and noise [0]")
    add("--out", type=Path, metavar="FILE", required=True, help="HDF5 file to write")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), collect, argv)


def collect(arguments: argparse.Namespace) -> int:
    """Records episodes of all policies in one file; returns the exit code."""
    check_outputs({"--out": arguments.out})
    if arguments.out.exists():
        raise UsageError(f"--out {arguments.out}: already exists; delete it, or give another")
    import_registering(arguments.register)
    device = choose_device(arguments.device)
    try:
        kwargs = env_kwargs(arguments.env_kwargs)
    except ValueError as error:
        raise UsageError(f"--env-kwargs {error}") from error
    kwargs["max_episode_steps"] = _horizon(arguments.env_id, arguments.max_episode_steps, kwargs)
    # Stable-Baselines3 takes seconds to import: not before all arguments are checked.
    from .record import record_policies

    print(record_policies(arguments, kwargs, device))
    return 0


def _horizon(env_id: str, asked: int | None, kwargs: dict[str, Any]) -> int:
    """The steps after which an episode is truncated; raises UsageError where data cannot be recorded."""
    _, actions, own = inspect_spaces(env_id, **kwargs)
    if isinstance(actions, gym.spaces.Box) and not is_bounded(actions):
        raise UsageError(f"--env-id {env_id}: its actions are unbounded; register it with bounds")
    if (horizon := asked or own) is None:
        raise UsageError(f"--env-id {env_id}: it has no time limit; give --max-episode-steps")
    return horizon
