"""The command collect: SAC or DQN in any environment, and D4RL-like data sets from what it plays."""
