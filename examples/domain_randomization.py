"""Domain randomization in pure JAX: train on poles of many lengths, and evaluate on poles of each length.

`RandomizedParameters` draws a length for each episode. Training and evaluation are one compiled function each.
Run it: python examples/domain_randomization.py
"""

import time

import jax
import jax.numpy as jnp

import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import compiler_options

HALF_LENGTHS = jnp.array([0.1, 0.25, 0.5, 1.0, 2.0, 4.0])  # m; CartPole-v1 has 0.5
NUM_EPISODES, MAX_STEPS = 64, 500  # the time limit of CartPole-v1

plain = jaxenvs.make("CartPole-v1")
randomized = jaxenvs.RandomizedParameters(plain, {"half_length": (0.25, 2.0)})
network = learn.ActorCritic.of(plain)
NUM_UPDATES, NUM_ENVS, NUM_STEPS = 200, 16, 64
ppo = learn.PPO(n_steps=NUM_STEPS, batch_size=512, learning_rate=jnp.linspace(1e-3, 1e-5, NUM_UPDATES))


def train(env, key):
    """Train a network and return its parameters."""
    venv = jaxenvs.VectorEnv(env, NUM_ENVS)
    training = learn.Training(venv, network, ppo, total_timesteps=NUM_UPDATES * NUM_ENVS * NUM_STEPS)
    return learn.train(key, training).params


def mean_return(params, half_length, key):
    """Return the mean return of NUM_EPISODES episodes with poles of this length, taking the most likely actions."""
    env = plain.replace(half_length=half_length)
    venv = jaxenvs.VectorEnv(env, NUM_EPISODES, jaxenvs.AutoresetMode.DISABLED)

    def policy(_, observation):
        distribution, _ = network.apply(params, observation)
        return network.to_env(distribution.mode())

    _, trajectory = jaxenvs.rollout(venv, policy, key, MAX_STEPS)
    done = trajectory.timestep.done
    is_going_on = jnp.cumsum(done, axis=0) - done == 0
    return (trajectory.timestep.reward * is_going_on).sum(0).mean()


if __name__ == "__main__":
    start = time.perf_counter()
    evaluate = jax.jit(jax.vmap(mean_return, in_axes=(None, 0, None)))
    returns = {}
    for name, env in (("CartPole-v1", plain), ("randomised", randomized)):
        params = jax.jit(train, compiler_options=compiler_options())(env, jax.random.key(0))
        returns[name] = evaluate(params, HALF_LENGTHS, jax.random.key(1))
    seconds = time.perf_counter() - start

    print("trained on  " + "".join(f"{2 * length:7.1f} m" for length in HALF_LENGTHS))
    for name, values in returns.items():
        print(f"{name:12s}" + "".join(f"{value:9.1f}" for value in values))
    print(f"two trainings and evaluations in {seconds:.1f} s, including compilation; the maximum is {MAX_STEPS}")
    # Of the lengths that training drew.
    assert returns["randomised"][1:5].min() > 300 > returns["CartPole-v1"][1:5].min()
