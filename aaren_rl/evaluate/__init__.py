"""The command evaluate: scores with everything needed to reproduce them, and videos."""
