"""D4RL's levels (random, medium, ...) of a training run: chooses their checkpoints and makes their data."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np

from ..base.errors import DataError
from ..base.system import core_count
from ..cli import StopRequest, aligned, progress_bar
from ..envs import normalized_score
from ..envs.data.episodes import Episode, Episodes, join
from ..envs.data.hdf5.d4rl import write_hdf5
from ..envs.local.policy import ActionUnits, Job, WorkerPool, simulate
from ..envs.local.sets import EPISODES_PER_JOB
from ..envs.tasks.environment import inspect_spaces
from ..policies.names import return_words
from .checkpoint import Experience, Saved, saving
from .config import DATA, CollectConfig, Evaluation

LEVELS = ("random", "medium", "medium-replay", "medium-expert", "expert")
RANDOM_EPISODES = 20
_STATISTICS = ("episodes", "total_steps", "mean_return", "mean_length")


@dataclass(frozen=True)
class Choice:
    """The checkpoints of the levels, and the mean return of uniform random actions."""

    random_return: float
    medium: Evaluation
    expert: Evaluation

    def __str__(self) -> str:
        medium, expert, odd = self.medium, self.expert, ""
        if expert.return_mean <= self.random_return:
            odd = "; expert is no better than random actions: train longer"
        elif medium == expert:
            odd = "; medium and expert are the same checkpoint: train longer, or save more often"
        return (
            f"mean returns: random actions {return_words(self.random_return)}, "
            f"medium {return_words(medium.return_mean)} (step {medium.steps:,}), "
            f"expert {return_words(expert.return_mean)} (step {expert.steps:,}){odd}"
        )

    def policies(self, level: str) -> tuple[Evaluation | None, ...]:
        """The policies that act in a level (None: random actions); empty for medium-replay, which is experience."""
        return {
            "random": (None,),
            "medium": (self.medium,),
            "medium-replay": (),
            "medium-expert": tuple(dict.fromkeys((self.medium, self.expert))),  # no episode twice
            "expert": (self.expert,),
        }[level]


def choose_checkpoints(evaluations: Sequence[Evaluation], random_return: float, fraction: float) -> Choice:
    """Chooses expert, the checkpoint of the highest mean return, and medium.

    Medium's mean return is nearest to `fraction` of the way from the random policy's to the expert's. Checkpoints after
    expert are excluded: medium-replay, all experience up to medium, must not contain the expert's. Raises DataError if
    no checkpoint was evaluated.
    """
    if not evaluations:
        raise DataError("no checkpoint is evaluated yet; train longer (--resume)")
    expert = max(evaluations, key=lambda evaluation: evaluation.return_mean)
    goal = random_return + fraction * (expert.return_mean - random_return)
    candidates = [evaluation for evaluation in evaluations if evaluation.steps <= expert.steps]
    medium = min(candidates, key=lambda evaluation: abs(evaluation.return_mean - goal))
    return Choice(random_return, medium, expert)


def random_return(config: CollectConfig) -> float:
    """Mean undiscounted return of uniform random actions; SimulationError where the environment fails."""
    seed, kwargs = (config.seed, DATA, 0), config.json_kwargs
    tracks = simulate(Job(config.env_id, None, config.horizon, seed, 0, RANDOM_EPISODES, env_kwargs=kwargs))
    return float(np.mean([track.rewards.sum(dtype=np.float64) for track in tracks]))


def dataset_name(config: CollectConfig, level: str) -> str:
    """`ant-medium`, `Pendulum-v1-medium`: the stem of a level's file."""
    return f"{config.family or config.env_id.replace('/', '_')}-{level}"


class Stopped(Exception):
    """A signal came while data were made; complete datasets are kept."""


