"""Minari's data sets: their description, fetched, read and written."""
