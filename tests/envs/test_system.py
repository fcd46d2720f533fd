"""What the operating system says of itself."""

from pathlib import Path

import pytest

from aaren_rl.base import system


def test_the_cache_of_files_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a limit, what is in use is for the most part the cache."""
    for limit, used, cached in system._GROUPS:
        monkeypatch.setattr(system, "_GROUPS", [(str(tmp_path / Path(limit).name), used, cached)])
        (tmp_path / Path(limit).name).write_text("4000000\n")
        (tmp_path / used).write_text("3980000\n")
        (tmp_path / "memory.stat").write_text(f"anon 80000\n{cached[0]} 1000000\n{cached[1]} 2900000\n")
        assert system.free_bytes() == 3_920_000
        (tmp_path / Path(limit).name).write_text("max\n")
        free = system.free_bytes()
        assert free is not None and free > 4_000_000
