"""Whole trainings as pure functions: they learn, and they sweep."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import jaxenvs
from bridge import make_vec_env
from bridge.translate.pytorch.optimizers import export_optimizer
from jaxenvs import FlattenObservation, TransformObservation, VectorEnv
from jaxenvs.arrays import from_arrays, to_arrays
from jaxenvs.learn import (
    A2C,
    DQN,
    PPO,
    PQN,
    ActorCritic,
    DQNPolicy,
    MaskablePPO,
    RecurrentPPO,
    Training,
    gather,
    optimization,
    train,
)
from jaxenvs.learn.on_policy.minibatches import permutation
from tests.environments import Counter

VENV = jaxenvs.make_vec("CartPole-v1", 8)
NETWORK = ActorCritic.of(VENV.env)
TINY = Training(VENV, NETWORK, PPO(n_steps=32, batch_size=64, n_epochs=2), total_timesteps=512)
train_once = jax.jit(train)


def test_a2c_descends_as_sb3s_does():
    model = stable_baselines3.A2C("MlpPolicy", make_vec_env("CartPole-v1", 1), policy_kwargs={"net_arch": []})
    gradient = jnp.array([1.0, -0.1, 0.0])
    updates = []
    exported = export_optimizer(model.policy.optimizer)
    for optimizer in (A2C.OPTIMIZER, exported.transformation(exported.settings(model.policy.optimizer))):
        state = optimizer.init(gradient)
        for _ in range(3):
            update, state = optimizer.update(gradient, state, gradient)
        updates.append(update)
    np.testing.assert_allclose(updates[0], updates[1], rtol=1e-6)


@pytest.mark.thorough(but=["0.001"])
@pytest.mark.parametrize("target_kl", [None, 1e-3])
def test_a_large_network_whose_arrays_stay_apart_learns_the_same(target_kl, monkeypatch):
    training = TINY.replace(algorithm=TINY.algorithm.replace(target_kl=target_kl), total_timesteps=256)
    found = []
    for limit in (10**9, 0):
        monkeypatch.setattr(optimization, "LARGE", limit)
        found.append(jax.jit(lambda key: train(key, training))(jax.random.key(3)))
    vector, arrays = found
    assert jax.tree.structure(vector) == jax.tree.structure(arrays)
    for expected, got in zip(jax.tree.leaves(vector.params), jax.tree.leaves(arrays.params)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_vmap_sweeps_seeds_settings_and_physics_in_one_compiled_function():
    def run(key, learning_rate, clip_range, gamma, gravity):
        env = VENV.env.replace(gravity=gravity)
        venv = jaxenvs.VectorEnv(env, 8)
        return train(key, TINY.replace(venv=venv, learning_rate=learning_rate, clip_range=clip_range, gamma=gamma))

    keys = jax.random.split(jax.random.key(0), 3)
    settings = [jnp.array(values) for values in ([3e-4, 1e-3, 0.0], [0.2, 0.1, 0.2], [0.99, 0.9, 0.99], [9.8, 9.8, 60])]
    swept = jax.jit(jax.vmap(run))(keys, *settings)
    assert swept.metrics["loss"].shape == (3, TINY.num_iterations)
    alone = train_once(keys[0], TINY)
    np.testing.assert_allclose(
        swept.params["action_net.weight"][0], alone.params["action_net.weight"], rtol=1e-3, atol=1e-4
    )
    still = NETWORK.init(jax.random.split(keys[2], 3)[0])
    np.testing.assert_allclose(swept.params["value_net.weight"][2], still["value_net.weight"], rtol=1e-6)
    assert swept.metrics["episode_length"][2, 0] != swept.metrics["episode_length"][0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"venv": jaxenvs.make_vec("CartPole-v1", 8, autoreset=AutoresetMode.NEXT_STEP)}, "venv must have auto-reset"),
        ({"venv": jaxenvs.make_vec("CartPole-v1", 8, autoreset=AutoresetMode.DISABLED)}, "venv must have auto-reset"),
        ({"venv": VENV.env}, "venv must be a VectorEnv"),
        ({"network": None}, "network must be a Network"),
        ({"algorithm": None}, "algorithm must be an? OnPolicySettings"),
        ({"algorithm": MaskablePPO(batch_size=8)}, "CartPole has no action masks"),
        ({"algorithm": RecurrentPPO()}, r"network must be recurrent, such as learn\.RecurrentActorCritic, got a Actor"),
        ({"algorithm": PQN()}, r"network must be a learn.PQNNetwork, got a ActorCritic"),
        ({"total_timesteps": 0}, "total_timesteps must be a positive int, got 0"),
        (
            {"learning_rate": np.ones(3)},
            "learning_rate must be a number or an array with one value for each of the 2",
        ),
        ({"learning_rate": [1e-3, 1e-4]}, "learning_rate must be a number or an array"),
        ({"learning_rate": float("nan")}, r"learning_rate must lie in \[0, inf\], got nan"),
        ({"learning_rate": "fast"}, "learning_rate must be a number or an array"),
        ({"gamma": 5}, r"gamma must lie in \[0, 1\], got 5"),
        ({"gamma": np.ones(2)}, r"gamma must be a number, got float64\[2\]"),
        ({"clip_range": -0.1}, "clip_range must lie in"),
        ({"batch_size": 0}, "batch_size must be a positive int, got 0"),
        ({"n_epochs": 0}, "n_epochs must be a positive int, got 0"),
        (
            {"optimizer": "adam"},
            "optimizer must be None or an optax.GradientTransformation, such as .*, got str",
        ),
        ({"normalize": "no"}, "normalize must be a bool, got 'no'"),
        ({"normalize_advantage": "no"}, "normalize_advantage must be a bool, got 'no'"),
        ({"axis_name": 3}, "axis_name must be None or a str, got int"),
        ({"n_steps": 1.5}, "n_steps must be a positive int, got 1.5"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train(jax.random.key(0), TINY.replace(**changes))


@pytest.mark.parametrize("setting", ["n_steps", "batch_size", "total_timesteps"])
def test_what_chooses_a_shape_cannot_be_swept_and_says_so(setting):
    def check(value):
        TINY.replace(**{setting: value}).check()
        return value

    with pytest.raises(
        ValueError, match=f"{setting} must be a positive int, got int32.*chooses a shape.* cannot be swept"
    ):
        jax.vmap(check)(jnp.array([8, 16]))


@pytest.mark.parametrize("key", [0, np.zeros(2, np.uint32), None, jax.random.split(jax.random.key(0), 2)], ids=repr)
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises((TypeError, ValueError), match="key must"):
        train(key, TINY)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 7, 2048, 10_000])
def test_a_permutation_holds_every_number_once(size):
    first, second = (np.asarray(permutation(jax.random.key(seed), size)) for seed in range(2))
    np.testing.assert_array_equal(np.sort(first), np.arange(size))
    assert size < 7 or not np.array_equal(first, second)


@pytest.mark.thorough
def test_every_place_of_a_permutation_gets_every_number():
    orders = np.asarray(jax.vmap(lambda key: permutation(key, 6))(jax.random.split(jax.random.key(0), 12_000)))
    counts = np.array([[(orders[:, place] == number).sum() for number in range(6)] for place in range(6)])
    np.testing.assert_allclose(counts, 2000, rtol=0.1)


@pytest.mark.thorough
def test_a_network_starts_like_sb3s():
    params = NETWORK.init(jax.random.key(0))
    hidden = params["mlp_extractor.policy_net.2.weight"]
    np.testing.assert_allclose(hidden @ hidden.T, 2 * np.eye(64), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(params["action_net.weight"], axis=1), 0.01, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(params["value_net.weight"]), 1, rtol=1e-4)
    assert not any(leaf.any() for name, leaf in params.items() if name.endswith("bias"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary", "dict", "tuple"])
def test_a_network_sees_what_gymnasium_makes_of_any_observation(kind):
    env = Counter(observation_kind=kind)
    network = ActorCritic.of(env, actor=(8,), critic=(8,))
    flat_env = FlattenObservation(env)
    flat = ActorCritic.of(flat_env, actor=(8,), critic=(8,))
    params = network.init(jax.random.key(0))
    (_, timestep), (_, flat_timestep) = (
        jax.vmap(each.reset)(jax.random.split(jax.random.key(1), 3)) for each in (env, flat_env)
    )
    (distribution, values), (expected, expected_values) = (
        network.apply(params, timestep.observation),
        flat.apply(params, flat_timestep.observation),
    )
    np.testing.assert_array_equal(distribution.mode(), expected.mode())
    np.testing.assert_array_equal(values, expected_values)
    assert hash(network) == hash(ActorCritic.of(env, actor=(8,), critic=(8,)))


def of_dicts():
    env = Counter(observation_kind="dict")
    network = ActorCritic.of(env, actor=(8,), critic=(8,))
    return Training(VectorEnv(env, 2), network, PPO(n_steps=8, batch_size=8), 32)


def test_numbers_of_categories_are_not_normalized():
    with pytest.raises(ValueError, match="normalize needs a Box observation space or a Dict of Boxes, got Dict"):
        train(jax.random.key(0), of_dicts().replace(normalize=True))


def test_a_normalized_state_can_be_gathered_and_restored_into_a_new_one():
    start = TINY.replace(normalize=True).init(jax.random.key(0))
    later = jax.jit(lambda state: state)(start)  # as `advance` returns it
    restored = from_arrays(start, to_arrays(later))
    assert restored.normalizer.gamma == gather(start).normalizer.gamma == later.normalizer.gamma


def with_an_empty_part(observation):
    return {"empty": jnp.zeros((0,)), "numbers": observation}


@pytest.mark.parametrize("algorithm", [PPO(n_steps=8, batch_size=8), A2C(), DQN(buffer_size=50)])
def test_a_part_of_the_observation_may_be_empty(algorithm):
    numbers = VENV.env.observation_space
    parts = spaces.Dict({"empty": spaces.Box(-1, 1, (0,)), "numbers": numbers})
    venv = VectorEnv(TransformObservation(VENV.env, with_an_empty_part, parts), 4)
    network = (DQNPolicy if isinstance(algorithm, DQN) else ActorCritic).of(venv.env)
    training = Training(venv, network, algorithm, total_timesteps=64)
    metrics = jax.eval_shape(lambda key: train(key, training).metrics, jax.random.key(0))
    assert metrics["timesteps"].shape == (training.num_iterations,)


def test_with_64_bits_enabled_schedules_leave_parameters_their_dtype(x64):
    key, schedule = jax.random.key(0), jnp.linspace(1e-3, 0, 2)
    params = jax.eval_shape(NETWORK.init, key)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    training = TINY.replace(n_epochs=1, target_kl=0.01, learning_rate=schedule, clip_range=schedule)
    result = jax.eval_shape(lambda key, params: train(key, training, params), key, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {np.dtype(np.float32)}


@dataclasses.dataclass(frozen=True)
class ColumnOfValues(ActorCritic):
    """A network whose values have the shape (batch, 1), as those of a layer with one output."""

    def apply(self, params, observation):
        distribution, value = super().apply(params, observation)
        return distribution, value[:, None]


def test_values_in_a_column_are_refused_with_the_name_of_the_network():
    venv = jaxenvs.make_vec("CartPole-v1", num_envs=2)
    training = Training(venv, ColumnOfValues.of(venv.env), PPO(n_steps=8, batch_size=16), total_timesteps=16)
    with pytest.raises(ValueError, match=r"ColumnOfValues must return values of the shape \(batch,\), got \(2, 1\)"):
        train(jax.random.key(0), training)
