"""Files on which libhdf5 itself crashes or never ends: another process tries them first."""

import struct

import h5py
import numpy as np
import pytest

from aaren_rl.envs import DataError
from aaren_rl.envs.data.hdf5 import opening
from aaren_rl.envs.data.hdf5.opening import check_file
from aaren_rl.envs.data.load import load_task


@pytest.mark.faults(3)
def test_3_a_file_that_crashes_the_library_is_refused(hopper_file, tmp_path):
    """A chunk whose record says that it has no bytes: libhdf5 2.0 reads behind their end."""
    path = tmp_path / "evil.hdf5"
    with h5py.File(hopper_file) as good, h5py.File(path, "w") as file:
        for key in good:
            data = good[key][()]
            options = {"chunks": data.shape, "compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset(key, data=data, **options)
        chunk = file["actions"].id.get_chunk_info(0)
    content = path.read_bytes()
    record = struct.pack("<II", chunk.size, 0)
    assert content.count(record) == 1
    content = content.replace(record, bytes(8)).replace(struct.pack("<Q", chunk.byte_offset), bytes(8))
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"evil\.hdf5: the HDF5 library crashes on it|not a readable HDF5 file"):
        load_task("mine", str(path), env_id="Hopper-v4")


@pytest.mark.faults(3)
@pytest.mark.parametrize(
    ("script", "did"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashes on it"),
        ("while True: pass", "does not come to an end"),
    ],
)
def test_3_a_crash_and_a_hang_are_told(tmp_path, monkeypatch, script, did):
    path = tmp_path / "x.hdf5"
    path.write_bytes(b"x")
    monkeypatch.setattr(opening, "_READ_ALL", script)
    monkeypatch.setattr(opening, "_SECONDS", 2)
    with pytest.raises(DataError, match=did) as caught:
        check_file(path)
    assert caught.value.exit_code == 3


def test_what_is_wrong_otherwise_is_left_to_the_reader(tmp_path):
    check_file(tmp_path / "absent.hdf5")
    (tmp_path / "text.hdf5").write_text("no HDF5 at all")
    check_file(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "links.hdf5", "w") as file:
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/")
        file["here"] = h5py.SoftLink("/numbers")
        file["numbers"] = np.zeros(3)
    check_file(tmp_path / "links.hdf5")
