"""A Minari dataset to spoil, and a disk without room."""

import resource
import shutil
from contextlib import contextmanager

import pytest
from minari_sets import ID


@pytest.fixture
def data(minari_recorded, tmp_path, monkeypatch):
    """The `data` folder of a copy to spoil."""
    root = tmp_path / "datasets"
    shutil.copytree(minari_recorded, root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root / ID / "data"


@pytest.fixture
def full_disk():
    """`with full_disk():` no file grows beyond 100,000 bytes."""

    @contextmanager
    def full_disk():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full_disk
