"""Trainings over four devices of a CPU, in a process of their own: what they gave, in numbers, as JSON.

`XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.learn.on_devices NAME ...`
"""

import hashlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import jaxenvs
from jaxenvs import learn
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn.sweep import sweep
from tests.masked_environments import Locks

CARTPOLE, PENDULUM = jaxenvs.make_vec("CartPole-v1", 8), jaxenvs.make_vec("Pendulum-v1", 8)
BITS, MASKED = jaxenvs.make_vec("BitFlipping-v0", 8), jaxenvs.VectorEnv(Locks(), 8)
# Without Adam and without a limit of norms, which hide that a gradient is too large by a factor.
PLAIN, FAR = optax.identity(), 1e9
ACTOR_CRITIC = learn.ActorCritic.of(CARTPOLE.env, actor=(8,), critic=(8,))
SMALL = {"train_freq": 3, "batch_size": 8, "learning_starts": 30, "buffer_size": 400, "gradient_steps": 2}
TRAININGS = {
    "PPO": learn.Training(
        CARTPOLE,
        ACTOR_CRITIC,
        learn.PPO(n_steps=16, batch_size=64, n_epochs=2, learning_rate=1e-2, max_grad_norm=FAR),
        total_timesteps=10_000,
        optimizer=PLAIN,
        normalize=True,
    ),
    "PPO, target_kl": learn.Training(
        CARTPOLE,
        ACTOR_CRITIC,
        learn.PPO(n_steps=16, batch_size=64, n_epochs=4, learning_rate=0.1, target_kl=0.003, clip_range_vf=0.2),
    ),
    "A2C": learn.Training(
        CARTPOLE,
        ACTOR_CRITIC,
        learn.A2C(max_grad_norm=FAR, learning_rate=1e-2, normalize_advantage=True),
        optimizer=PLAIN,
        normalize=True,
    ),
    "RecurrentPPO": learn.Training(
        CARTPOLE,
        learn.RecurrentActorCritic.of(CARTPOLE.env, actor=(8,), critic=(8,), lstm_hidden_size=4),
        learn.RecurrentPPO(n_steps=16, batch_size=64, n_epochs=2),
    ),
    "MaskablePPO": learn.Training(
        MASKED,
        learn.ActorCritic.of(MASKED.env, actor=(8,), critic=(8,)),
        learn.MaskablePPO(n_steps=8, batch_size=32, n_epochs=2),
    ),
    "DQN": learn.Training(CARTPOLE, learn.DQNPolicy.of(CARTPOLE.env, (8,)), learn.DQN(**SMALL)),
    "QRDQN": learn.Training(CARTPOLE, learn.QRDQNPolicy.of(CARTPOLE.env, (8,), n_quantiles=5), learn.QRDQN(**SMALL)),
    "SAC": learn.Training(
        PENDULUM,
        learn.SACPolicy.of(PENDULUM.env, (8,)),
        learn.SAC(**SMALL, learning_rate=1e-3),
        total_timesteps=1000,
        optimizer=PLAIN,
        normalize=True,
    ),
    "TD3": learn.Training(
        PENDULUM,
        learn.TD3Policy.of(PENDULUM.env, (8,)),
        learn.TD3(**SMALL, action_noise=learn.OrnsteinUhlenbeckActionNoise(0.0, 0.3)),
    ),
    "TQC": learn.Training(PENDULUM, learn.TQCPolicy.of(PENDULUM.env, (8,)), learn.TQC(**SMALL)),
    "CrossQ": learn.Training(
        PENDULUM, learn.CrossQPolicy.of(PENDULUM.env, (8,), warmup_steps=5), learn.CrossQ(**SMALL)
    ),
    "DQN, hindsight": learn.Training(
        BITS, learn.DQNPolicy.of(BITS.env, (8,)), learn.DQN(**SMALL, hindsight=learn.Hindsight())
    ),
}
ITERATIONS, DEVICES = 4, 4
KEY = jax.random.key(1)
advance = jax.jit(learn.advance, static_argnums=(2, 3))


def plain(tree):
    """NumPy arrays, typed keys as their data."""
    return jax.tree.map(
        lambda leaf: np.array(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf),
        tree,
    )


