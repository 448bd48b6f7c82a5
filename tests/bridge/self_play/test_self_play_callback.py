"""SelfPlayCallback: what it puts into the pool, when, and that it compiles nothing."""

import jax
import numpy as np
import pytest
import sb3_contrib
from stable_baselines3.common.callbacks import CallbackList

import bridge
from bridge import JaxVecEnv, SelfPlayCallback, make_vec_env
from bridge.self_play.self_play_callback import League
from jaxenvs.wrappers import SelfPlay
from tests.bridge.small_models import N_ENVS, ROLLOUT, SETTINGS, Recorder
from tests.games import Race, TicTacToe

LOGITS = "action_net.bias"


def make(opponent="self", algorithm=None, seed=0):
    algorithm = algorithm or bridge.MaskablePPO
    env = make_vec_env(TicTacToe(), N_ENVS, seed=seed, opponent=opponent)
    return algorithm("MlpPolicy", env, **{**SETTINGS, "seed": seed})


def callback(**settings):
    return SelfPlayCallback(**{"every": ROLLOUT, "pool_size": 4, **settings})


def bias(model):
    return model.policy.action_net.bias.detach().numpy().copy()


def pool(model):
    return model.get_env().get_attr("opponent")[0]


class Biases(Recorder):
    """Keeps the learner's bias at each start of a rollout."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_rollout_start(self):
        self.seen.append(bias(self.model))


@pytest.mark.thorough
@pytest.mark.parametrize("library", [bridge, sb3_contrib])
def test_the_pool_holds_chance_the_first_the_newest_and_some_between(library):
    model, biases = make(algorithm=library.MaskablePPO), Biases()
    model.learn(6 * ROLLOUT, [biases, callback()])
    assert model.league.num_copies == 6
    assert model.league.numbers == [0, 1, 3, 6]
    np.testing.assert_array_equal(pool(model).at_random, [True, False, False, False])
    # One copy before the first rollout, and one before each of the others.
    for place, number in [(1, 1), (2, 3), (3, 6)]:
        np.testing.assert_array_equal(pool(model).parameters[LOGITS][place], biases.seen[number - 1])


@pytest.mark.thorough
def test_places_that_hold_no_copy_yet_are_never_drawn():
    model = make()
    model.learn(2 * ROLLOUT, callback(pool_size=8))
    np.testing.assert_allclose(pool(model).weights, [0.25, 0.375, 0.375, 0, 0, 0, 0, 0])


@pytest.fixture
def compiled():
    """The names of functions that XLA compiles during the test."""
    events = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.thorough
@pytest.mark.parametrize("prioritized", [False, True])
def test_new_opponents_compile_nothing(prioritized, compiled):
    model = make()
    model.learn(3 * ROLLOUT, callback(prioritized=prioritized))
    jax.jit(lambda x: x + 3)(1.0)
    assert compiled  # they are seen
    compiled.clear()
    programs, copies = model.get_env().compiled, model.league.num_copies
    model.learn(3 * ROLLOUT, callback(prioritized=prioritized), reset_num_timesteps=False)
    assert model.league.num_copies == copies + 3
    assert model.get_env().compiled is programs
    assert not compiled


@pytest.mark.thorough
def test_every_counts_the_steps_between_copies():
    model = make()
    model.learn(6 * ROLLOUT, callback(every=2 * ROLLOUT))
    assert model.league.num_copies == 3


def test_a_threshold_copies_only_who_wins():
    never, always = make(), make()
    never.learn(4 * ROLLOUT, callback(threshold=1.0))
    always.learn(4 * ROLLOUT, callback(threshold=0.0))
    assert (never.league.num_copies, always.league.num_copies) == (1, 4)


@pytest.mark.thorough
def test_prioritized_draws_hard_opponents_more_often():
    model = make()
    model.learn(4 * ROLLOUT, callback(prioritized=True))
    rates, weights = np.array(model.league.win_rates), pool(model).weights
    assert rates.shape == (4,)
    expected = np.maximum((1 - rates[1:]) ** 2, 0.05)
    np.testing.assert_allclose(weights, [0.25, *(0.75 * expected / expected.sum())], rtol=1e-6)


@pytest.mark.thorough
def test_make_vec_env_with_self_needs_no_callback_in_learn():
    model = make()
    model.learn(ROLLOUT)
    assert model.league.num_copies == 1
    assert pool(model).size == 16
    given = make()
    given.learn(ROLLOUT, CallbackList([callback()]))
    assert pool(given).size == 4


def test_the_pool_is_saved_and_resumed_with_the_model(tmp_path):
    model = make()
    model.learn(3 * ROLLOUT, callback())
    model.save(tmp_path / "model.zip")
    env = make_vec_env(TicTacToe(), N_ENVS, seed=0, opponent="self")
    loaded = bridge.MaskablePPO.load(tmp_path / "model.zip", env=env)
    before = pool(model).parameters[LOGITS]
    loaded.learn(ROLLOUT, callback(), reset_num_timesteps=False)
    after = pool(loaded)
    assert loaded.league.num_copies == model.league.num_copies + 1
    np.testing.assert_array_equal(after.parameters[LOGITS][1], before[1])  # the first copy
    np.testing.assert_array_equal(after.parameters[LOGITS][-1], bias(model))


def test_a_smaller_pool_keeps_the_members_that_it_would_have():
    model = make()
    model.learn(4 * ROLLOUT, callback())
    model.learn(ROLLOUT, callback(pool_size=3, every=10**6), reset_num_timesteps=False)
    assert (pool(model).size, model.league.numbers) == (3, [0, 1, 4])


@pytest.mark.thorough
def test_a_checkpoint_continues_bit_for_bit(tmp_path):
    settings = {"every": 2 * ROLLOUT, "prioritized": True}
    whole, part = make(), make()
    whole.learn(6 * ROLLOUT, callback(**settings))
    part.learn(3 * ROLLOUT, callback(**settings))
    bridge.save_checkpoint(part, tmp_path / "checkpoint.zip")
    env = make_vec_env(TicTacToe(), N_ENVS, seed=1, opponent="self")
    loaded = bridge.load_checkpoint(bridge.MaskablePPO, tmp_path / "checkpoint.zip", env)
    jax.tree.map(np.testing.assert_array_equal, pool(loaded), pool(part))
    loaded.learn(3 * ROLLOUT, callback(**settings), reset_num_timesteps=False)
    assert loaded.league.numbers == whole.league.numbers == [0, 1, 2, 3]
    jax.tree.map(np.testing.assert_array_equal, pool(loaded), pool(whole))
    for name, weights in whole.policy.state_dict().items():
        np.testing.assert_array_equal(loaded.policy.state_dict()[name], weights)


def test_a_league_stays_spread_over_the_training():
    league = League()
    for number in range(1, 101):
        league.add({"number": np.array(number)}, 6)
    assert league.numbers[:2] == [0, 1]
    assert league.numbers[-1] == 100
    assert max(np.diff(league.numbers[1:])) < 50


def test_another_environment_is_refused_and_says_what_to_make():
    model = bridge.PPO("MlpPolicy", make_vec_env("CartPole-v1", N_ENVS), **SETTINGS)
    with pytest.raises(bridge.NotCompilable, match=r"needs a JaxVecEnv of jaxenvs\.wrappers\.SelfPlay"):
        model.learn(ROLLOUT, callback())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be a positive int, got 0"),
        ({"pool_size": 1}, "pool_size must be at least 2"),
        ({"chance": -1}, "chance must be a finite number"),
        ({"threshold": 2}, "threshold must be a finite number"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SelfPlayCallback(**settings)


@pytest.mark.thorough
def test_a_game_of_three_players_trains_by_self_play():
    env = JaxVecEnv(SelfPlay(Race()), N_ENVS, seed=0)
    model = bridge.PPO("MlpPolicy", env, **SETTINGS)
    model.learn(2 * ROLLOUT, callback())
    assert model.league.num_copies == 2
