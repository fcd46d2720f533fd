"""Offline data: episodes, the checks on them, and the formats they are read from."""
