"""The data that a configuration names."""

from __future__ import annotations

from ..envs import Episodes, Reference, Task, load_task
from .config import DataConfig


def load_data(data: DataConfig) -> tuple[Task, Episodes]:
    """The task and its episodes.

    Raises:
        EnvsError: see `envs.load_task`.
    """
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
        local_steps=data.local_steps,
    )
