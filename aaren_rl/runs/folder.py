"""A run's folder: who may write in it, and its configuration."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import TracebackType
from typing import TextIO

import yaml

from ..errors import CheckpointError, UsageError
from ..files import clear_leftovers, write_text
from ..train.config import RunConfig
from ..train.settings import Nested, differences, read_config, to_dict


class RunFolder:
    """`<out>/<env>/<agent>/seed<k>/`, held by one process at a time.

    Files: config.yaml, metrics.jsonl, events.out.tfevents.* (TensorBoard), checkpoints/, policy/, policy_best/.

    Args:
        path: the folder.
        held: False where another process of the same run holds it.
    """

    def __init__(self, path: Path, *, held: bool = True) -> None:
        """Takes the folder, making it where it is missing.

        Raises:
            UsageError: another process holds it.
        """
        self.path = path
        self._lock: TextIO | None = None
        if held:
            self._hold()

    def _hold(self) -> None:
        path = self.path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")
        try:
            # The kernel drops the lock with the process, however it ends: no stale lock is ever left.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise UsageError(f"{path}: in use by another process; choose another --seed or --out") from None
        for folder in (path, path / "checkpoints"):
            clear_leftovers(folder)

    def __enter__(self) -> RunFolder:
        """The folder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets others have the folder."""
        if self._lock is not None:
            self._lock.close()

    @property
    def config_file(self) -> Path:
        """config.yaml."""
        return self.path / "config.yaml"

    def require_new(self) -> None:
        """Refuses a folder that holds a run.

        Raises:
            UsageError: it does.
        """
        if self.config_file.exists():
            raise UsageError(f"{self.path}: holds a run already; --resume continues it, --seed or --out starts another")

    def start(self, config: RunConfig) -> RunConfig:
        """The same configuration, if the folder holds no run yet.

        Raises:
            UsageError: it does.
        """
        self.require_new()
        return config

    def write_config(self, config: RunConfig) -> None:
        """Writes config.yaml: from now on the folder holds a run."""
        write_text(self.config_file, yaml.safe_dump(to_dict(config), sort_keys=False))

    def resume(self, given: Nested) -> RunConfig:
        """The configuration of the run that is there.

        Args:
            given: settings that stood on the command line.

        Raises:
            UsageError: no run is there.
            CheckpointError: a given setting is not the run's; the message names each.
        """
        if not self.config_file.exists():
            raise UsageError(f"{self.path}: no run to resume; leave --resume out to start one")
        config = read_config(self.config_file)
        if differing := differences(to_dict(config), given):
            raise CheckpointError(f"{self.path}: the run to resume differs in {'; '.join(differing)}")
        return config
