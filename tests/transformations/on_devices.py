"""Results on two devices of a CPU beside those on one, in a process of their own.

`XLA_FLAGS=--xla_force_host_platform_device_count=2 PJRT_NPROC=8 python -m tests.transformations.on_devices`
"""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from jaxenvs.learn.networks.actor_critic import orthogonal
from tests.transformations import cases

ID = "CartPole-v1"


def on(kind, tree):
    mesh = jax.make_mesh((cases.NUM_DEVICES,), ("devices",), axis_types=(kind,))
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, cases.DIVIDED)), tree)


def compare(name, tree, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-5, 1e-5), tree, expected)
    print(name)


def step():
    venv, action = cases.vector_env(ID), cases.actions(ID)
    states = [jax.jit(venv.reset)(cases.key())[0]]
    divided = [on(AxisType.Explicit, states[0])]
    compiled = jax.jit(venv.step)
    for _ in range(cases.NUM_STEPS):
        state, timestep = compiled(states[-1], action)
        states.append(state)
        state, divided_timestep = compiled(divided[-1], on(AxisType.Explicit, action))
        divided.append(state)
        assert timestep.observation.shape == divided_timestep.observation.shape
        assert divided_timestep.observation.sharding.spec[0] == "devices"
    compare("step", divided_timestep, timestep)


def main():
    step()
    keys = jax.random.split(cases.key(), cases.NUM_DEVICES)
    episode, training = cases.episode(ID), cases.metrics_of("A2C")
    expected = jax.jit(jax.vmap(episode))(keys)
    compare("explicit", jax.jit(jax.vmap(episode))(on(AxisType.Explicit, keys)), expected)
    compare("auto", jax.jit(jax.vmap(episode))(on(AxisType.Auto, keys)), expected)

    def of_device(keys):
        return jax.tree.map(lambda leaf: leaf[None], episode(keys[0]))

    divided = on(AxisType.Explicit, keys)
    mapped = jax.shard_map(of_device, mesh=divided.sharding.mesh, in_specs=cases.DIVIDED, out_specs=cases.DIVIDED)
    compare("shard_map", jax.jit(mapped)(divided), expected)
    draw = jax.jit(jax.vmap(lambda key: orthogonal(key, (4, 8), 2.0)))
    compare("orthogonal", draw(divided), draw(keys))
    compare("training", jax.jit(jax.vmap(training))(divided), jax.jit(jax.vmap(training))(keys))


if __name__ == "__main__":
    main()
