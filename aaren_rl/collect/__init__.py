"""The command collect: data of policies of Stable-Baselines3, which it trains or which the user has trained."""

ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")
RANDOM = "random"  # in place of a policy's file
