"""Train a lander for any wind and gravity, and compare it with a lander that was trained without wind.

`RandomizedParameters` draws gravity and wind for each episode. Each training is one compiled function, and so are the
evaluations at all gravities and winds together.
Run it: python examples/wind_and_gravity.py [thousands of steps, 20 by default]
"""

import sys

import jax
import jax.numpy as jnp

import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import compiler_options

THOUSANDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20  # use 1000 or more to see them land
NUM_ENVS, NUM_STEPS, NUM_EPISODES = 16, 256, 32
WORLDS = [(-10.0, 0.0), (-10.0, 15.0), (-6.0, 15.0), (-11.5, 20.0)]  # gravity [m/s²] and wind [N]

calm = jaxenvs.make("LunarLander-v3", enable_wind=True, wind_power=0.0, turbulence_power=0.0)
randomized = jaxenvs.RandomizedParameters(calm, {"gravity": (-12.0, -4.0), "wind_power": (0.0, 20.0)})
network = learn.ActorCritic.of(calm)
ppo = learn.PPO(n_steps=NUM_STEPS, batch_size=256, n_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01)


def train(env, key):
    """Train a network and return its parameters."""
    venv = jaxenvs.VectorEnv(env, NUM_ENVS)
    return learn.train(key, learn.Training(venv, network, ppo, total_timesteps=1000 * THOUSANDS)).params


def mean_return(params, gravity, wind, key):
    """Return the mean return of NUM_EPISODES episodes at one gravity and wind, taking the most likely actions."""
    env = calm.replace(gravity=gravity, wind_power=wind)
    venv = jaxenvs.VectorEnv(env, NUM_EPISODES, jaxenvs.AutoresetMode.DISABLED)

    def policy(_, observation):
        distribution, _ = network.apply(params, observation)
        return network.to_env(distribution.mode())

    _, trajectory = jaxenvs.rollout(venv, policy, key, 1000)
    return trajectory.timestep.reward.sum(0).mean()  # after its end, an episode has rewards of 0


if __name__ == "__main__":
    gravity, wind = jnp.array(WORLDS).T
    evaluate = jax.jit(jax.vmap(mean_return, in_axes=(None, 0, 0, None)), compiler_options=compiler_options())
    print(f"after {THOUSANDS},000 steps" + "".join(f"{g:9.1f} m/s² {w:2.0f} N" for g, w in WORLDS))
    for name, env in (("calm", calm), ("any wind", randomized)):
        params = jax.jit(lambda key, env=env: train(env, key), compiler_options=compiler_options())(jax.random.key(0))
        returns = evaluate(params, gravity, wind, jax.random.key(1))
        print(f"trained: {name:12}" + "".join(f"{value:19.1f}" for value in returns))
