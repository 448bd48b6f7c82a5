"""Trainings divided over devices: parts together are the whole, and each device does what an element of `vmap` does."""

import functools
import socket

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxenvs
from jaxenvs import learn
from jaxenvs.learn.off_policy.store.replay import Transitions
from tests.on_cpu_devices import printed_by, results_of, started

STEPS, ROLLOUT_ENVS, PARTS = 4, 8, 2
# Plain gradients: Adam, and a limit of norms, hide that a gradient is too large by a factor.
PLAIN, FAR = optax.identity(), 1e9
CARTPOLE, PENDULUM = (jaxenvs.make_vec(name, ROLLOUT_ENVS) for name in ("CartPole-v1", "Pendulum-v1"))
ON_POLICY = {
    "PPO": learn.PPO(batch_size=16, n_epochs=2, learning_rate=0.1, max_grad_norm=FAR, clip_range_vf=0.2),
    "PPO, target_kl": learn.PPO(batch_size=16, n_epochs=4, learning_rate=0.5, max_grad_norm=FAR, target_kl=0.01),
    "A2C": learn.A2C(learning_rate=0.1, max_grad_norm=FAR, normalize_advantage=True),
}
OFF_POLICY = {
    "DQN": (CARTPOLE, learn.DQNPolicy.of(CARTPOLE.env, (8,)), learn.DQN(learning_rate=0.1, max_grad_norm=FAR)),
    "QRDQN": (CARTPOLE, learn.QRDQNPolicy.of(CARTPOLE.env, (8,), n_quantiles=5), learn.QRDQN(learning_rate=0.1)),
    "SAC": (PENDULUM, learn.SACPolicy.of(PENDULUM.env, (8,)), learn.SAC(learning_rate=0.1)),
    "TD3": (PENDULUM, learn.TD3Policy.of(PENDULUM.env, (8,)), learn.TD3(learning_rate=0.1)),
    "TQC": (PENDULUM, learn.TQCPolicy.of(PENDULUM.env, (8,)), learn.TQC(learning_rate=0.1)),
    "CrossQ": (
        PENDULUM,
        learn.CrossQPolicy.of(PENDULUM.env, (8,), warmup_steps=1),
        learn.CrossQ(learning_rate=0.1, policy_delay=2),
    ),
}


def divided(tree, axis):
    """Split an axis, of environments or of rows, and put an axis of parts before it."""
    return jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, PARTS, axis)), tree)


def assert_parts_are_the_whole(parts, whole):
    for of_parts, of_whole in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        for part in of_parts:
            np.testing.assert_allclose(part, of_whole, rtol=1e-9, atol=1e-12)


def some_rollout(rng, network, params):
    def numbers(*shape):
        return jnp.asarray(rng.normal(size=(STEPS, ROLLOUT_ENVS, *shape)))

    observation, action = numbers(4), jnp.asarray(rng.integers(0, 2, (STEPS, ROLLOUT_ENVS)), jnp.int32)
    flat = observation.reshape(-1, 4)
    log_prob = network.apply(params, flat)[0].log_prob(action.reshape(-1)).reshape(STEPS, ROLLOUT_ENVS)
    rest = (numbers() for _ in range(4))
    return learn.Rollout(observation, action, log_prob + 0.1 * numbers(), *rest)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_POLICY)
