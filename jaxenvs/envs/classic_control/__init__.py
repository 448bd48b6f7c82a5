"""The classic control problems, as Gymnasium has them."""

from jaxenvs.registry import Spec

_HERE = "jaxenvs.envs.classic_control"

ENVIRONMENTS = (
    Spec("CartPole-v0", f"{_HERE}.cartpole:CartPole", max_episode_steps=200, reward_threshold=195.0),
    Spec("CartPole-v1", f"{_HERE}.cartpole:CartPole", max_episode_steps=500, reward_threshold=475.0),
    Spec("MountainCar-v0", f"{_HERE}.mountain_car:MountainCar", max_episode_steps=200, reward_threshold=-110.0),
    Spec(
        "MountainCarContinuous-v0",
        f"{_HERE}.mountain_car_continuous:MountainCarContinuous",
        max_episode_steps=999,
        reward_threshold=90.0,
    ),
    Spec("Pendulum-v1", f"{_HERE}.pendulum:Pendulum", max_episode_steps=200),
    Spec("Acrobot-v1", f"{_HERE}.acrobot:Acrobot", max_episode_steps=500, reward_threshold=-100.0),
)
