"""Score a trained policy in MuJoCo: `aaren-rl evaluate RUN`."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.files import check_outputs, write_json
from ..base.ranges import CONTEXT, RETURN, SEED, TEMPERATURE
from ..cli import Parser, import_registering, positive, run, target_return
from ..envs import DataError, LocalTask, get_task
from ..envs.data.files import read_file
from ..envs.data.minari import new_minari_folder, write_minari
from ..envs.simulation.rollout import Recorder
from ..envs.tasks.environment import unversioned
from ..policies.card import PolicyCard, task_fields
from ..policies.names import AUTO, ROLLOUTS, WEIGHTS, find_agent, target_words
from .held_out import HeldOut, action_error, kept_episodes
from .opening import in_environment, open_policy
from .play import EpisodePlan, play
from .scores import ActionError, Score, above_data, mismatch
from .tables import format_overview, format_table, write_episodes
from .video import EPISODES, Video

DESCRIPTION = """\
Play episodes with a trained policy and print its returns and D4RL-normalized scores.

  aaren-rl evaluate runs/hopper-medium/decision-aaren/seed0
  aaren-rl evaluate RUN --target-return 1800 3600 auto --json scores.json
  aaren-rl evaluate runs/hopper-medium/*/seed0   # several, with intervals
  aaren-rl evaluate RUN --held-out               # without a simulator
  aaren-rl evaluate RUN --video hopper.gif       # .mp4 needs ffmpeg
  aaren-rl evaluate policy.onnx                  # an exported policy
"""

# As in aaren_rl.agents, which imports torch; exported policies are evaluated without it.
SAMPLERS = ("uniform", "edh", "align", "pos-align", "rff", "favor", "favor-relu")


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("evaluate", DESCRIPTION, "RUN [RUN ...] [options]")
    add = parser.add_argument
    runs = "run folder, policy folder in it such as RUN/policy_best, or exported file"
    add("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    add("--episodes", type=positive, metavar="N", default=20, help="episodes per target return [20]")
    returns = "target returns; auto: the maximum achievable return at every step (as in training)"
    add("--target-return", type=target_return, metavar="R", nargs="+", help=returns)
    add("--rollout", choices=ROLLOUTS, metavar="MODE", help="recurrent, staggered or window (as in training)")
    add("--rollout-context", type=CONTEXT.integer, metavar="K", help="K of staggered and window")
    attention = "how a Transformer attends: softmax or tree (as it was trained to act)"
    add("--attention", choices=("softmax", "tree"), metavar="KIND", help=attention)
    add("--tree-budget", type=RETURN.number, metavar="E", help="tree: attend to l^E of l tokens [0.5]")
    add("--tree-sampler", choices=SAMPLERS, metavar="NAME", help=f"tree: {', '.join(SAMPLERS)} [edh]")
    sampled = "sample discrete actions from softmax(logits / T) (the most likely one)"
    add("--temperature", type=TEMPERATURE.number, metavar="T", help=sampled)
    add("--weights", choices=WEIGHTS, metavar="NAME", help="ema (default) or raw")
    add("--eval-seed", type=SEED.integer, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    add(
        "--env",
        metavar="TASK",
        help="evaluate in a built-in task of the same sizes, such as tmaze-10000, a longer corridor",
    )
    add("--env-id", metavar="ID", help="evaluate in another environment, such as Hopper-v5: raw returns")
    add("--env-kwargs", metavar="JSON", help="other arguments of the environment, as a JSON object: raw returns")
    held_out = "action error on the held-out episodes of the run, or on those of an HDF5 file"
    add("--held-out", nargs="?", const="", metavar="FILE", help=held_out)
    add("--clip-actions", action="store_true", help="clip actions of that file that are out of bounds")
    add("--json", type=Path, metavar="FILE", help="write a list, one object per target return")
    add("--csv", type=Path, metavar="FILE", help="write one row per episode")
    add("--video", type=Path, metavar="FILE", help="film an episode, as .mp4 or .gif")
    add("--video-episode", choices=list(EPISODES), metavar="E", help="first, best or worst [first]")
    add("--record-minari", metavar="ID", help="write the episodes as a Minari dataset, me/hopper/run-v0")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), evaluate, argv)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate every policy, print the tables and write the files. Returns the exit code."""
    _check(arguments)
    if arguments.record_minari is not None:
        new_minari_folder(arguments.record_minari)
    import_registering(arguments.register)
    task = None if arguments.env is None else _built_in(arguments.env, arguments.env_id)
    scores: list[tuple[str, Score]] = []

    def keep(path: Path, of_one: Sequence[Score]) -> None:
        # After every policy: the files keep its scores where its video or a later policy fails.
        scores.extend((str(path), score) for score in of_one)
        if arguments.json is not None:
            write_json(arguments.json, [{"policy": policy, **dataclasses.asdict(score)} for policy, score in scores])
        if arguments.csv is not None:
            write_episodes(arguments.csv, scores)

    for path in arguments.runs:
        _evaluate_one(path, arguments, task, keep)
    if len(arguments.runs) > 1:
        print(format_overview(scores))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise UsageError where options do not go together, or a file to write cannot be written."""
    check_outputs({f"--{option}": getattr(arguments, option) for option in ("json", "csv", "video")})
    for option, asked in (("--video", arguments.video), ("--record-minari", arguments.record_minari)):
        if asked is not None and len(arguments.runs) > 1:
            raise UsageError(f"{option}: takes one policy, not {len(arguments.runs)}")
    if arguments.video_episode is not None and arguments.video is None:
        raise UsageError(f"--video-episode {arguments.video_episode} needs --video FILE")
    if arguments.clip_actions and not arguments.held_out:
        raise UsageError("--clip-actions goes with --held-out FILE; leave it out")


def _built_in(name: str, env_id: str | None) -> LocalTask:
    if not isinstance(task := get_task(name), LocalTask):
        raise UsageError(
            f"--env {name}: not a built-in task; evaluate in another environment with --env-id {task.env_id}"
        )
    if env_id is not None:
        raise UsageError(f"--env {name} uses {task.env_id}; leave --env-id out")
    return task


def _evaluate_one(
    path: Path, arguments: argparse.Namespace, task: LocalTask | None, keep: Callable[[Path, Sequence[Score]], None]
) -> None:
    policy, card, weights = open_policy(path, arguments)
    held_out = None if arguments.held_out is None else _held_out(path, arguments.held_out, card, arguments.clip_actions)
    card = in_environment(card, arguments.env_id, arguments.env_kwargs)
    if task is not None:
        known = card.data_returns if task.dataset == card.dataset else {}
        fields = task_fields(task) | {"data_returns": known}
        fields |= {name: getattr(card, name) for name in ("n_actions", "action_start")}  # the default of the policy
        card = dataclasses.replace(card, **fields)
    if not card.env_id:
        _require_no_episodes(path, arguments)
        assert held_out is not None  # it is asked for
        print(_error_line(action_error(policy, held_out, card.action_low, card.action_high)))
        return
    asked, seed = arguments.target_return or [card.target_return], arguments.eval_seed
    if arguments.target_return and AUTO not in arguments.target_return and not find_agent(card.agent).conditioned:
        print(f"note: --target-return has no effect with {card.agent}", file=sys.stderr)
    if arguments.rollout_context is not None and policy.rollout == "recurrent":
        print("note: --rollout-context has no effect with the rollout recurrent", file=sys.stderr)
    if note := mismatch(card.context, card.context_length, policy.rollout, policy.context_length):
        print(note, file=sys.stderr)
    recorder = None if arguments.record_minari is None else Recorder()
    filmed = card.env_id, card.env_kwargs, seed, arguments.video_episode or "first"
    with nullcontext() if arguments.video is None else closing(Video(arguments.video, *filmed)) as video:
        on_action = None if video is None else video.note
        watchers: dict[str, Any] = {"on_action": on_action, "recorder": recorder}
        plan = EpisodePlan(weights, arguments.episodes, asked, seed, **watchers)
        scores = play(policy, card, plan)
        print(format_table(scores), end="\n\n" if len(arguments.runs) > 1 else "\n")
        if note := above_data(asked, card):
            print(note, file=sys.stderr)
        if held_out is not None:
            error = action_error(policy, held_out, card.action_low, card.action_high)
            scores = [dataclasses.replace(score, action_error=error) for score in scores]
            print(_error_line(error))
        keep(path, scores)
        if recorder is not None:
            print(_record(recorder, arguments.record_minari, card, scores))
        if video is not None:
            print(video.write(scores[0]))


def _error_line(error: ActionError) -> str:
    return f"held-out {error.measure}: {error}"


def _require_no_episodes(path: Path, arguments: argparse.Namespace) -> None:
    """Raise UsageError where a policy without an environment is asked for more than its held-out error."""
    played = [name for name in ("json", "csv", "video", "record_minari") if getattr(arguments, name) is not None]
    if arguments.held_out is None or played:
        options = "".join(f"--{name.replace('_', '-')}: " for name in played[:1])
        raise UsageError(
            f"{options}{path} was trained without an environment, so there is none to play; name one with --env-id ID, "
            "or measure the action error alone with --held-out"
        )


def _held_out(run: Path, file: str, card: PolicyCard, clip_actions: bool) -> HeldOut:
    """The episodes of a file, or the held-out episodes of the run.

    Raises the errors of `kept_episodes` and `read_file`, and DataError if the file is of another environment.
    """
    if file:
        held: dict[str, Any] = {name: card.model[name] for name in ("observation_dim", "action_dim")}
        held["layout"] = card.observation_space
        held |= {name: getattr(card, name) for name in ("action_low", "action_high", "n_actions", "action_start")}
        # No episode in this environment is longer than its horizon.
        episodes = read_file(file, clip_actions=clip_actions, max_episode_steps=card.horizon, **held)
        try:
            episodes = episodes.arranged(card.observation_space)
        except ValueError as error:
            raise DataError(
                f"{file}: observations {error}, which {run} was trained on; give episodes of that"
            ) from error
        if episodes.env_id is not None and unversioned(episodes.env_id) != unversioned(card.env_id):
            raise DataError(f"{file}: is of {episodes.env_id}, and {run} of {card.env_id}; give episodes of that")
        for note in episodes.notes:
            print(f"note: {note}", file=sys.stderr)
        return HeldOut(episodes)
    try:
        if (held_out := kept_episodes(run, card)) is None:
            raise UsageError(f"{run} has no held-out episodes")
        return held_out
    except UsageError as error:
        raise UsageError(f"--held-out: {error}; give other episodes: --held-out FILE.hdf5") from error


def _record(recorder: Recorder, dataset_id: str, card: PolicyCard, scores: Sequence[Score]) -> str:
    episodes, finals = recorder.episodes(dataset_id, card.env_id)
    asked = ", ".join(target_words(score.target_return) for score in scores)
    references = card.reference_returns
    folder = write_minari(
        dataset_id,
        episodes,
        env_id=card.env_id,
        env_kwargs=card.env_kwargs,
        description=f"rollouts of aaren-rl: {'; '.join(format_table(scores).splitlines()[:2])}; target returns {asked}",
        reference_returns=None if references is None else (references[0], references[1]),
        final_observations=finals,
    )
    return f"{folder}: {len(episodes)} episodes, {episodes.n_steps:,} steps; read it with --source minari:{dataset_id}"
