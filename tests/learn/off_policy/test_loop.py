"""Whole off-policy trainings as pure functions: they act, store and learn as they should, stop, go on, and sweep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common import noise as sb3

import jaxenvs
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import (
    DQN,
    SAC,
    TD3,
    ActorCritic,
    CrossQ,
    CrossQPolicy,
    DQNPolicy,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    SACPolicy,
    TD3Policy,
    Training,
    advance,
    train,
)
from tests.environments import Counter

NUM_ENVS, TRAIN_FREQ, STARTS = 2, 3, 12
PENDULUM = jaxenvs.make_vec("Pendulum-v1", NUM_ENVS)
COUNTER = jaxenvs.VectorEnv(Counter(action_kind="discrete_from_5"), NUM_ENVS)
SMALL = {"train_freq": TRAIN_FREQ, "batch_size": 8, "learning_starts": STARTS, "buffer_size": 200}
TRAININGS = {
    "DQN": Training(
        COUNTER,
        DQNPolicy.of(COUNTER.env, (8,)),
        DQN(**SMALL, gradient_steps=2, target_update_interval=8, exploration_fraction=0.5),
        total_timesteps=60,
    ),
    "SAC": Training(
        PENDULUM,
        SACPolicy.of(PENDULUM.env, (8,)),
        SAC(**SMALL, gradient_steps=-1, n_steps=2),
        total_timesteps=60,
        normalize=True,
    ),
    "CrossQ": Training(
        PENDULUM,
        CrossQPolicy.of(PENDULUM.env, (8,), warmup_steps=10),
        CrossQ(**SMALL, gradient_steps=2, policy_delay=2),
        total_timesteps=60,
    ),
    "TD3": Training(
        PENDULUM,
        TD3Policy.of(PENDULUM.env, (8,)),
        TD3(**SMALL, action_noise=OrnsteinUhlenbeckActionNoise(0.0, 0.3)),
        total_timesteps=60,
    ),
}
go_on = jax.jit(advance, static_argnums=2, compiler_options=compiler_options())
begin = jax.jit(Training.init, compiler_options=compiler_options())


@functools.cache
def trained(name):
    """The start of a training, and ten iterations in one."""
    start = begin(TRAININGS[name], jax.random.key(1))
    return start, *go_on(TRAININGS[name], start, 10)


def assert_equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.mark.thorough
def test_the_length_of_a_chunk_of_noise_changes_nothing(monkeypatch):
    start, whole, _ = trained("DQN")
    monkeypatch.setattr("jaxenvs.learn.off_policy.iteration.NOISE_BYTES", 1000)
    advancing = jax.jit(lambda state: advance(TRAININGS["DQN"], state, 10), compiler_options=compiler_options())
    assert_equal(whole, advancing(start)[0])


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAININGS)
def test_nothing_is_learned_before_learning_starts(name):
    _, end, metrics = trained(name)
    timesteps = np.asarray(metrics["timesteps"])
    np.testing.assert_array_equal(timesteps, TRAIN_FREQ * NUM_ENVS * np.arange(1, 11))
    loss = metrics["loss" if name == "DQN" else "critic_loss"]
    np.testing.assert_array_equal(loss != 0, timesteps > STARTS)
    per_iteration = {"DQN": 2, "SAC": TRAIN_FREQ * NUM_ENVS, "CrossQ": 2, "TD3": 1}[name]
    assert end.learner.num_updates == per_iteration * (timesteps > STARTS).sum()


def test_a_crossq_policy_may_have_no_hidden_layers():
    policy = CrossQPolicy.of(PENDULUM.env, ())
    assert [network.sizes for network in (policy.actor.latent_pi, *policy.critic.q_networks)] == [(3,), (4, 1), (4, 1)]


@pytest.mark.thorough
def test_dqn_explores_less_and_less():
    training = TRAININGS["DQN"]
    policy, settings = training.network, training.algorithm.replace(exploration_final_eps=0.0)
    params = policy.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 3)
    observation = jax.random.normal(keys[0], (3000, 2))
    noise = settings.exploration_noise(policy, params, observation, keys[1], 3000)  # one for all environments of a step
    random = jax.random.randint(keys[2], (3000,), 0, 3, jnp.int32)
    greedy = policy.q_net.apply(params["q_net"], observation).argmax(1)
    for progress, share in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0), (1.0, 0.0)):
        action = settings.explore(policy, params, observation, noise[:, 0], random, progress)
        np.testing.assert_allclose((action != greedy).mean(), share * 2 / 3, atol=0.03)


def test_the_store_holds_what_the_environments_did():
    _, end, _ = trained("DQN")
    replay = end.replay
    rows = jnp.repeat(jnp.arange(10, 20), NUM_ENVS)
    env_indices = jnp.tile(jnp.arange(NUM_ENVS), 10)
    batch = replay.transitions(rows, env_indices, 0.5)
    count, start = batch.observation.T
    np.testing.assert_array_equal(batch.next_observation[:, 0], count + 1)
    np.testing.assert_array_equal(batch.next_observation[:, 1], start)
    np.testing.assert_array_equal(batch.reward, batch.action + 5)  # the first action of the space is 5
    np.testing.assert_array_equal(batch.discount, np.where(count == 4, 0, 0.5))
    assert replay.size == 30


@pytest.mark.thorough
def test_a_store_of_a_normalised_training_holds_what_was_there():
    _, end, _ = trained("SAC")
    assert np.abs(np.linalg.norm(end.replay.observation[:30, :, :2], axis=-1) - 1).max() < 1e-5
    assert end.replay.reward.min() < -1
    np.testing.assert_allclose(end.normalizer.observation.count, 60 + NUM_ENVS, rtol=1e-4)


@pytest.mark.thorough
def test_vmap_sweeps_seeds_settings_and_physics_in_one_compiled_function():
    def changed(learning_rate, gamma, gravity):
        venv = jaxenvs.VectorEnv(PENDULUM.env.replace(gravity=gravity), NUM_ENVS)
        return TRAININGS["TD3"].replace(venv=venv, learning_rate=learning_rate, gamma=gamma)

    keys = jax.random.split(jax.random.key(0), 3)
    settings = np.array([[1e-3, 0.9, 10.0], [1e-2, 0.99, 10.0], [0.0, 0.9, 2.0]], np.float32)
    run = jax.vmap(lambda key, numbers: train(key, changed(*numbers)))
    swept = jax.jit(run, compiler_options=compiler_options())(keys, settings)
    for i in range(3):
        training = changed(*settings[i].tolist())
        alone, _ = go_on(training, begin(training, keys[i]), 10)
        np.testing.assert_allclose(swept.state.replay.reward[i], alone.replay.reward, rtol=1e-3, atol=1e-3)
        weights, alone = (params["critic"]["qf0.0.weight"] for params in (swept.params, alone.learner.params))
        np.testing.assert_allclose(weights[i], alone, rtol=1e-2, atol=1e-3)
    still = swept.state.learner
    np.testing.assert_array_equal(
        still.params["critic"]["qf0.0.bias"][2], still.targets["critic_target"]["qf0.0.bias"][2]
    )


@pytest.mark.thorough
def test_a_training_copies_nothing_of_its_store():
    capacity = 54_321
    training = TRAININGS["DQN"].replace(buffer_size=capacity * NUM_ENVS, n_steps=2)
    start = jax.eval_shape(training.init, jax.random.key(0))
    options = {"donate_argnums": 0, "compiler_options": compiler_options()}
    advancing = jax.jit(lambda state: advance(training, state, 10), **options)
    text = advancing.lower(start).compile().as_text()
    assert f"[{capacity}" in text
    assert not [line for line in text.splitlines() if " copy(" in line and f"[{capacity}" in line.partition("copy(")[0]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAININGS)
def test_with_debug_nans_a_training_runs_and_there_is_0_where_no_episode_ended(name):
    start = trained(name)[0]
    with jax.debug_nans(True):
        # Compiled anew, because metrics of no episode are NaN in what was compiled without.
        run = jax.jit(lambda state: advance(TRAININGS[name], state, 10), compiler_options=compiler_options())
        _, metrics = run(start)
    assert metrics["episode_return"][0] == metrics["iteration_episode_return"][0] == 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NormalActionNoise(0.1, 0.3), sb3.NormalActionNoise(np.full(2, 0.1), np.full(2, 0.3))),
        (
            OrnsteinUhlenbeckActionNoise(0.1, 0.3, dt=0.2, initial_noise=0.5),
            sb3.OrnsteinUhlenbeckActionNoise(np.full(2, 0.1), np.full(2, 0.3), dt=0.2, initial_noise=np.full(2, 0.5)),
        ),
    ],
    ids=["normal", "Ornstein-Uhlenbeck"],
)
def test_action_noise_is_sb3s(ours, theirs, monkeypatch):
    normal = np.random.default_rng(0).normal(size=(5, 2))
    state = ours.init(jnp.zeros((1, 2)))
    for step, numbers in enumerate(normal):
        monkeypatch.setattr(np.random, "normal", lambda loc=0.0, scale=1.0, size=None, n=numbers: loc + scale * n)
        if step == 3:
            theirs.reset()
            state = ours.reset(state, jnp.ones(1, bool))
        state, noise = ours.step(state, jnp.asarray(numbers[None]))
        np.testing.assert_allclose(noise[0], theirs(), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("DQN", {"network": ActorCritic.of(COUNTER.env)}, "network must be a learn.DQNPolicy for DQN, got a ActorCr"),
        ("SAC", {"network": TRAININGS["TD3"].network}, "network must be a learn.SACPolicy for SAC, got a TD3Policy"),
        ("DQN", {"action_noise": NormalActionNoise(0.0, 0.1)}, "action_noise must be None, because"),
        ("TD3", {"action_noise": 0.1}, "action_noise must be None, a learn.NormalActionNoise"),
        ("TD3", {"policy_delay": 0}, "policy_delay must be a positive int, got 0"),
        ("SAC", {"gradient_steps": -2}, "gradient_steps must be an int from -1 to"),
        ("SAC", {"learning_starts": -1}, "learning_starts must be a non-negative int, got -1"),
        ("SAC", {"tau": 1.5}, r"tau must lie in \[0, 1\], got 1.5"),
        (
            "SAC",
            {"learning_rate": np.ones(3)},
            "learning_rate must be a number or an array with one value for each of the 10",
        ),
        ("DQN", {"exploration_fraction": 2}, r"exploration_fraction must lie in \[0, 1\], got 2"),
        ("SAC", {"ent_coef": 0.0}, "ent_coef must be above 0 to be learned, got 0: .* pass auto_ent_coef=False"),
        ("CrossQ", {"auto_ent_coef": "auto"}, "auto_ent_coef must be a bool, got 'auto'"),
        ("SAC", {"sde_sample_freq": "often"}, "sde_sample_freq must be an int from -1"),
        ("TD3", {"action_noise": NormalActionNoise(0.0, np.ones(3))}, r"noise.sigma must be .* the shape \(1,\)"),
        ("DQN", {"total_timesteps": 2**31 - 1}, "total_timesteps must be at most 2147483646, because steps are"),
    ],
    ids=range(15),
)
def test_what_cannot_be_trained_is_refused(name, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train(jax.random.key(0), TRAININGS[name].replace(**changes))


@pytest.mark.parametrize(("name", "changes"), [("TD3", {}), ("SAC", {"normalize": False})])
def test_a_state_of_another_training_is_refused(name, changes):
    state = jax.eval_shape(TRAININGS["SAC"].init, jax.random.key(0))
    with pytest.raises(
        ValueError, match=r"state must be of a training of \['actor', 'critic'.*got one of .* normalize=True"
    ):
        advance(TRAININGS[name].replace(**changes), state, 1)


def test_policies_refuse_spaces_they_cannot_serve():
    with pytest.raises(ValueError, match="SACPolicy needs a Box action space with bounds, got Discrete"):
        SACPolicy.of(COUNTER.env)
