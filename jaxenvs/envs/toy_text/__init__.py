"""Small tasks with few states, as in Gymnasium's toy text."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.toy_text"

ENVIRONMENTS = (
    Spec(
        "FrozenLake-v1",
        f"{_HERE}.frozen_lake:FrozenLake",
        max_episode_steps=100,
        reward_threshold=0.70,
        parameters={"map_name": "4x4"},
    ),
    Spec(
        "FrozenLake8x8-v1",
        f"{_HERE}.frozen_lake:FrozenLake",
        max_episode_steps=200,
        reward_threshold=0.85,
        parameters={"map_name": "8x8"},
    ),
    Spec("CliffWalking-v1", f"{_HERE}.cliff_walking:CliffWalking"),
    Spec("CliffWalkingSlippery-v1", f"{_HERE}.cliff_walking:CliffWalking", parameters={"is_slippery": True}),
    Spec("Taxi-v4", f"{_HERE}.taxi:Taxi", max_episode_steps=200, reward_threshold=8.0),
    Spec("Blackjack-v1", f"{_HERE}.blackjack:Blackjack", parameters={"natural": False, "sab": True}),
)
