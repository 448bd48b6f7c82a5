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

from jaxenvs import learn
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn.sweep import sweep
from tests.transformations import cases

# Without Adam and without a limit of norms, which hide that a gradient is too large by a factor.
PLAIN = {"optimizer": optax.identity()}
ROLLOUT = {"n_steps": 16, "batch_size": 64}
OF_CASES = cases.trainings()
TRAININGS = {name: OF_CASES[name] for name in ("DQN", "CrossQ", "DQN, hindsight")} | {
    "PPO": OF_CASES["PPO"].replace(
        **PLAIN, **ROLLOUT, learning_rate=1e-2, max_grad_norm=1e9, target_kl=None, clip_range_vf=None
    ),
    "PPO, target_kl": OF_CASES["PPO"].replace(
        **ROLLOUT, n_epochs=4, learning_rate=0.1, target_kl=0.003, normalize=False
    ),
    "A2C": OF_CASES["A2C"].replace(
        **PLAIN, learning_rate=1e-2, max_grad_norm=1e9, normalize_advantage=True, normalize=True
    ),
    **{name: OF_CASES[name].replace(**ROLLOUT) for name in ("RecurrentPPO", "MaskableRecurrentPPO", "PQN")},
    "SAC": OF_CASES["SAC"].replace(**PLAIN, learning_rate=1e-3, total_timesteps=1000),
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
