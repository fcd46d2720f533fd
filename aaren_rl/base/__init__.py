"""What every room stands on: errors, files, processes, the system, ranges of numbers, dataclasses from JSON."""
