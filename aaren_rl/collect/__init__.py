"""The command collect: SAC in any environment, and D4RL-like data sets from what it plays."""
