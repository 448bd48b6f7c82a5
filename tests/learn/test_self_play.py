"""learn.self_play: training against past selves as one function."""

import jax
import numpy as np
import pytest

from jaxenvs import VectorEnv, learn
from jaxenvs.wrappers import Opponents, SelfPlay
from jaxenvs.wrappers.multi_agent.self_play import member_to_drop
from tests.games import TicTacToe

ENV = SelfPlay(TicTacToe())
NETWORK = learn.ActorCritic.of(ENV, actor=(8,), critic=(8,))


def training(num_iterations=8, env=ENV, **settings):
    settings = {"n_steps": 8, "batch_size": 32, "n_epochs": 2, **settings}
    return learn.Training(
        VectorEnv(env, 8), NETWORK, learn.MaskablePPO(**settings), total_timesteps=64 * num_iterations
    )


@pytest.fixture(scope="module")
def result():
    return jax.jit(learn.self_play, static_argnums=(2, 3))(jax.random.key(0), training(), 2, 4)


@pytest.mark.thorough
def test_the_pool_is_chance_and_copies_of_the_learner(result):
    pool = result.opponents
    np.testing.assert_array_equal(pool.at_random, [True, False, False, False])
    np.testing.assert_allclose(pool.weights, [0.25, 0.25, 0.25, 0.25])
    first = training().init(jax.random.key(0)).learner.network_params
    for name, leaf in result.params.items():
        np.testing.assert_array_equal(pool.parameters[name][1], first[name])
        np.testing.assert_array_equal(pool.parameters[name][-1], leaf)
    assert result.metrics["timesteps"].tolist() == [64 * i for i in range(1, 9)]


@pytest.mark.thorough
def test_until_the_first_copy_it_is_a_training_against_chance_and_the_untrained(result):
    pool = learn.self_play(jax.random.key(0), training(), 8, 4).opponents
    np.testing.assert_allclose(pool.weights, [0.25, 0.375, 0, 0.375])


@pytest.mark.thorough
def test_the_opponents_of_the_environment_are_not_used(result):
    others = Opponents.of(lambda logits, _: logits, [100 * np.arange(9, dtype=np.float32)])
    other = jax.jit(learn.self_play, static_argnums=(2, 3))(
        jax.random.key(0), training(env=SelfPlay(TicTacToe(), others)), 2, 4
    )
    for name, leaf in result.params.items():
        np.testing.assert_array_equal(other.params[name], leaf)


def test_the_last_round_may_be_shorter():
    result = jax.eval_shape(lambda key: learn.self_play(key, training(3), 2, 4), jax.random.key(0))
    assert result.metrics["timesteps"].shape == (3,)


def test_a_full_pool_stays_spread():
    numbers = np.arange(6)
    for number in range(6, 101):
        numbers = np.append(numbers, number)
        numbers = np.delete(numbers, member_to_drop(numbers))
    assert numbers[[0, 1, -1]].tolist() == [0, 1, 100]
    assert max(np.diff(numbers[1:])) < 50
    assert member_to_drop(np.array([0, 1, 2])) == 1


@pytest.mark.thorough
def test_it_learns_to_beat_chance():
    settings = {"learning_rate": 3e-3, "n_steps": 32, "batch_size": 256, "n_epochs": 4}
    venv = VectorEnv(ENV, 32)
    long = learn.Training(venv, NETWORK, learn.MaskablePPO(**settings), total_timesteps=300_000)
    result = jax.jit(learn.self_play, static_argnums=(2, 3))(jax.random.key(0), long, 8, 8)

    def play(key):
        def step(carry):
            state, timestep, _ = carry
            seen = learn.Masked(timestep.observation[None], state.action_mask[None])
            state, timestep = ENV.step(state, NETWORK.apply(result.params, seen)[0].mode()[0])
            return state, timestep, timestep.reward

        state, timestep = ENV.reset(key)
        return jax.lax.while_loop(lambda carry: ~carry[1].done, step, (state, timestep, timestep.reward))[2]

    returns = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(1), 1000))
    assert returns.mean() > 0.6  # 0.69 to 0.85 with twelve seeds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((training(), 0), "every must be a positive int"),
        ((training(), 1, 2), "pool_size must be"),
        ((training(), 1, 4, 1.5), "chance must be a finite number, at least 0 and at most 1, got 1.5"),
        ((training(env=TicTacToe()), 1, 4), "must be a VectorEnv of one SelfPlay, got TicTacToe"),
        ((training().replace(normalize=True), 1, 4), "training.normalize must be False"),
        ((training().replace(algorithm=learn.DQN()), 1, 4), "training.algorithm must be on-policy .*, got DQN"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        learn.self_play(jax.random.key(0), *arguments)
