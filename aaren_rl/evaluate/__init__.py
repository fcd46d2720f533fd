"""The command evaluate: scores that say how they were made, and videos."""
