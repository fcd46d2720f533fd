"""Play episodes with a trained policy and print its returns and D4RL-normalized scores.

  aaren-rl evaluate runs/hopper-medium/decision-aaren/seed0
  aaren-rl evaluate RUN --target-return 1800 3600 auto --json scores.json
  aaren-rl evaluate runs/hopper-medium/*/seed0   # several, with intervals
  aaren-rl evaluate RUN --held-out               # without a simulator
  aaren-rl evaluate RUN --video hopper.gif       # .mp4 needs ffmpeg
  aaren-rl evaluate policy.onnx                  # an exported policy

RUN is the folder that train made.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from ..agents.policy.base import BasePolicy
from ..base.errors import CheckpointError, UsageError
from ..base.fields import CONTEXT, COUNT, SEED, TEMPERATURE
from ..base.files import check_writable, write_json
from ..cli import Parser, choose_device, import_registering, progress_bar, run, target_return
from ..envs.simulation import AT_ONCE, OnAction
from ..envs.tasks.environment import has_no_limit
from ..envs.tasks.table import LocalTask, env_kwargs, get_task
from ..policies.card import ROLLOUTS, WEIGHTS, PolicyCard, card_from_json, task_fields
from ..policies.held_out import held_out_episodes
from ..runtime import load_policy
from .play import EpisodePlan, action_error, score_policy
from .scores import Score, format_overview, format_table
from .video import Video


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("evaluate", __doc__, "RUN [RUN ...] [options]")
    add = parser.add_argument
    runs = "run folder, policy folder in it such as RUN/policy_best, or exported file"
    add("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    add("--episodes", type=COUNT.integer, metavar="N", default=20, help="episodes per target return [20]")
    returns = "target returns; auto: the maximum achievable return at every step (as in training)"
    add("--target-return", type=target_return, metavar="R", nargs="+", help=returns)
    add("--rollout", choices=ROLLOUTS, metavar="MODE", help="recurrent, staggered or window (as in training)")
    add("--rollout-context", type=CONTEXT.integer, metavar="K", help="K of staggered and window")
    sampled = "sample discrete actions from softmax(logits / T) (the most likely one)"
    add("--temperature", type=TEMPERATURE.number, metavar="T", help=sampled)
    add("--weights", choices=WEIGHTS, metavar="NAME", help="ema (default) or raw")
    add("--eval-seed", type=SEED.integer, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    longer = "evaluate in a built-in task of the same sizes, such as tmaze-10000, a longer corridor"
    add("--env", metavar="TASK", help=longer)
    add("--env-id", metavar="ID", help="evaluate in another environment, such as Hopper-v5: raw returns")
    add("--env-kwargs", metavar="JSON", help="other arguments of the environment, as a JSON object: raw returns")
    add("--held-out", action="store_true", help="also the action error on the held-out episodes of the run")
    add("--json", type=Path, metavar="FILE", help="write a list, one object per target return, with every episode")
    add("--video", type=Path, metavar="FILE", help="film the first episode, as .mp4 or .gif")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), evaluate, argv)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate every policy, print the tables and write the files. Returns the exit code."""
    for option in ("json", "video"):
        check_writable(f"--{option}", getattr(arguments, option))
    if arguments.json is not None and arguments.json == arguments.video:
        raise UsageError(f"--json, --video: both name {arguments.json}; give each file a name of its own")
    if arguments.video is not None and len(arguments.runs) > 1:
        raise UsageError(f"--video: takes one policy, not {len(arguments.runs)}")
    import_registering(arguments.register)
    found: list[tuple[str, Score]] = []
    written: list[dict[str, Any]] = []
    for path in arguments.runs:
        _evaluate_one(path, arguments, found, written)
    if len(arguments.runs) > 1:
        print(format_overview(found))
    return 0


