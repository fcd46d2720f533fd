"""Tasks: the table of names, environments of one's own, and what a return is worth."""
