"""A Minari dataset to spoil."""

import shutil

import pytest
from minari_sets import ID


@pytest.fixture
def data(minari_recorded, tmp_path, monkeypatch):
    """The `data` folder of a copy to spoil."""
    root = tmp_path / "datasets"
    shutil.copytree(minari_recorded, root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root / ID / "data"
