"""HDF5 files of unknown origin: opened with checks, tried apart, read in D4RL's layout."""
