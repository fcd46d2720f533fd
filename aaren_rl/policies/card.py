"""The card of a policy: how it was made, and what it needs to act."""

import importlib.metadata
import math
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..base.fields import AUTO, RETURN, read
from ..envs.tasks.spaces import checked_layout, flat_size
from ..envs.tasks.table import Task, is_plain_argument, is_safe_name

ROLLOUTS = ("recurrent", "staggered", "window")  # as in `agents`, which imports torch
WEIGHTS = ("ema", "raw")
# How episodes are drawn (`envs.data.draws`), in words.
DRAWN = {"return": "drawn by return", "best": "the best drawn alike", "uniform": "all drawn alike"}

SOURCES = {
    "d4rl": "D4RL's file",
    "local": "a local set, not D4RL's",
    "minari": "Minari",
    "file": "a file of yours",
    "imported": "training elsewhere (imported weights)",
}

# What stands at every score of such data, so that none is taken for another's.
MARKS = {"d4rl": "D4RL", "local": "local", "minari": "Minari", "file": "your file"}


def target_number(target_return: float | str) -> float:
    """A target return as arrays have it: "auto" is infinity."""
    return math.inf if isinstance(target_return, str) else target_return


def target_words(target_return: float | str, digits: str = "g") -> str:
    """A target return in words."""
    return target_return if isinstance(target_return, str) else f"{target_return:{digits}}"


def return_words(value: float) -> str:
    """A return with one decimal, below 10 with three significant digits."""
    value += 0.0  # no -0.0
    if value == 0 or 10 <= abs(value) < 1e9:
        return f"{value:.1f}"
    return f"{value:#.3g}" if 1e-4 <= abs(value) < 10 else f"{value:.3g}"


def draws_words(draws: str, share: float) -> str:
    """How episodes were drawn, as prose has it."""
    return DRAWN[draws] if draws == "uniform" else f"{DRAWN[draws]} (effective share {share:g})"


def weights_words(weights: str) -> str:
    """Which weights act, as prose has it: `EMA weights`; `weights` is one of WEIGHTS, and a precision behind it."""
    return f"{weights.replace('ema', 'EMA')} weights"


LEAST = 1e-37  # a float32 that is no denormal number


