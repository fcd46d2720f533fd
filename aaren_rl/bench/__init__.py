"""The command bench: measurements of code that is first tested against a reference."""
