"""The steps of an update: how they are drawn from the data, and which contexts suit it."""
