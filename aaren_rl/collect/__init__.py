"""The command collect: data of policies of Stable-Baselines3, which it trains or which the user has trained."""
