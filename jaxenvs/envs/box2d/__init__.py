"""Environments of rigid bodies, as Gymnasium has them in Box2D."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.box2d"

ENVIRONMENTS = (
    Spec("LunarLander-v3", f"{_HERE}.lunar_lander:LunarLander", max_episode_steps=1000, reward_threshold=200.0),
    Spec(
        "LunarLanderContinuous-v3",
        f"{_HERE}.lunar_lander:LunarLander",
        max_episode_steps=1000,
        reward_threshold=200.0,
        parameters={"continuous": True},
    ),
    Spec(
        "BipedalWalker-v3",
        f"{_HERE}.bipedal_walker:BipedalWalker",
        max_episode_steps=1600,
        reward_threshold=300.0,
    ),
    Spec(
        "BipedalWalkerHardcore-v3",
        f"{_HERE}.bipedal_walker:BipedalWalker",
        max_episode_steps=2000,
        reward_threshold=300.0,
        parameters={"hardcore": True},
    ),
)
