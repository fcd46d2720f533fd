"""Train an agent offline, score it in MuJoCo while it trains, and leave a policy folder: `python -m aaren_rl.train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tqdm import tqdm

from .agents import DecisionModel, Policy
from .card import PolicyCard, make_card
from .checkpoint import load_checkpoint, save_checkpoint, save_policy
from .cli import Parser, StopRequest, choose_device, import_registering, positive
from .config import (
    AGENTS,
    DataConfig,
    RunConfig,
    add_settings,
    build_config,
    given_settings,
    load_preset,
    override,
    preset_names,
    to_dict,
)
from .envs import Episodes, Reference, Task, is_own, load_task, task_name
from .envs.own import default_name
from .envs.windows import StepData
from .errors import NumericsError, run_command
from .run import Metrics, RunFolder
from .scoring import SOURCES, Score, format_table, mismatch, score_policy
from .training import Stopwatch, Trainer

LOG_EVERY = 50  # updates
SHOWN = {"env", "source", "env_id", "context", "rollout", "target_return", "updates"}  # settings that --help lists

DESCRIPTION = """\
Train an agent offline on a MuJoCo task, score it while it trains, and save the policy.

  python -m aaren_rl.train --env hopper-medium                                # Decision-Aaren, a few minutes
  python -m aaren_rl.train --env hopper-medium --agent decision-transformer   # the baseline
  tensorboard --logdir runs                                                   # both, side by side
