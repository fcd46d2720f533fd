"""Environments in which a policy needs a memory; importing this registers them with Gymnasium, under `aaren_rl/`."""

import gymnasium as gym
from gymnasium.envs.registration import WrapperSpec


def _positions(env: str, count: int) -> None:
    wrapper = WrapperSpec("Positions", f"{__name__}.positions:Positions", {"count": count})
    entry_point = gym.spec(f"{env}-v4").entry_point
    gym.register(f"aaren_rl/{env}-P-v4", entry_point, max_episode_steps=1000, additional_wrappers=(wrapper,))


gym.register("aaren_rl/TMaze-v0", f"{__name__}.tmaze:TMaze")
gym.register("aaren_rl/TMazeDiscrete-v0", f"{__name__}.tmaze:DiscreteTMaze")
gym.register("aaren_rl/Reacher-Recall-v0", f"{__name__}.reacher:ReacherRecall", max_episode_steps=1000)
_positions("Hopper", 5)
_positions("Walker2d", 8)
