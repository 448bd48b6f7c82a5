"""Policies whose episodes tests compare, and SB3's evaluate_policy, for each environment."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy

import jaxenvs
from jaxenvs import Environment, TimeStep, environment


@functools.cache
def policy_for(env, cls=ActorCriticPolicy, **settings):
    """One that does different things in different states."""
    torch.manual_seed(2)
    env = jaxenvs.make(env) if isinstance(env, str) else env
    policy = cls(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8], **settings)
    with torch.no_grad():
        for parameter in policy.parameters():
            scale = 0.5 if parameter.ndim > 1 else 0.05
            parameter.add_(scale * torch.randn(parameter.shape))
    return policy


def of_sb3(model, env, seed=None):
    """Return the first episode of each environment, by its index."""
    if seed is not None:
        env.seed(seed)
    ends = {}

    def at_step(local_variables, _):
        if local_variables["done"]:
            episode = local_variables["info"]["episode"]
            ends[local_variables["i"]] = (episode["r"], episode["l"])

    evaluate_policy(model, env, env.num_envs, callback=at_step, warn=False)
    returns, lengths = zip(*[ends[index] for index in range(env.num_envs)])
    return np.array(returns), np.array(lengths)


def assert_equal(one, other):
    for name in ("returns", "lengths", "terminated", "truncated"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-5, err_msg=name)


@environment
class Picture(Environment[jax.Array]):
    """Shows one random picture, channels last, for 2 steps. The reward is the action."""

    observation_space = spaces.Box(0, 255, (4, 3, 2), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, key):
        picture = jax.random.randint(key, (4, 3, 2), 0, 256, jnp.uint8)
        return (picture, jnp.zeros((), jnp.int32)), TimeStep.create(picture)

    def step(self, state, action):
        picture, steps = state
        return (picture, steps + 1), TimeStep.create(picture, reward=action[0], terminated=steps >= 1)
