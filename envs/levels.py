"""D4RL's levels (random, medium, ...) of a training run: the checkpoints they are of, and the making of their data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np

from .collect import Evaluation, Target
from .d4rl import write_hdf5
from .episodes import Episodes
from .errors import DataError
from .replay import Replay, split_replay
from .simulate import ActionUnits, Job, Track, join_tracks, simulate
from .specs import make_env
from .workers import WorkerPool, play_steps, worker_count

LEVELS = ("random", "medium", "medium-replay", "medium-expert", "expert")
RANDOM_EPISODES = 20

# As in local.py: measured to share the policy's products well.
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
    """Mean undiscounted return of uniform random actions."""
    tracks = simulate(Job(target.env_id, None, target.horizon, (seed, _DATA, 0), 0, RANDOM_EPISODES))
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
    """Makes levels one after another; episodes that two of them share are simulated once.

    Args:
        source: the run.
        n_steps: steps of each policy, plus what it takes to end the last episode.
        on_steps: called with the number of steps of each episode; an exception it raises ends the work.
    """

    def __init__(self, source: Source, n_steps: int, on_steps: Callable[[int], None]) -> None:
        """Nothing is simulated yet."""
        self._source, self._n_steps, self._on_steps = source, n_steps, on_steps
        self._played: dict[int, list[Track]] = {}

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

    def write(self, level: str, path: Path) -> dict[str, float]:
        """Write a level in D4RL's layout, with its recipe and statistics as attributes; returns the statistics.

        A file that was made by the same recipe is kept.

        Raises:
            DataError, SimulationError: as `episodes`.
            OSError: the disk is full or the folder cannot be written.
        """
        recipe = self.recipe(level)
        kept = _read_statistics(path, recipe)
        if kept is not None:
            return kept
        episodes = self.episodes(level)
        statistics = _statistics(episodes)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_hdf5(path, episodes, {**recipe, **statistics, "notes": "; ".join(episodes.notes)})
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
        env.close()
        part = Replay(*(array[:rows] for array in source.replay))
        restarts = [row for row in source.restarts if row < rows]
        return split_replay(part, restarts, units, dataset=name, env_id=source.target.env_id)

    def _play(self, policy: Evaluation | None) -> list[Track]:
        steps, source = policy.steps if policy else 0, self._source
        if steps not in self._played:
            weights = str(source.folder / "actors" / f"{steps}.safetensors") if policy else None
            target, tracks = source.target, []
            seed = (source.seed, _DATA, steps)
            job = Job(target.env_id, weights, target.horizon, seed, 0, _EPISODES_PER_JOB, source.register)
            with WorkerPool(worker_count()) as pool:
                for track in play_steps(pool, job, self._n_steps):
                    tracks.append(track)
                    self._on_steps(len(track.rewards))
            self._played[steps] = tracks
        return self._played[steps]


def _describe(policy: Evaluation | None) -> str:
    if policy is None:
        return "uniform random actions"
    return f"SAC at {policy.steps:,} steps, stochastic, mean return {policy.return_mean:.1f}"


def dataset_name(target: Target, level: str) -> str:
    """`ant-medium`, `Pendulum-v1-medium`: the stem of a level's file."""
    return f"{target.family or target.env_id.replace('/', '_')}-{level}"


def _statistics(episodes: Episodes) -> dict[str, float]:
    return {
        "episodes": len(episodes),
        "total_steps": episodes.n_steps,
        "mean_return": float(episodes.returns.mean()),
        "mean_length": float(episodes.lengths.mean()),
    }


def _read_statistics(path: Path, recipe: dict[str, str | int]) -> dict[str, float] | None:
    """Episodes, total_steps, mean_return and mean_length of a file that was made by this recipe; None where none is."""
    try:
        with h5py.File(path, "r") as file:
            if any(file.attrs.get(name) != value for name, value in recipe.items()):
                return None
            return {name: float(file.attrs[name]) for name in ("episodes", "total_steps", "mean_return", "mean_length")}
    except (OSError, KeyError, ValueError, TypeError):
        return None