def test_an_update_over_an_axis_is_that_of_the_whole_rollout(name, x64):
    rng, settings = np.random.default_rng(0), ON_POLICY[name]
    network = learn.ActorCritic.of(CARTPOLE.env, actor=(8,), critic=(8,))
    params, optimizers = jax.jit(network.init)(jax.random.key(0)), settings.optimizers(PLAIN)
    state, key = settings.create({"policy": params}, optimizers), jax.random.key(1)
    rollout = some_rollout(rng, network, params)
    orders, order = {}, {}
    if isinstance(settings, learn.PPO):
        envs_of_part, rows = ROLLOUT_ENVS // PARTS, STEPS * ROLLOUT_ENVS // PARTS
        own = np.stack([[rng.permutation(rows) for _ in range(settings.n_epochs)] for _ in range(PARTS)])
        # The same rows in the numbers of the whole; a minibatch is those of all parts.
        of_all = (
            own // envs_of_part * ROLLOUT_ENVS + own % envs_of_part + envs_of_part * np.arange(PARTS)[:, None, None]
        )
        minibatches = of_all.reshape(PARTS, settings.n_epochs, -1, settings.batch_size // PARTS)
        orders = {"permutations": jnp.asarray(own)}
        order = {"permutations": jnp.asarray(np.moveaxis(minibatches, 0, 2).reshape(settings.n_epochs, -1))}
    whole = jax.jit(functools.partial(settings.update, network, optimizers, state, rollout, key))(**order)

    def of_part(rollout, orders):
        return settings.replace(axis_name="data").update(network, optimizers, state, rollout, key, **orders)

    parts = jax.jit(jax.vmap(of_part, axis_name="data"))(divided(rollout, 1), orders)
    assert_parts_are_the_whole(parts, whole)
    if settings.__class__ is learn.PPO and settings.target_kl is not None:
        assert whole[1]["stopped_at_kl"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", OFF_POLICY)
def test_updates_over_an_axis_are_those_of_whole_batches(name, x64):
    rng, (venv, policy, settings) = np.random.default_rng(0), OFF_POLICY[name]
    num, batch_size = 4, 16
    size = 4 if venv is CARTPOLE else 3

    def numbers(*shape):
        return jnp.asarray(rng.normal(size=(num, batch_size, *shape)))

    action = jnp.tanh(numbers(1)) if venv is PENDULUM else jnp.asarray(rng.integers(0, 2, (num, batch_size)))
    batches = Transitions(numbers(size), action, numbers(), numbers(size), jnp.full((num, batch_size), 0.9))
    optimizers = {name: PLAIN for name in settings.optimizers()}
    params = jax.jit(policy.init)(jax.random.key(0))
    state = settings.create(params, optimizers)
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    noise = jax.jit(lambda params, key: settings.noise(policy, params, first, key, num))(params, jax.random.key(1))
    whole = jax.jit(functools.partial(settings.updates, policy, optimizers, state))(batches, noise)

    def of_part(batches, noise):
        return settings.replace(axis_name="data").updates(policy, optimizers, state, batches, noise)

    parts = jax.jit(jax.vmap(of_part, axis_name="data"))(divided(batches, 1), divided(noise, 1))
    assert_parts_are_the_whole(parts, whole)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"num_envs": 6}, "num_envs must be a multiple of the 4 devices of the mesh, got 6"),
        ({"batch_size": 30}, "batch_size must be a multiple of the 4 devices of the mesh, got 30"),
        ({"batch_size": 24}, r"n_steps \* num_envs must be a multiple of batch_size, .* got 8 \* 8 and 24"),
    ],
    ids=str,
)
def test_what_devices_cannot_share_is_refused(training, message):
    venv = jaxenvs.make_vec("CartPole-v1", training.get("num_envs", 8))
    settings = learn.PPO(n_steps=8, batch_size=training.get("batch_size", 32))
    with pytest.raises(ValueError, match=message):
        learn.Training(venv, learn.ActorCritic.of(venv.env), settings).algorithm.check_devices(4, venv.num_envs)


def test_a_mesh_that_is_none_is_refused():
    training = learn.Training(CARTPOLE, learn.ActorCritic.of(CARTPOLE.env), learn.A2C())
    with pytest.raises(TypeError, match=r"mesh must be a jax.sharding.Mesh, as learn.make_mesh returns it, got int"):
        training.init(jax.random.key(0), mesh=4)
    two = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 1), ("a", "b"))
    with pytest.raises(ValueError, match="mesh must have one axis"):
        training.init(jax.random.key(0), mesh=two)
    with pytest.raises(
        ValueError, match="num_devices must be at most 1, the number of devices that JAX has here, got 2"
    ):
        learn.make_mesh(2)


@functools.cache
def on_devices(*names):
    """What trainings over four devices gave, in a process that has four."""
    return results_of("tests.learn.on_devices", *names, num_devices=4)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_give_the_bits_of_one_with_two_devices():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    begin = functools.partial(started, "tests.learn.on_processes")
    processes = [begin(num_devices=2), *(begin(address, str(number), num_devices=1) for number in range(2))]
    one, *two = map(printed_by, processes)
    assert two == [one, one]


def assert_as_it_should_be(told):
    """What `on_devices.compare` says."""
    assert told["on each device"] == 4
    assert told["env_keys"] == told["placed"] == 0
    assert told["moved"] > 1e-4
    at_four, on_two = told["timesteps"]
    assert on_two == 2 * at_four
    if "vmap" in told:
        assert told["vmap"] < 2e-5  # of parameters, moments and metrics, after four iterations
        assert told["one device"] == 0
        assert told["alone"] == [at_four, on_two]


FIRST = ("A2C", "DQN, in brief", "sweep")
# MaskablePPO, QRDQN, TD3 and TQC divide what these do.
OTHERS = ("PPO, target_kl", "RecurrentPPO", "MaskableRecurrentPPO", "PQN", "SAC", "CrossQ", "DQN, hindsight")


@pytest.mark.thorough
@pytest.mark.parametrize("name", FIRST[:2])
def test_each_device_does_what_an_element_of_vmap_does(name):
    assert_as_it_should_be(on_devices(*FIRST)[name])


@pytest.mark.thorough
def test_a_sweep_over_devices_gives_what_each_seed_alone_gives():
    assert on_devices(*FIRST)["sweep"] < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
def test_each_device_does_what_an_element_of_vmap_does_in_other_algorithms(name):
    assert_as_it_should_be(on_devices(*OTHERS)[name])
