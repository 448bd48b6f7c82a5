"""Write an environment in JAX, check it, register it, and train stock Stable-Baselines3 on it.

A drone must stay between the ground and the ceiling. Its motor is on or off. You only have to write the class `Hover`.
Run it: python examples/custom_environment.py
"""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from jaxenvs import Environment, TimeStep, check_env, environment, make_vec, register, rollout, struct
from jaxenvs.sb3 import make_vec_env


@struct
class HoverState:
    height: jax.Array
    velocity: jax.Array


@environment
class Hover(Environment[HoverState]):
    gravity: float = 9.8  # m/s^2
    thrust: float = 15.0  # m/s^2, while the motor is on
    ceiling: float = 2.0  # m
    timestep_length: float = 0.05  # s

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[HoverState, TimeStep]:
        height = self.ceiling * jax.random.uniform(key, minval=0.4, maxval=0.6)
        state = HoverState(height=height, velocity=jnp.zeros(()))
        return state, TimeStep.create(self._observe(state))

    def step(self, state: HoverState, action: jax.Array) -> tuple[HoverState, TimeStep]:
        velocity = state.velocity + self.timestep_length * (self.thrust * action - self.gravity)
        height = state.height + self.timestep_length * velocity
        state = HoverState(height=height, velocity=velocity)
        crashed = (height < 0) | (height > self.ceiling)
        return state, TimeStep.create(self._observe(state), reward=jnp.where(crashed, 0.0, 1.0), terminated=crashed)

    def _observe(self, state: HoverState) -> jax.Array:
        return jnp.stack([state.height, state.velocity]).astype(jnp.float32)


def random_return() -> float:
    """Return the mean return of random actions."""
    venv = make_vec("Hover-v0", num_envs=100)
    _, trajectory = rollout(
        venv, lambda key, observation: jax.random.randint(key, (100,), 0, 2), jax.random.key(0), num_steps=500
    )
    done = trajectory.timestep.done
    return float(trajectory.timestep.episode_return[done].mean())


if __name__ == "__main__":
    check_env(Hover())  # raises an error that says what is wrong, if anything is
    register("Hover-v0", Hover, max_episode_steps=200)

    env = make_vec_env("Hover-v0", n_envs=16, seed=0)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=256, learning_rate=1e-3, gamma=0.98, seed=0)
    model.learn(total_timesteps=50_000)
    trained, _ = evaluate_policy(model, make_vec_env("Hover-v0", n_envs=10, seed=1000), n_eval_episodes=50)

    print(f"Return at random {random_return():.1f}, after training {trained:.1f}; the maximum is 200.")
    assert trained > 3 * random_return()
