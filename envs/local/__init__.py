"""What is made on this machine: D4RL-like datasets, and built-in tasks with their data, a file each."""
