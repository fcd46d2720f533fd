"""Tables to columns: CSV and parquet files, and the folders of parquet files that LeRobot writes."""

from pathlib import Path
from typing import Any

from ...base.errors import DataError, ResourcesError, one_line
from .arrays import frame_columns
from .assemble import Limits, assemble
from .columns import CONVERT, Table
from .episodes import Episodes

TABLES = (".csv", ".parquet")


def read_table(path: Path, *, dataset: str | None = None, **limits: Any) -> Episodes:  # noqa: ANN401  `assemble.Limits`
    """Read a CSV or parquet file, or a folder of parquet files (LeRobot's), with a row for each step.

    Columns are named as in HDF5 files; obs_0, obs_1, ... and columns of lists hold several numbers. A number
    in each row (`episode_index`, `episode_id`, ...) or flags mark episodes. Images and text are left out, with a note.

    Raises:
        DataError: as `read_hdf5`.
        ResourcesError: parquet needs pyarrow, which is not installed.
    """
    held, notes = Limits(**limits), list[str]()
    columns = frame_columns(_frame(path), str(path), held.names, notes)
    labels: dict[str, Any] = {"dataset": dataset or path.stem, "path": str(path), "notes": tuple(notes)}
    way_out = f"name columns so, or say which, --columns; {CONVERT}"
    return Episodes(**assemble([Table(str(path), columns)], held, way_out=way_out, **labels))


def _frame(path: Path) -> Any:  # noqa: ANN401  a frame of pandas
    import pandas as pd  # on demand, as it takes a third of a second

    try:
        if path.is_dir():
            files = sorted(path.glob("data/**/*.parquet")) or sorted(path.glob("*.parquet"))
            return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
        return pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except ImportError as error:
        raise ResourcesError(f"{path}: parquet files need pyarrow; pip install pyarrow") from error
    except Exception as error:  # what pandas and pyarrow raise on a damaged file depends on where the damage is
        raise DataError(
            f"{path}: is no table that can be read ({one_line(error, 120)}); write or copy it again"
        ) from error