def open_policy(path: Path, arguments: argparse.Namespace) -> tuple[BasePolicy, PolicyCard, str]:
    """The policy of a folder or an exported file, its card, and the name of its weights.

    Raises UsageError for an option that does not go with it, CheckpointError where it cannot be loaded.
    """
    chosen = {name: getattr(arguments, name) for name in ("rollout", "rollout_context", "weights")}
    if not path.is_file() and path.suffix != ".onnx":  # where it is missing, torch may be, too
        from ..policies import folder

        device = choose_device(arguments.device)
        policy = folder.load_policy(path, **chosen, device=device)
        if arguments.temperature is not None:
            try:
                policy = dataclasses.replace(policy, temperature=arguments.temperature)
            except ValueError as error:
                raise UsageError(f"--{error}") from error
        return policy, policy.card, arguments.weights or policy.card.weights
    if fixed := [f"--{name.replace('_', '-')}" for name, asked in chosen.items() if asked is not None]:
        raise UsageError(f"{', '.join(fixed)}: fixed in {path}; export the policy again with other options")
    if arguments.device not in ("auto", "cpu"):
        raise UsageError(f"--device {arguments.device}: an exported policy runs on the CPU")
    exported = load_policy(path, temperature=arguments.temperature)
    try:
        card, precision = card_from_json(exported.card), str(exported.export["precision"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: its card cannot be used: {error}; export the policy again") from error
    return exported, card, card.weights if precision == "float32" else f"{card.weights} {precision}"


def in_environment(card: PolicyCard, arguments: argparse.Namespace) -> PolicyCard:
    """The card of a policy in the environment that is asked for; its own by default.

    Reference returns and those of the data are valid in one environment only, and are left out elsewhere. Raises
    UsageError where the arguments cannot be used.
    """
    if arguments.env_id == "":
        raise UsageError("--env-id: is empty; give the name of an environment, such as Hopper-v5")
    env_id, given = arguments.env_id or card.env_id, arguments.env_kwargs
    kwargs = {**card.env_kwargs, **env_kwargs(given)}
    if given is not None and not env_id:
        raise UsageError("--env-kwargs: the policy was trained without an environment; add --env-id ID")
    if (env_id, kwargs) != (card.env_id, card.env_kwargs):
        if "max_episode_steps" not in kwargs and has_no_limit(env_id):
            kwargs["max_episode_steps"] = card.horizon
            print(f"note: {env_id} has no time limit: episodes end after {card.horizon:,} steps", file=sys.stderr)
        unknown: dict[str, Any] = {"reference": None, "reference_returns": None, "data_returns": {}}
        card = dataclasses.replace(card, env_id=env_id, env_kwargs=kwargs, **unknown)
    if arguments.env is None:
        return card
    if not isinstance(task := get_task(arguments.env), LocalTask) or arguments.env_id is not None:
        raise UsageError(
            f"--env {arguments.env}: takes a built-in task, without --env-id; --env-id {task.env_id} plays it"
        )
    fields = task_fields(task) | {"data_returns": card.data_returns if task.dataset == card.dataset else {}}
    fields |= {name: getattr(card, name) for name in ("n_actions", "action_start")}  # the default of the policy
    return dataclasses.replace(card, **fields)


def _evaluate_one(
    path: Path, arguments: argparse.Namespace, found: list[tuple[str, Score]], written: list[dict[str, Any]]
) -> None:
    """Play with a policy, print its scores, add them to those `found` and `written` as JSON, and film it."""

    def write(rows: Sequence[dict[str, Any]]) -> None:
        written.extend({"policy": str(path), **row} for row in rows)
        if arguments.json is not None:  # of all policies so far: a later one may fail
            write_json(arguments.json, written)

    policy, card, weights = open_policy(path, arguments)
    card = in_environment(card, arguments)
    held_out, error = held_out_episodes(path, card) if arguments.held_out else None, None
    if arguments.held_out and held_out is None:
        raise UsageError(f"--held-out: {path} has no held-out episodes")
    if not card.env_id and held_out is None:
        raise UsageError(
            f"{path} was trained without an environment, so there is none to play; name one with --env-id ID, or "
            "measure the action error alone with --held-out"
        )
    filmed = card.env_id, card.env_kwargs, arguments.eval_seed
    with nullcontext() if arguments.video is None else closing(Video(arguments.video, *filmed)) as video:
        on_action = None if video is None else video.note
        scores = _play(policy, card, weights, arguments, on_action) if card.env_id else []
        if held_out is not None:
            error = action_error(policy, held_out, card.action_low, card.action_high)
            scores = [dataclasses.replace(score, action_error=error) for score in scores]
        if scores:
            found.extend((str(path), score) for score in scores)
            print(format_table(scores), end="\n\n" if len(arguments.runs) > 1 else "\n")
            write([dataclasses.asdict(score) for score in scores])
            if video is not None:
                print(video.write(scores[0]))
    if error is not None:
        print(f"held-out {error.measure}: {error}")
        if not scores:
            write([{"action_error": dataclasses.asdict(error)}])


def _play(
    policy: BasePolicy, card: PolicyCard, weights: str, arguments: argparse.Namespace, on_action: OnAction | None
) -> list[Score]:
    asked, seed = arguments.target_return or [card.target_return], arguments.eval_seed
    apart = card.mismatch(policy.rollout, policy.context_length)
    for note in filter(None, (apart, card.above_data(asked))):
        print(note, file=sys.stderr)
    plan = EpisodePlan(weights, arguments.episodes, asked, seed)
    episodes = len(asked) * arguments.episodes
    steps = -(-episodes // AT_ONCE) * card.horizon
    with progress_bar(total=steps, desc=f"{episodes} episodes", unit="step", leave=False) as bar:

        def progress(step: int, running: int) -> None:
            bar.update()
            bar.set_postfix_str(f"{running} episodes running", refresh=False)

        return score_policy(policy, card, plan, on_step=progress, on_action=on_action)