@dataclass(frozen=True)
class ReturnBounds:
    """The range of returns-to-go that a model is fed, by time step, in the environment's units."""

    every: int  # time steps of an interval
    low: list[float]  # the smallest of every interval of the training data; later steps have the last one's
    high: list[float]  # the 99 % quantile, likewise

    def __post_init__(self) -> None:
        """Raises ValueError where they are no bounds."""
        pairs = list(zip(self.low, self.high, strict=False))
        if self.every < 1 or not pairs or len(self.low) != len(self.high) or any(low > high for low, high in pairs):
            raise ValueError("return_range must have intervals of at least 1 step, and low <= high for each")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a policy comes from and how it acts: what its card says and all its scores repeat.

    Attributes:
        env: the task, e.g. "hopper-medium".
        env_id: the Gymnasium environment it is evaluated in.
        reference: the source of the reference returns, e.g. "D4RL v2"; None: there are no normalized scores.
        reference_returns: the returns that score 0 and 100.
        source: "d4rl", "local", "minari" or "file"; only "d4rl" is D4RL's own file. "imported": trained
            elsewhere.
        source_path: the file it was trained on, or the weights' where they were imported.
        context_length: steps of a training window.
        rollout: the rollout mode; in a card the one it was trained for.
        rollout_context: K of the modes staggered and window.
        target_return: target return by default, a number or "auto".
        updates: training updates behind the weights; 0: not known.
        weights: "ema" or "raw", in a card by default.
        data_returns: what all its data return: "mean"; "best"; "best_tenth", the mean of the tenth of the episodes with
            the highest returns; of a local set, once trained, "mode", the mean return of the behavior policy without
            its noise. Each where it is known.
        draws: how the episodes were drawn that it was trained on, and draw_share: their effective share.
    """

    env: str
    env_id: str
    reference: str | None
    reference_returns: list[float] | None
    agent: str
    dataset: str
    source: str
    source_path: str
    context: str
    context_length: int
    rollout: str
    rollout_context: int
    target_return: float | str
    updates: int
    weights: str
    data_returns: dict[str, float] = field(default_factory=dict)
    draws: str = "uniform"
    draw_share: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError where the target return is a word other than "auto"."""
        if isinstance(self.target_return, str) and self.target_return != AUTO:
            raise ValueError(f'target_return must be a number or "{AUTO}", not {self.target_return!r:.80}')

    def same_source(self, given: str | list[str]) -> str | list[str]:
        """The source of the run's data, where `given`, its setting, may mean others by now.

        "auto" may mean another file, and a Minari id without a version another version. Several sources are as given.
        """
        if self.source == "minari" and isinstance(given, str) and not re.search(r"-v[0-9]+$", given):
            return f"minari:{self.dataset}"
        return self.source if given == AUTO else given

    def mismatch(self, rollout: str, rollout_context: int) -> str | None:
        """A note if a rollout mode, and its K, use contexts that training did not cover, or None."""
        windows, carried = f"windows of {self.context_length} steps", rollout == "recurrent"
        if self.context == "window" and not carried and rollout_context != self.context_length:
            return (
                f"note: trained on {windows}, but acts with K = {rollout_context}: "
                f"--rollout-context {self.context_length} matches the training"
            )
        if self.context == "mixed" or carried == (self.context != "window"):
            return None
        of_windows = windows, "staggered or window"
        trained, better = of_windows if self.context == "window" else (f"{self.context} contexts", "recurrent")
        return (
            f"note: trained on {trained}, which do not match the rollout {rollout}: scores are far below what "
            f"the policy can do; use {better}, or train on mixed contexts"
        )


@dataclass(frozen=True, kw_only=True)
class PolicyCard(Origin):
    """How a policy was made, and what it needs to act: config.json. It has the fields of `Origin`, too.

    Attributes:
        env_kwargs: passed on to `gymnasium.make`.
        horizon: the environment's time limit, in steps.
        action_low: (A,), the environment's smallest actions; action_high: its largest.
        return_scale: returns-to-go are divided by this.
        observation_mean: (O,); observation_std: (O,).
        exact: `Policy.exact`.
        versions: packages that made it, and the device and the precision of training.
        n_actions: of a discrete environment, whose action bounds are empty; None: actions are continuous.
        action_start: the smallest of discrete actions.
        held_out: share of the episodes that it was not trained on, chosen by the seed.
        action_error: on those, as `evaluate.play.action_error` has it; None: none was held out.
        action_error_floor: the variance of the behavior's own noise on those; None: not known.
        action_nll, action_accuracy: of discrete actions, in place of both.
        return_range: the model is fed no return-to-go outside of it. None: it is fed any.
        observation_space: of observations that are no vectors, what flattens them: `envs.tasks.spaces.Layout`.
        data_sha256: of the numbers of all its data (`Episodes.sha256`); None: not known.
    """

    env_kwargs: dict[str, Any]
    horizon: int
    action_low: list[float]
    action_high: list[float]
    return_scale: float
    observation_mean: list[float]
    observation_std: list[float]
    model: dict[str, Any]
    seed: int
    versions: dict[str, str]
    exact: bool
    n_actions: int | None = None
    action_start: int = 0
    held_out: float = 0.0
    action_error: float | None = None
    action_error_floor: float | None = None
    action_nll: float | None = None
    action_accuracy: float | None = None
    return_range: ReturnBounds | None = None
    data_sha256: str | None = None
    observation_space: dict[str, Any] | None = None

    def above_data(self, target_returns: Iterable[float | str]) -> str | None:
        """A note if a target return is above every episode of the training data, or None."""
        best = self.data_returns.get("best", math.inf)
        highest = max((target for target in target_returns if not isinstance(target, str)), default=best)
        if self.return_range is None or highest <= best:
            return None
        return (
            f"note: the target return {highest:,g} is above the best in the training data, "
            f"{f'{best:,.0f}' if 100 <= abs(best) < 1e9 else return_words(best)}: the model input is "
            "clipped to the 99th percentile of returns-to-go in the data at each step"
        )