"""
EPILOG = """\
The data set is D4RL's file where it lies in ~/.d4rl/datasets (or $D4RL_DATASET_DIR); otherwise a local set, made
on first use by behaviour policies that ship with the package. The policy lands in <out>/<env>/<agent>/seed<N>/;
score it with python -m aaren_rl.evaluate. Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment, 6 numerics.
"""


def make_parser(*, show_all: bool) -> Parser:
    """The command line; `show_all` lists every setting in the help."""
    parser = Parser("train", DESCRIPTION)
    parser.epilog = EPILOG
    if not show_all:
        parser.usage = "python -m aaren_rl.train --env NAME [options]"
    add_settings(parser, SHOWN, show_all=show_all)
    parser.add_argument(
        "--agent", choices=AGENTS, metavar="NAME", default="decision-aaren", help=f"{' or '.join(AGENTS)} [%(default)s]"
    )
    parser.add_argument(
        "--preset", metavar="NAME", default="default", help=f"settings to start from: {' or '.join(preset_names())}"
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="training seed [0]")
    parser.add_argument("--register", metavar="MODULE", help="import this module, which registers your environment")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in its folder")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--help-all", action="store_true", help="list every setting, with its default")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser(show_all="--help-all" in argv)
    arguments = parser.parse_args(argv)
    if arguments.help_all:
        parser.print_help()
        return 0
    data = given_settings(arguments).get("data", {})
    if "env" not in data and not is_own(data.get("source", ""), data.get("env_id")):
        parser.error("--env is missing, for example --env hopper-medium")
    return run_command(lambda: train(arguments), debug=arguments.debug)


def train(arguments: argparse.Namespace) -> int:
    """Set-up, loop, last evaluation; returns the exit code."""
    import_registering(arguments.register)
    given = given_settings(arguments)
    given["data"].setdefault("env", default_name(given["data"].get("source", "")))  # a name for data of your own
    preset = load_preset(arguments.preset, arguments.agent)
    asked = build_config(arguments.agent, arguments.seed, override(preset, given))
    name = task_name(asked.data.env, asked.data.source, asked.data.env_id)  # before it becomes part of a path
    device = choose_device(arguments.device)
    path = arguments.out / name / arguments.agent / f"seed{arguments.seed}"
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with RunFolder(path) as folder:
        if not arguments.resume:
            folder.require_new()
        config = folder.resume(given) if arguments.resume else asked
        task, episodes = _load(config.data)
        folder.write_config(config)  # not before the data are there, or a mistyped path would leave a run behind
        with StopRequest() as stop:
            return _Run(config, task, episodes, device, path).play(stop, resume=arguments.resume)


def _load(data: DataConfig) -> tuple[Task, Episodes]:
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
    )


class _Run:
    """The loop and what it writes."""

    def __init__(self, config: RunConfig, task: Task, episodes: Episodes, device: torch.device, path: Path) -> None:
        self.config, self.task, self.episodes, self.path = config, task, episodes, path
        data = StepData(
            episodes,
            config.data.return_scale,
            device,
            action_low=task.action_low,
            action_high=task.action_high,
        )
        self.trainer = Trainer(config, data, episodes.action_dim, task.horizon)
        self.recent: list[Tensor] = []  # loss and gradient norm of every update since the last log
        self.watch, self.timed_from = Stopwatch(), 0  # training alone, without evaluations
        self.last: Score | None = None
        self.best: Score | None = None
        self._what = "return" if task.reference is None else "normalised score"

    def play(self, stop: StopRequest, *, resume: bool) -> int:
        """Trains to the last update, or until a signal; returns the exit code."""
        trainer, updates, eval_every = self.trainer, self.config.optimizer.updates, self.config.evaluation.eval_every
        if resume:
            self._resume()
        self.timed_from = trainer.update
        metrics = Metrics(self.path, trainer.update)
        self._announce(metrics)
        # smoothing=0: the time left follows from the mean rate, evaluations included, and does not jump after each.
        bar = tqdm(
            total=updates,
            initial=trainer.update,
            desc=self.task.name,
            unit="update",
            dynamic_ncols=True,
            smoothing=0,
            mininterval=0.1 if sys.stderr.isatty() else 30,  # seconds; a log file wants a line now and then
        )
        try:
            while trainer.update < updates:
                with self.watch:
                    self.recent.append(torch.stack(trainer.step()))
                bar.update()
                done = trainer.update == updates
                if trainer.update % LOG_EVERY == 0 or done:
                    self._log(metrics, bar)
                if trainer.update % eval_every == 0 or done:
                    self._evaluate(metrics, bar, final=done)
                if trainer.update % eval_every == 0 or done or stop.signal is not None:
                    self._save()
                if stop.signal is not None and not done:
                    bar.close()
                    print(f"stopped at update {trainer.update}; --resume goes on from here", file=sys.stderr)
                    return stop.exit_code
        finally:
            bar.close()
            metrics.close()
        self._report()
        return 0

    def _resume(self) -> None:
        checkpoint = load_checkpoint(self.path / "checkpoints")
        self.trainer.restore(checkpoint)
        self.recent = list(checkpoint.trainer["recent"].unbind())
        last, best = checkpoint.progress["last"], checkpoint.progress["best"]
        self.last, self.best = last and Score(**last), best and Score(**best)

    def _save(self) -> None:
        recent = self._checked()
        progress = {name: score and score.to_json() for name, score in (("last", self.last), ("best", self.best))}
        save_checkpoint(self.path / "checkpoints", self.trainer.checkpoint(progress, recent))

    def _checked(self) -> Tensor:
        """Losses and gradient norms since the last log, (updates, 2)."""
        recent = torch.stack(self.recent) if self.recent else torch.zeros(0, 2)
        bad = ~recent.isfinite().all(1)
        if bool(bad.any()):
            update = self.trainer.update - len(recent) + 1 + int(bad.int().argmax())
            raise NumericsError(
                f"loss or gradient is not finite at update {update}; the last good checkpoint is kept in "
                f"{self.path / 'checkpoints'}; lower --learning-rate or use --precision float32"
            )
        return recent

    def _announce(self, metrics: Metrics) -> None:
        episodes, config = self.episodes, self.config
        for remark in episodes.notes:
            print(f"{episodes.dataset}: {remark}")
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        print(
            f"{config.agent}, {parameters:,} parameters, {config.optimizer.updates} updates of about "
            f"{config.data.steps_per_update} steps ({config.data.context} contexts) on {len(episodes)} episodes, "
            f"{episodes.n_steps:,} steps, mean return {episodes.returns.mean():.0f}, from {SOURCES[episodes.source]}"
        )
        print(f"run folder: {self.path}")
        if note := mismatch(config.data.context, config.data.context_length, config.evaluation.rollout):
            print(note, file=sys.stderr)
        metrics.text("config", f"```yaml\n{yaml.safe_dump(to_dict(config), sort_keys=False)}```")

    def _log(self, metrics: Metrics, bar: tqdm[Any]) -> None:
        with self.watch:  # a GPU finishes the updates here
            loss, norm = self._checked().mean(0).tolist()
        values = {
            "train/loss": loss,
            "train/gradient_norm": norm,
            "train/learning_rate": self.trainer.optimizer.param_groups[0]["lr"],
            "train/updates_per_second": (self.trainer.update - self.timed_from) / self.watch.seconds,
        }
        self.recent, self.timed_from, self.watch = [], self.trainer.update, Stopwatch()
        metrics.log(self.trainer.update, values)
        score = "-" if self.last is None else f"{self.last.headline:.1f}"
        bar.set_postfix_str(f"loss {loss:.4f}, {self._what} {score}")

    def _evaluate(self, metrics: Metrics, bar: tqdm[Any], *, final: bool) -> None:
        """Scores the averaged and the raw weights; keeps the policy, and the best one so far beside it."""
        self._checked()
        models = {"average": self.trainer.average, "raw": self.trainer.model}
        scores = {weights: self._score(weights, model, final=final) for weights, model in models.items()}
        metrics.log(self.trainer.update, {**_scalars("eval", scores["average"]), **_scalars("eval_raw", scores["raw"])})
        self.last = scores["average"]
        bar.write(f"update {self.trainer.update}: {self._what} {self.last.headline:.1f}")
        states = {weights: model.state_dict() for weights, model in models.items()}
        save_policy(self.path / "policy", self._card(), **states)
        if self.best is None or self.last.headline > self.best.headline:
            self.best = self.last
            save_policy(self.path / "policy_best", self._card(), **states)

    def _score(self, weights: str, model: DecisionModel, *, final: bool) -> Score:
        config, card, data = self.config.evaluation, self._card(), self.trainer.data
        return score_policy(
            Policy(
                model,
                data.observation_mean,
                data.observation_std,
                card.return_scale,
                config.rollout,
                config.rollout_context,
                torch.tensor(card.action_low, device=data.device),
                torch.tensor(card.action_high, device=data.device),
            ),
            card,
            weights=weights,
            episodes=config.final_episodes if final else config.eval_episodes,
            target_returns=[card.target_return],
            seed=config.eval_seed,
        )[0]

    def _card(self) -> PolicyCard:
        return make_card(self.config, self.task, self.episodes, self.trainer)

    def _report(self) -> None:
        assert self.last is not None and self.best is not None
        print(f"\n{format_table([self.last])}")
        if self.best.updates != self.last.updates:
            print(f"best of the evaluations: {self.best.headline:.1f} after {self.best.updates} updates")
        print(f"policy: {self.path / 'policy'}")


def _scalars(prefix: str, score: Score) -> dict[str, float]:
    """An evaluation's scalars, under the same tags for every agent."""
    normalized = score.normalized_score_mean
    return {
        **({} if normalized is None else {f"{prefix}/normalized_score": normalized}),
        f"{prefix}/return_mean": score.return_mean,
        f"{prefix}/return_std": score.return_std,
        f"{prefix}/length_mean": score.length_mean,
        f"{prefix}/actions_per_second": score.actions_per_second,
    }


if __name__ == "__main__":
    sys.exit(main())
