"""A saved policy: its card, its folder and its weights."""