def difference(one, other):
    pairs = zip(jax.tree.leaves(plain(one)), jax.tree.leaves(plain(other)), strict=True)
    return max(apart(a.astype(float), b.astype(float)) for a, b in pairs)


def apart(a, b):
    """By how much; where both are NaN, as metrics of no episode are, by nothing."""
    return float(np.where(np.isnan(a) & np.isnan(b), 0, np.abs(a - b)).max(initial=0))


def by_vmap(training, state, mesh):
    """What the devices do, on one of them: each is an element of an axis of `vmap`."""
    part, axis = training.of_one_device(mesh), state.layout(PartitionSpec(mesh.axis_names[0]), PartitionSpec())

    def axis_of(spec):
        return None if spec == PartitionSpec() else len(spec) - 1

    def divided(spec, leaf):
        if (at := axis_of(spec)) is None:
            return leaf
        return jax.tree.map(lambda each: each.reshape(*each.shape[:at], DEVICES, -1, *each.shape[at + 1 :]), leaf)

    is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
    here = jax.device_put(state, jax.devices()[0])
    parts = jax.tree.map(divided, axis, here, is_leaf=is_spec)
    axes = jax.tree.map(axis_of, axis, is_leaf=is_spec)
    run = jax.vmap(
        lambda state: part._loop.advance(part, state, ITERATIONS), (axes,), axis_name="data", axis_size=DEVICES
    )
    return jax.jit(run)(parts)


def compare(name):
    """A training over four devices, then over two; and, but in brief, over one, none, and what `vmap` makes of it."""
    name, _, brief = name.partition(", in ")
    training, mesh = TRAININGS[name], learn.make_mesh()
    begun = training.init(KEY, mesh=mesh)
    end, metrics = advance(training, begun, ITERATIONS, mesh)
    weights = [[np.asarray(shard.data) for shard in leaf.addressable_shards] for leaf in jax.tree.leaves(end.learner)]
    told = {
        "moved": difference(begun.learner.params, end.learner.params),
        "env_keys": difference(training.init(KEY).collector.env_state[0].env_keys, end.collector.env_state[0].env_keys),
        "on each device": all((part == parts[0]).all() for parts in weights for part in parts) and len(weights[0]),
    }
    # Saved, and gone on with over two devices, and over none.
    saved, two = from_arrays(jax.eval_shape(training.init, KEY), to_arrays(learn.gather(end))), learn.make_mesh(2)
    placed = learn.place(saved, two)
    told["placed"] = difference(learn.gather(placed), saved)
    _, on_two = advance(training, placed, ITERATIONS, two)
    told["timesteps"] = [int(each["timesteps"][-1]) for each in (metrics, on_two)]
    if brief:
        return told
    state, expected_metrics = by_vmap(training, begun, mesh)
    expected = jax.tree.map(lambda leaf: leaf[0], (state.learner, expected_metrics))
    alone, alone_metrics = advance(training, training.init(KEY), ITERATIONS, None)
    of_one = learn.make_mesh(1)
    one, one_metrics = advance(training, training.init(KEY, mesh=of_one), ITERATIONS, of_one)
    _, on_none = advance(training, saved, ITERATIONS, None)
    return told | {
        "vmap": difference((end.learner, metrics), expected),
        "one device": difference((alone, alone_metrics), (learn.gather(one), one_metrics)),
        "alone": [int(each["timesteps"][-1]) for each in (alone_metrics, on_none)],
    }


def sweeps():
    """A sweep of five keys over two devices, and without."""

    def run(key, number):
        return jax.lax.fori_loop(0, number, lambda i, x: 0.9 * x + i, jax.random.normal(key, (10,)))

    keys, numbers = jax.random.split(KEY, 5), jnp.arange(5)
    return difference(sweep(run, keys, numbers, mesh=learn.make_mesh(2)), jax.vmap(run)(keys, numbers))


def digest(name):
    """Of the bits of what a training over two devices gave, all of its state."""
    training, mesh = TRAININGS[name], learn.make_mesh(2)
    end, _ = advance(training, training.init(KEY, mesh=mesh), ITERATIONS, mesh)
    return hashlib.sha256(b"".join(array.tobytes() for array in to_arrays(learn.gather(end)).values())).hexdigest()


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps({name: sweeps() if name == "sweep" else compare(name) for name in sys.argv[1:]}))
