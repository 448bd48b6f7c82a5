"""Sweep learning rates and gravities in one compiled function, which maps over whole trainings.

`learn.train` is a pure function of a key and settings, including the parameters of the environment. `sweep` is
`jax.vmap`, spread over the cores of a CPU.
Run it: python examples/sweep.py
"""

import time

import jax
import jax.numpy as jnp

import jaxenvs
from jaxenvs import learn
from jaxenvs.learn.sweep import reserve_threads, sweep

reserve_threads()  # uses all cores of a CPU; call it before JAX runs anything

LEARNING_RATES = jnp.array([1e-4, 1e-3, 3e-3])
GRAVITIES = jnp.array([9.8, 30.0])

venv = jaxenvs.make_vec("CartPole-v1", num_envs=8)
training = learn.Training(
    venv,
    learn.ActorCritic.of(venv.env),
    learn.PPO(n_steps=32, batch_size=256, n_epochs=10, gamma=0.98, gae_lambda=0.8),
    total_timesteps=40_000,
)


def final_return(key, learning_rate, gravity):
    """Return the mean return of the last 100 episodes of a training."""
    env = venv.env.replace(gravity=gravity)
    swept = training.replace(learning_rate=learning_rate, venv=jaxenvs.VectorEnv(env, venv.num_envs))
    return learn.train(key, swept).metrics["episode_return"][-1]


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), LEARNING_RATES.size * GRAVITIES.size)
    learning_rates, gravities = (grid.ravel() for grid in jnp.meshgrid(LEARNING_RATES, GRAVITIES, indexing="ij"))
    start = time.perf_counter()
    returns = sweep(final_return, keys, learning_rates, gravities)
    seconds = time.perf_counter() - start
    for learning_rate, gravity, value in zip(learning_rates, gravities, returns):
        print(f"learning rate {learning_rate:.4f}, gravity {gravity:4.1f}: return {value:5.1f}")
    print(f"{keys.size} trainings in {seconds:.1f} s, including compilation")
    assert returns.max() > 150
