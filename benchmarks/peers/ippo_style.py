"""IPPO on JaxMARL's simple_spread, in the environment of jaxmarl-requirements.txt.

JaxMARL's own script, baselines/IPPO/ippo_ff_mpe.py (https://github.com/FLAIROx/JaxMARL), is in no package. It is
PureJaxRL's PPO with all agents of all environments as one batch, so `purejaxrl_style` trains here in the same way, on
JaxMARL's environment and with the settings that JaxMARL publishes for the script.

It answers commands as `worker` does:

    {"do": "train", "setting": {...}, "iterations": 4882, "seed": 0, "episodes": 1000}
        ->  {"mean_return": -20.5, "seconds": 60.1, "versions": {...}}
"""

from __future__ import annotations

import functools
import importlib.metadata
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.peers.purejaxrl_style import ActorCritic, training_functions
from benchmarks.peers.worker import Setting, answer

PACKAGES = ("jaxmarl", "flax", "optax", "jax")


@functools.cache
def make() -> Any:
    """Make the environment, which cannot be done while a function is traced."""
    import jaxmarl  # here, because the import prints, which `answer` redirects

    return jaxmarl.make("MPE_simple_spread_v3")


def batch_functions(num_envs: int) -> tuple[Any, Any, int]:
    """Return `reset` and `step` of some environments with their agents as one batch, and the number of actions."""
    env = make()

    def flat(by_agent: dict[str, Any]) -> Any:
        return jnp.stack([by_agent[agent] for agent in env.agents]).reshape(
            num_envs * env.num_agents, *by_agent[env.agents[0]].shape[1:]
        )

    def reset(key: jax.Array) -> Any:
        observation, state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return flat(observation), state

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        actions = dict(zip(env.agents, action.reshape(env.num_agents, num_envs), strict=True))
        keys = jax.random.split(key, num_envs)
        observation, state, reward, done, _ = jax.vmap(env.step)(keys, state, actions)
        return flat(observation), state, flat(reward), flat(done), {}

    return reset, step, env.action_space(env.agents[0]).n


def mean_return(params: Any, episodes: int, key: jax.Array) -> jax.Array:
    """Return what an agent earns in its first episode, with drawn actions: the mean over agents and environments."""
    reset, step, num_actions = batch_functions(episodes)
    network = ActorCritic(num_actions)

    def act(carry: Any, key: jax.Array) -> Any:
        observation, state, is_on = carry
        action_key, step_key = jax.random.split(key)
        action = jax.random.categorical(action_key, network.apply(params, observation)[0])
        observation, state, reward, done, _ = step(step_key, state, action)
        return (observation, state, is_on & ~done), reward * is_on

    reset_key, key = jax.random.split(key)
    observation, state = reset(reset_key)
    begun = observation, state, jnp.ones(len(observation), bool)
    _, rewards = jax.lax.scan(act, begun, jax.random.split(key, 50))  # an episode takes 26 steps
    return rewards.sum(axis=0).mean()


def train(setting: dict[str, Any], iterations: int, seed: int, episodes: int) -> dict[str, Any]:
    """Train with a learning rate that falls linearly to 0, and evaluate."""
    ppo = Setting(**setting)
    agents = make().num_agents
    updates = iterations * ppo.n_epochs * (ppo.rollout // ppo.batch_size)
    schedule = optax.linear_schedule(ppo.learning_rate, 0.0, updates)
    reset, step, num_actions = batch_functions(ppo.n_envs // agents)
    init, run = training_functions(reset, step, num_actions, ppo, iterations, schedule)
    start = time.perf_counter()
    runner, _ = jax.jit(lambda key: run(init(key)))(jax.random.key(seed))
    result = float(jax.jit(mean_return, static_argnums=1)(runner.learner.params, episodes, jax.random.key(seed + 1000)))
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"mean_return": result, "seconds": time.perf_counter() - start, "versions": versions}


if __name__ == "__main__":
    answer({"train": train})
