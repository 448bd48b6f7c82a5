"""Draw thousands of landers in one picture: one policy, one ground, and another first push for each lander.

Each frame counts, for every pixel, the landers that cover it. A batched `draw` makes the pictures, and `vmap` of `step`
the episodes.
Run it: python examples/thousands_of_landers.py [landers, 64 by default] [thousands of steps of training, 10 by default]
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import compiler_options
from jaxenvs.drawing.film import write_gif

NUM_LANDERS, THOUSANDS = (int(given) for given in [*sys.argv[1:], "64", "10"][:2])  # 2048 and 1000 for a good picture
NUM_STEPS, STEPS_OF_A_FRAME = 400, 8
HEIGHT, WIDTH, AT_ONCE = 200, 300, 64  # pixels, and how many landers are drawn at once, to limit memory
VIOLET = np.array([128.0, 102.0, 230.0])

env = jaxenvs.make("LunarLander-v3")
network = learn.ActorCritic.of(env)
ppo = learn.PPO(n_steps=256, batch_size=256, n_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01)
lander = env.unwrapped  # without the time limit
training = learn.Training(jaxenvs.VectorEnv(env, 16), network, ppo, total_timesteps=1000 * THOUSANDS)


def fly(key, params):
    """Return states (frames, landers) of episodes over the ground of the first lander. Landed landers stay in place."""
    states, timestep = jax.vmap(lander.reset)(jax.random.split(key, NUM_LANDERS))
    states = dataclasses.replace(states, edges=jnp.broadcast_to(states.edges[0], states.edges.shape))

    def step(carry, _):
        states, observations = carry
        distribution, _ = network.apply(params, observations)
        states, timestep = jax.vmap(lander.step)(states, network.to_env(distribution.mode()))
        return (states, timestep.observation), None

    def frame(carry, _):
        after, _ = jax.lax.scan(step, carry, length=STEPS_OF_A_FRAME)
        return after, carry[0]

    return jax.lax.scan(frame, (states, timestep.observation), length=NUM_STEPS // STEPS_OF_A_FRAME)[1]


def draw(states):
    """Draw all landers of a frame in one picture (HEIGHT, WIDTH, 3)."""
    away = states.world.replace(position=states.world.position + 1000.0)
    empty = lander.draw(jax.tree.map(lambda leaf: leaf[0], dataclasses.replace(states, world=away)), HEIGHT, WIDTH)
    pictures = jax.lax.map(lambda state: lander.draw(state, HEIGHT, WIDTH), states, batch_size=AT_ONCE)
    covered = (pictures != empty).any(-1).sum(0)[..., None]
    shown = jnp.minimum(8 * covered / NUM_LANDERS, 1) ** (1 / 3)  # shows one lander, and also the densest place
    return (empty * (1 - shown) + VIOLET * shown).astype(jnp.uint8)


if __name__ == "__main__":
    options = {"compiler_options": compiler_options()}
    params = jax.jit(learn.train, **options)(jax.random.key(0), training).params
    states = jax.jit(fly, **options)(jax.random.key(1), params)
    pictures = np.asarray(jax.jit(lambda states: jax.lax.map(draw, states), **options)(states))
    write_gif(iter(pictures), env.render_fps / STEPS_OF_A_FRAME, "landers.gif")
    print(f"Wrote landers.gif: {NUM_LANDERS} landers, {len(pictures)} frames")