@dataclass(frozen=True)
class Source:
    """A training run to make data from, in its folder.

    `n_steps` is the number of steps of each policy; the last episode is completed. `register` is the module, if any,
    that the workers import before they make the environment.
    """

    config: CollectConfig
    folder: Path
    saved: Saved
    choice: Choice
    n_steps: int
    register: str | None = None

    def recipe(self, level: str) -> dict[str, str | int]:
        """The attributes of a level's file, which determine its data."""
        medium, policies = self.choice.medium, self.choice.policies(level)
        described, steps = (
            f"all experience of {medium.algorithm} up to {medium.steps:,} steps, in training",
            medium.steps,
        )
        if policies:
            names = [str(policy or "uniform random actions") for policy in policies]
            described, steps = ", then ".join(names), self.n_steps
        return {
            "env_id": self.config.env_id,
            "origin": f"collected with aaren-rl {version('aaren-rl')}; not the D4RL file",
            "policy": described,
            "steps": steps,
            "max_episode_steps": self.config.horizon,
            "seed": self.config.seed,
            **({"env_kwargs": self.config.json_kwargs} if self.config.env_kwargs else {}),
            "gymnasium": version("gymnasium"),
            "mujoco": version("mujoco"),
            "stable_baselines3": version("stable-baselines3"),
        }

    def made(self, level: str, path: Path) -> dict[str, float] | None:
        """Statistics of a file of the same recipe; None if there is no such file. A line names what differs."""
        try:
            with h5py.File(path, "r") as file:
                recipe, found = self.recipe(level), dict(file.attrs)
                if other := [f"{name} {found.get(name)}" for name, value in recipe.items() if found.get(name) != value]:
                    print(f"{path}: was made with {', '.join(other)}; it is replaced", file=sys.stderr)
                    return None
                return {name: float(file.attrs[name]) for name in _STATISTICS}
        except (OSError, KeyError, ValueError, TypeError):
            return None

    def write(self, level: str, path: Path, tracks: Mapping[Evaluation | None, list[Episode]]) -> dict[str, float]:
        """Write a level in D4RL's layout from its policies' episodes, and return its statistics."""
        name, env_id = dataset_name(self.config, level), self.config.env_id
        if policies := self.choice.policies(level):
            joined = [track for policy in policies for track in tracks[policy]]
            episodes = join(joined, dataset=name, env_id=env_id)
        else:
            rows = self.choice.medium.steps // self.config.envs
            experience = {key: array[:rows] for key, array in self.saved.experience.items()}
            units = ActionUnits(inspect_spaces(env_id, **self.config.env_kwargs).action)
            resumed = [row for row in self.saved.resumed if row < rows]
            episodes = split_experience(experience, units, name, env_id, resumed)
        values = (len(episodes), episodes.n_steps, float(episodes.returns.mean()), float(episodes.lengths.mean()))
        statistics: dict[str, float] = dict(zip(_STATISTICS, values, strict=True))
        with saving(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_hdf5(path, episodes, {**self.recipe(level), **statistics, "notes": "; ".join(episodes.notes)})
        return statistics


def write_levels(source: Source, files: Mapping[str, Path], stop: StopRequest) -> str:
    """Makes the data sets, level -> file, that are not there yet; returns a table of all of them.

    Raises Stopped at a signal, DataError where no episode is there to write or the disk is full, SimulationError where
    a simulation failed.
    """
    config, policies = source.config, source.choice.policies
    rows = {level: source.made(level, file) for level, file in files.items()}
    # First what is made of experience alone: where there is too little, nothing is simulated in vain.
    missing = sorted((level for level, row in rows.items() if row is None), key=lambda level: bool(policies(level)))
    total = source.n_steps * len({policy for level in missing for policy in policies(level)})
    tracks: dict[Evaluation | None, list[Episode]] = {}
    with ExitStack() as stack, progress_bar(total=total, unit="step", unit_scale=True) as bar:
        pool: WorkerPool | None = None
        for level in missing:
            bar.set_description(f"{config.env_id}, {level}")
            for policy in policies(level):
                if policy in tracks:
                    continue
                pool = pool or stack.enter_context(WorkerPool(core_count()))
                tracks[policy] = []
                trained, actors = policy.steps if policy else 0, source.folder / "actors"
                weights, seed = str(actors / f"{trained}.safetensors") if policy else None, (config.seed, DATA, trained)
                played = config.env_id, weights, config.horizon, seed, 0, EPISODES_PER_JOB, source.register
                job = Job(*played, config.json_kwargs)
                for track in pool.play(job, source.n_steps):
                    tracks[policy].append(track)
                    bar.set_postfix_str(f"return {track.rewards.sum():.0f}", refresh=False)
                    bar.update(min(len(track.rewards), total - bar.n))
                    if stop.signal is not None:
                        raise Stopped
            rows[level] = source.write(level, files[level], tracks)
    table = [("level", "episodes", "steps", "return", "score", "length", "file")]
    for level, row in rows.items():
        assert row is not None
        episodes, steps, mean_return, length = (row[name] for name in _STATISTICS)
        score = f"{normalized_score(config.family, mean_return):.1f}" if config.family else "-"  # no reference returns
        numbers = (f"{episodes:.0f}", f"{steps:.0f}", return_words(mean_return), score, f"{length:.1f}")
        table.append((level, *numbers, str(files[level])))
    return "\n".join(aligned(table))


def split_experience(
    experience: Experience, units: ActionUnits, dataset: str, env_id: str, resumed: Sequence[int] = ()
) -> Episodes:
    """The whole episodes of all environments in the order in which they ended, actions in the environment's units.

    Episodes that were cut before the rows where the run was `resumed`, or were unfinished at the last row, are left
    out, with a note. Raises DataError if no episode ended.
    """
    done, places = experience["dones"], []
    for column in range(done.shape[1]):
        begins = np.ones(len(done), bool)
        begins[1:] = done[:-1, column] != 0
        begins[list(resumed)] = True
        starts, ends = np.flatnonzero(begins), np.flatnonzero(done[:, column]) + 1
        places += [(end, column, starts[np.searchsorted(starts, end) - 1]) for end in ends]
    places.sort()
    if not places:
        raise DataError(f"{dataset}: no episode ended within the first {done.size:,} steps; train longer")
    lengths = np.array([end - start for end, _, start in places], dtype=np.int64)

    def join(name: str) -> np.ndarray:
        return np.concatenate([experience[name][start:end, column] for end, column, start in places])

    dropped = done.size - int(lengths.sum())
    return Episodes(
        observations=join("observations"),
        actions=units(join("actions")),
        rewards=join("rewards"),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        terminated=np.array([not experience["timeouts"][end - 1, column] for end, column, _ in places]),
        dataset=dataset,
        env_id=env_id,
        notes=(f"dropped {dropped:,} steps of unfinished episodes",) if dropped else (),
    )
