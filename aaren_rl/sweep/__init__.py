"""The command sweep: a grid of training runs, on this machine's cores or on Ray."""