def card_from_json(tree: object) -> PolicyCard:
    """A card from the values of a file, whose origin may be unknown.

    Raises:
        ValueError: a key is missing or unknown, or a value is not what it should be; the message names it.
    """
    card = read(PolicyCard, tree)
    if card.draws not in DRAWN or not 0 < card.draw_share <= 1:
        raise ValueError(f"draws must be one of {', '.join(DRAWN)}, not {card.draws!r:.80}, their share in (0, 1]")
    for name, value in card.env_kwargs.items():
        if not is_plain_argument(name, value):
            raise ValueError(f"env_kwargs has {name!r:.80} = {value!r:.80}, which may name a file or a module")
    if not is_safe_name(card.env):
        raise ValueError(f"env is not a name: {card.env!r:.80}")
    for name in ("agent", "env_id", "dataset", "source", "context", "rollout", "reference"):
        if not (getattr(card, name) or "").isprintable():  # it is shown on the terminal
            raise ValueError(f"{name} is not a line of text: {getattr(card, name)!r:.80}")
    for text in (text for pair in card.versions.items() for text in pair):
        if not text.isprintable() or set(text) & set("<>[]|`"):  # it is a part of Markdown pages
            raise ValueError(f"versions has {text!r:.80}, which is not plain text")
    if problem := next(_problems_of_numbers(card), None):
        raise ValueError(problem)
    return card


def _problems_of_numbers(card: PolicyCard) -> Iterator[str]:
    space, count = card.observation_space, len(card.observation_mean)
    if space is not None and (size := flat_size(checked_layout(space))) != count:
        yield f"observation_space is of {size} numbers, observation_mean of {count}"
    deviations = {f"observation_std[{i}]": std for i, std in enumerate(card.observation_std)}
    for name, number in {"return_scale": card.return_scale, "horizon": card.horizon, **deviations}.items():
        if number < LEAST:
            yield f"{name} must be above 0, not {number}"
    if card.n_actions is not None and not (1 <= card.n_actions < 2**31 and abs(card.action_start) < 2**31):
        yield f"n_actions is {card.n_actions}, action_start {card.action_start}: no discrete actions"
    if len(card.action_low) != len(card.action_high):
        yield f"action_low has {len(card.action_low)} values, action_high {len(card.action_high)}"
    for i, (low, high) in enumerate(zip(card.action_low, card.action_high, strict=True)):
        if low >= high:
            yield f"action_low[{i}] is {low}, which is not below action_high's {high}"
    if not isinstance(card.target_return, str) and (problem := RETURN.problem(card.target_return)):
        yield f"target_return {problem}"
    references = card.reference_returns
    if references is not None and not (len(references) == 2 and references[0] < references[1]):
        yield f"reference_returns must be two increasing numbers, not {references!r:.80}"


def task_fields(task: Task) -> dict[str, Any]:
    """The part of a card that the task decides."""
    reference = task.reference
    return {
        **{name: getattr(task, name) for name in ("env_id", "horizon", "n_actions", "action_start")},
        "env": task.name,
        "env_kwargs": dict(task.env_kwargs),
        "observation_space": None if task.layout is None else dict(task.layout),
        "action_low": list(task.action_low),
        "action_high": list(task.action_high),
        "reference": None if reference is None else reference.name,
        "reference_returns": None if reference is None else [reference.low, reference.high],
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that scores depend on."""
    packages = {name: importlib.metadata.version(name) for name in ("aaren-rl", "torch", "gymnasium", "mujoco")}
    return {"python": platform.python_version(), **packages}
