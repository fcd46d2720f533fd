"""Trying a file of unknown origin in a process of its own: libhdf5 itself may crash, or never end, on a damaged file.

What the process reads is thrown away; this one reads the file after the other has survived it. Files that were made
here, or are held to a SHA-256, need none of this.
"""

import signal
import subprocess
from functools import lru_cache
from pathlib import Path

from ...errors import DataError
from ...lifeline import start_child

# Reading is far faster than this, and a processor's time does not depend on how busy the machine is.
_SECONDS, _BYTES_PER_SECOND = 10, 2**20

# The package's __init__ would import simulators: its modules are put into a package without one.
_SCRIPT = """
import importlib, sys, types
package = types.ModuleType("readers")
package.__path__ = [sys.argv[1]]
sys.modules["readers"] = package
importlib.import_module("readers.data.hdf5.opening").read_all(sys.argv[2], int(sys.argv[3]))
"""


def try_file(path: Path) -> None:
    """Have another process read the file first; once for a file that stays as it is.

    Raises:
        DataError: the process crashed or did not come to an end.
    """
    try:
        state = path.stat()
    except OSError:
        return  # the reader says what is wrong
    _try_once(str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _try_once(path: str, _inode: int, size: int, _modified: int) -> None:
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    arguments, nothing = [str(Path(__file__).parents[2]), path, str(seconds)], subprocess.DEVNULL
    code = start_child(_SCRIPT, arguments, flags=["-P"], stdin=nothing, stdout=nothing, stderr=nothing).wait()
    if code < 0:
        did = "does not come to an end" if -code == signal.SIGXCPU else "crashes"
        raise DataError(f"{path}: the HDF5 library {did} on it, so it is damaged; do not trust it, get the file again")
