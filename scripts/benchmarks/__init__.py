"""The benchmarks of scripts/bench: measurements of code that is first tested against a reference."""
