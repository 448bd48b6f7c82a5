"""Train many agents at once in one compiled function: REINFORCE on CartPole-v1, without Python in the loop.

Environments are pure functions, so the whole training of an agent is one too. `jax.vmap` over it trains one agent for
each seed.
Run it: python examples/pure_jax_loop.py
"""

import time

import jax
import jax.numpy as jnp
import optax

import jaxenvs

NUM_SEEDS, NUM_ENVS, NUM_UPDATES = 8, 16, 150
MAX_STEPS = 500  # the time limit of CartPole-v1

# No resets: every update plays one episode in each environment, and ignores what follows its end.
venv = jaxenvs.make_vec("CartPole-v1", NUM_ENVS, autoreset=jaxenvs.AutoresetMode.DISABLED)
optimizer = optax.adam(0.05)


def logits(params, observation):
    return observation @ params["weights"] + params["bias"]


def play(params, key):
    """Play one episode per environment: the trajectory, and a mask of its steps, both (MAX_STEPS, NUM_ENVS)."""

    def policy(key, observation):
        return jax.random.categorical(key, logits(params, observation))

    _, trajectory = jaxenvs.rollout(venv, policy, key, MAX_STEPS)
    done = trajectory.timestep.done
    return trajectory, jnp.cumsum(done, axis=0) - done == 0


def loss(params, trajectory, alive):
    """Return the loss of REINFORCE: log-probabilities of the actions, weighted by the returns that followed."""
    reward = trajectory.timestep.reward * alive
    to_go = jnp.cumsum(reward[::-1], axis=0)[::-1]
    mean = (to_go * alive).sum() / alive.sum()
    deviation = jnp.sqrt(((to_go - mean) ** 2 * alive).sum() / alive.sum())
    log_prob = jax.nn.log_softmax(logits(params, trajectory.observation))
    chosen = jnp.take_along_axis(log_prob, trajectory.action[..., None], axis=-1)[..., 0]
    return -(chosen * alive * (to_go - mean) / (deviation + 1e-8)).sum() / alive.sum()


def train(key):
    """Train one agent, and return the mean return of each update, (NUM_UPDATES,)."""
    params = {"weights": jnp.zeros((4, 2)), "bias": jnp.zeros(2)}

    def update(carry, key):
        params, optimizer_state = carry
        trajectory, alive = play(params, key)
        gradient = jax.grad(loss)(params, trajectory, alive)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        mean_return = (trajectory.timestep.reward * alive).sum(0).mean()
        return (optax.apply_updates(params, updates), optimizer_state), mean_return

    _, returns = jax.lax.scan(update, (params, optimizer.init(params)), jax.random.split(key, NUM_UPDATES))
    return returns


if __name__ == "__main__":
    start = time.perf_counter()
    returns = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), NUM_SEEDS)).block_until_ready()
    seconds = time.perf_counter() - start
    print("update " + " ".join(f"seed {seed:3d}" for seed in range(NUM_SEEDS)))
    for update in [*range(0, NUM_UPDATES, 30), NUM_UPDATES - 1]:
        print(f"{update:6d} " + " ".join(f"{value:8.1f}" for value in returns[:, update]))
    print(f"{NUM_SEEDS} agents in {seconds:.1f} s; median of the returns {jnp.median(returns[:, -1]):.1f}")
    assert jnp.median(returns[:, -1]) > 400
