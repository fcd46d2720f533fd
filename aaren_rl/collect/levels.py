"""D4RL's levels (random, medium, ...) of a training run: the checkpoints they are of, and the making of their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

import h5py
import numpy as np

from ..cli import StopRequest, progress_bar
from ..envs import normalized_score
from ..envs.behaviour.policy import ActionUnits, Job, Track, join_tracks
from ..envs.behaviour.pool import WorkerPool
from ..envs.data.episodes import Episodes
from ..envs.data.hdf5.d4rl import write_hdf5
from ..envs.errors import DataError
from ..envs.system import core_count
from ..envs.tasks.environment import close_env, make_env
from .checkpoint import saving
from .replay import Replay, split_replay
from .target import Evaluation, Target, play

LEVELS = ("random", "medium", "medium-replay", "medium-expert", "expert")
RANDOM_EPISODES = 20
_STATISTICS = ("episodes", "total_steps", "mean_return", "mean_length")

# As in local_sets.py: measured to share the policy's products well.
_EPISODES_PER_JOB = 8

# The first part of a job's seed is the run's, the second says what the episodes are for; 1 are the evaluations'.
_DATA = 2


@dataclass(frozen=True)
class Choice:
    """The checkpoints that the levels are of, and the mean return of uniform random actions."""

    random_return: float
    medium: Evaluation
    expert: Evaluation

    def __str__(self) -> str:
        """The choice in words, with what is odd about it."""
        medium, expert = self.medium, self.expert
        text = (
            f"mean returns: random actions {self.random_return:.1f}, medium {medium.return_mean:.1f} "
            f"(step {medium.steps:,}), expert {expert.return_mean:.1f} (step {expert.steps:,})"
        )
        if expert.return_mean <= self.random_return:
            return f"{text}; expert is no better than random actions: train longer"
        if medium == expert:
            return f"{text}; medium and expert are one checkpoint: train longer, or save more often"
        return text


def choose_checkpoints(evaluations: Sequence[Evaluation], random_return: float, fraction: float) -> Choice:
    """Expert is the checkpoint of the highest mean return; medium, up to it, the one nearest to a share of the way.

    The way is that from the random policy's mean return to the expert's, the share `fraction`. Later checkpoints are no
    candidates, for medium-replay, all experience up to medium, must not contain the expert's.

    Raises:
        DataError: nothing was evaluated.
    """
    if not evaluations:
        raise DataError(
            "no checkpoint was evaluated yet, so no policy is there to collect with; train longer (--resume)"
        )
    expert = max(evaluations, key=lambda evaluation: evaluation.return_mean)
    goal = random_return + fraction * (expert.return_mean - random_return)
    candidates = [evaluation for evaluation in evaluations if evaluation.steps <= expert.steps]
    medium = min(candidates, key=lambda evaluation: abs(evaluation.return_mean - goal))
    return Choice(random_return, medium, expert)


def random_return(target: Target, seed: int) -> float:
    """Mean undiscounted return of uniform random actions.

    Raises:
        SimulationError: the environment raised.
    """
    tracks = play(Job(target.env_id, None, target.horizon, (seed, _DATA, 0), 0, RANDOM_EPISODES))
    return float(np.mean([track.rewards.sum(dtype=np.float64) for track in tracks]))


@dataclass(frozen=True)
class Source:
    """A training run to make data from: its folder and seed, all its experience, the rows where it was resumed.

    `register` is the module, if any, that the workers import before they make the environment.
    """

    target: Target
    folder: Path
    seed: int
    replay: Replay
    restarts: Sequence[int]
    choice: Choice
    register: str | None = None


class LevelMaker:
    """Makes levels one after another, in the body of a `with` statement; what two of them share is simulated once.

    Args:
        source: the run.
        n_steps: steps of each policy, plus what it takes to end the last episode.
        on_episode: called with each episode; an exception it raises ends the work.
    """

    def __init__(self, source: Source, n_steps: int, on_episode: Callable[[Track], None]) -> None:
        """Nothing is simulated yet."""
        self._source, self._n_steps, self._on_episode = source, n_steps, on_episode
        self._played: dict[int, list[Track]] = {}
        self._open = ExitStack()
        self._pool: WorkerPool | None = None  # started when first needed

    def __enter__(self) -> Self:
        """The maker itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker processes."""
        self._open.close()

    def policies(self, level: str) -> tuple[Evaluation | None, ...]:
        """The policies that act in a level (None: random actions); empty for the one made of experience."""
        choice = self._source.choice
        return {
            "random": (None,),
            "medium": (choice.medium,),
            "medium-replay": (),
            "medium-expert": (choice.medium, choice.expert),
            "expert": (choice.expert,),
        }[level]

    def recipe(self, level: str) -> dict[str, str | int]:
        """What determines a level's data: attributes of its file."""
        source = self._source
        medium, policies = source.choice.medium, self.policies(level)
        if policies:
            described, steps = ", then ".join(_describe(policy) for policy in policies), self._n_steps
        else:
            described, steps = f"all experience of SAC up to {medium.steps:,} steps, in training", medium.steps
        return {
            "env_id": source.target.env_id,
            "origin": f"collected with aaren-rl {version('aaren-rl')}; not the D4RL file",
            "policy": described,
            "steps": steps,
            "max_episode_steps": source.target.horizon,
            "seed": source.seed,
            "gymnasium": version("gymnasium"),
            "mujoco": version("mujoco"),
            "stable_baselines3": version("stable-baselines3"),
        }

    def made(self, level: str, path: Path) -> dict[str, float] | None:
        """Statistics of a file that was made by the very recipe: see `write`; None where there is none."""
        try:
            with h5py.File(path, "r") as file:
                if any(file.attrs.get(name) != value for name, value in self.recipe(level).items()):
                    return None
                return {name: float(file.attrs[name]) for name in _STATISTICS}
        except (OSError, KeyError, ValueError, TypeError):
            return None

    def write(self, level: str, path: Path) -> dict[str, float]:
        """Write a level in D4RL's layout, its recipe and statistics as attributes.

        Returns the statistics: episodes, total_steps, mean_return, mean_length.

        Raises:
            DataError, SimulationError: as `episodes`.
            OSError: the disk is full or the folder cannot be written.
        """
        episodes = self.episodes(level)
        values = (len(episodes), episodes.n_steps, float(episodes.returns.mean()), float(episodes.lengths.mean()))
        statistics: dict[str, float] = dict(zip(_STATISTICS, values, strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_hdf5(path, episodes, {**self.recipe(level), **statistics, "notes": "; ".join(episodes.notes)})
        return statistics

    def episodes(self, level: str) -> Episodes:
        """A level's data.

        Raises:
            DataError: no episode ended before the medium checkpoint (medium-replay).
            SimulationError: a simulation failed.
        """
        source, name = self._source, dataset_name(self._source.target, level)
        policies = self.policies(level)
        if policies:
            tracks = [track for policy in policies for track in self._play(policy)]
            return join_tracks(tracks, dataset=name, source="file", env_id=source.target.env_id)
        rows = source.choice.medium.steps // source.replay.rewards.shape[1]
        env = make_env(source.target.env_id)
        units = ActionUnits(env.action_space)
        close_env(env)
        restarts = [row for row in source.restarts if row < rows]
        return split_replay(source.replay.until(rows), restarts, units, dataset=name, env_id=source.target.env_id)

    def _play(self, policy: Evaluation | None) -> list[Track]:
        steps, source = policy.steps if policy else 0, self._source
        if steps not in self._played:
            weights = str(source.folder / "actors" / f"{steps}.safetensors") if policy else None
            target, tracks = source.target, []
            seed = (source.seed, _DATA, steps)
            job = Job(target.env_id, weights, target.horizon, seed, 0, _EPISODES_PER_JOB, source.register)
            if self._pool is None:
                self._pool = self._open.enter_context(WorkerPool(core_count()))
            for track in self._pool.play(job, self._n_steps):
                tracks.append(track)
                self._on_episode(track)
            self._played[steps] = tracks
        return self._played[steps]


def _describe(policy: Evaluation | None) -> str:
    if policy is None:
        return "uniform random actions"
    return f"SAC at {policy.steps:,} steps, stochastic, mean return {policy.return_mean:.1f}"


def dataset_name(target: Target, level: str) -> str:
    """`ant-medium`, `Pendulum-v1-medium`: the stem of a level's file."""
    return f"{target.family or target.env_id.replace('/', '_')}-{level}"


class Stopped(Exception):
    """A signal came while data were made; whole data sets are kept."""


def write_levels(source: Source, files: Mapping[str, Path], n_steps: int, stop: StopRequest) -> str:
    """Makes the data sets, level -> file, that are not there yet; returns a table of all of them.

    Raises:
        Stopped: a signal came.
        DataError: no episode is there to write, or the disk is full.
        SimulationError: a simulation failed.
    """
    with progress_bar(total=0, unit="step", unit_scale=True) as bar:

        def on_episode(track: Track) -> None:
            bar.set_postfix_str(f"return {track.rewards.sum():.0f}", refresh=False)
            bar.update(min(len(track.rewards), (bar.total or 0) - bar.n))
            if stop.signal is not None:
                raise Stopped

        with LevelMaker(source, n_steps, on_episode) as maker:
            rows = {level: maker.made(level, file) for level, file in files.items()}
            acting = {policy for level, row in rows.items() if row is None for policy in maker.policies(level)}
            bar.total = len(acting) * n_steps
            # First what is made of experience alone: where there is too little, nothing is simulated in vain.
            for level, file in sorted(files.items(), key=lambda item: bool(maker.policies(item[0]))):
                bar.set_description(f"{source.target.env_id}, {level}")
                with saving(source.folder):
                    rows[level] = rows[level] or maker.write(level, file)
    header = f"{'level':<14} {'episodes':>8} {'steps':>9} {'return':>9} {'score':>6} {'length':>7}  file"
    return "\n".join([header, *(_line(level, row or {}, source.target, files[level]) for level, row in rows.items())])


def _line(level: str, row: Mapping[str, float], target: Target, file: Path) -> str:
    """A row of the table; without reference returns there is no score."""
    score = f"{normalized_score(target.family, row['mean_return']):.1f}" if target.family else "-"
    return (
        f"{level:<14} {row['episodes']:>8.0f} {row['total_steps']:>9.0f} {row['mean_return']:>9.1f} {score:>6} "
        f"{row['mean_length']:>7.1f}  {file}"
    )
