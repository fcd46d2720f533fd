"""The module of `allocate` and `gather` before they moved to `episodes`."""

from .episodes import allocate as allocate
from .episodes import gather as gather
