"""What is drawn from a seed."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from bridge import TD3, JaxVecEnv
from jaxenvs import Environment, TimeStep, environment


@environment
class Bandit(Environment):
    """Episodes of one step, whose observation is drawn as actions are while a training warms up."""

    @property
    def observation_space(self):
        return spaces.Box(-1.0, 1.0, (1,))

    action_space = observation_space

    def reset(self, key):
        key, _ = jax.random.split(key)
        x = jax.random.uniform(key, (1,), minval=-1.0)
        return x, TimeStep.create(x)

    def step(self, x, action):
        return x, TimeStep.create(x, -jnp.abs(action[0] - x[0]), terminated=True)


def test_a_model_acts_by_other_draws_than_environments_of_the_same_seed_begin_with():
    settings = {"learning_starts": 1000, "buffer_size": 500, "policy_kwargs": {"net_arch": [4]}}
    model = TD3("MlpPolicy", JaxVecEnv(Bandit(), 1), seed=0, **settings)
    model.learn(200)
    observations, actions = model.replay_buffer.observations[:200, 0, 0], model.replay_buffer.actions[:200, 0, 0]
    assert abs(np.corrcoef(observations, actions)[0, 1]) < 0.3
