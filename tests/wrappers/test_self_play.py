"""SelfPlay beside games that are played move by move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import VectorEnv
from jaxenvs.wrappers import Opponents, SelfPlay
from tests.games import LINES, Race, TicTacToe, lowest

LOWEST = Opponents.of(lowest, [1.0])


def plays(env, seed, actions):
    """The states and TimeSteps of an episode, from the reset on."""
    seen = [jax.jit(env.reset)(jax.random.key(seed))]
    step = jax.jit(env.step)
    for action in actions:
        seen.append(step(seen[-1][0], jnp.int32(action)))
    return seen


def seed_of_seat(env, seat):
    return next(seed for seed in range(99) if env.reset(jax.random.key(seed))[0].seat == seat)


def winner(cells):
    return next((cells[line[0]] for line in LINES if cells[line[0]] >= 0 and len(set(cells[line])) == 1), None)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_a_game_against_a_known_opponent_is_the_game_played_by_hand(seed):
    env = SelfPlay(TicTacToe(), LOWEST)
    state, timestep = jax.jit(env.reset)(jax.random.key(seed))
    random, cells, player, seat = np.random.default_rng(seed), np.full(9, -1), 0, int(state.seat)
    step = jax.jit(env.step)
    while True:
        if player != seat:
            cells[int(np.flatnonzero(cells < 0)[0])] = player
            player = 1 - player
        over = winner(cells) is not None or (cells >= 0).all()
        np.testing.assert_array_equal(state.inner.cells, cells)
        assert bool(timestep.terminated) == over
        assert timestep.reward == (0 if winner(cells) is None else 1 if winner(cells) == seat else -1)
        if over:
            break
        np.testing.assert_array_equal(env.action_masks(state), cells < 0)
        np.testing.assert_array_equal(timestep.observation, np.concatenate([cells == seat, cells == 1 - seat]))
        action = int(random.choice(np.flatnonzero(cells < 0)))
        cells[action], player = seat, 1 - player
        if winner(cells) is not None or (cells >= 0).all():
            player = seat  # the opponent has no move any more
        state, timestep = step(state, jnp.int32(action))


@pytest.mark.thorough
def test_a_draw_ends_the_game_with_reward_0():
    env = SelfPlay(TicTacToe(), LOWEST)
    # x o x    x: the opponent, who begins: 0, 2, 3, 5, 7
    # x o x    o: 1, 4, 6, 8
    # o x o
    *before, (_, last) = plays(env, seed_of_seat(env, 1), [1, 4, 6, 8])
    assert not any(timestep.terminated for _, timestep in before)
    assert (last.terminated, last.reward, last.truncated) == (True, 0, False)


@pytest.mark.thorough
def test_an_illegal_move_of_the_learner_loses():
    env = SelfPlay(TicTacToe(), LOWEST)
    _, (_, timestep) = plays(env, seed_of_seat(env, 1), [0])  # which the opponent has
    assert (timestep.terminated, timestep.reward) == (True, -1)


@pytest.mark.thorough
def test_opponents_never_make_an_illegal_move():
    pool = Opponents.of(lambda parameters, observation: 1e6 * observation[9:] + 1e6 * observation[:9], [0.0])
    venv = VectorEnv(SelfPlay(TicTacToe(), pool), 64)
    state, _ = venv.reset(jax.random.key(0))

    def step(state, key):
        action = jax.random.categorical(key, jnp.where(state.env_states.action_mask, 0.0, -jnp.inf))
        state, timestep = venv.step(state, action)
        return state, (timestep.reward, timestep.episode_length)

    _, (rewards, lengths) = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 50)))(
        state
    )
    assert (rewards == -1).any()
    assert lengths[rewards == 1].min() >= 3  # an illegal move of an opponent would end a game at once, and give 1


def test_after_the_end_nothing_happens():
    env = SelfPlay(TicTacToe(), LOWEST)
    *_, (ended, _), (after, timestep) = plays(env, seed_of_seat(env, 1), [0, 5])
    assert timestep.terminated
    assert timestep.reward == 0
    np.testing.assert_array_equal(ended.inner.cells, after.inner.cells)


@pytest.mark.thorough
def test_seats_are_drawn_equally_often():
    env = SelfPlay(TicTacToe())
    seats = jax.vmap(lambda key: env.reset(key)[0].seat)(jax.random.split(jax.random.key(0), 1000))
    assert 450 < seats.sum() < 550


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_a_game_of_three_players_with_extra_turns_is_played_in_turn(seed):
    env = SelfPlay(Race(), Opponents.of(lambda stride, _: 1e6 * stride * jnp.arange(2), [1.0, -1.0]))
    state, timestep = jax.jit(env.reset)(jax.random.key(seed))
    game_key = jax.random.split(jax.random.key(seed), 4)[0]
    random, seat = np.random.default_rng(seed), int(state.seat)
    distances, player = np.zeros(3, int), int(Race().reset(game_key)[0].player)
    moves = 0

    def move(action):
        nonlocal player, moves
        distances[player] += action + 1
        moves += 1
        if not (distances >= 6).any():
            player = player if action == 1 else (player + 1) % 3

    while True:
        while player != seat and not (distances >= 6).any():
            move(int(state.opponents[player] == 0))
        np.testing.assert_array_equal(state.inner.distances, distances)
        assert state.moves == moves
        if (distances >= 6).any():
            break
        assert not timestep.done
        action = int(random.integers(2))
        move(action)
        state, timestep = jax.jit(env.step)(state, jnp.int32(action))
    assert timestep.terminated
    assert timestep.reward == (2 if distances[seat] >= 6 else -1)


@pytest.mark.thorough
def test_each_seat_is_played_by_a_member_drawn_by_weight():
    pool = Opponents.of(lowest, [1.0, -1.0, 1.0], weights=[1, 0, 3])
    env = SelfPlay(TicTacToe(), pool)
    drawn = jax.vmap(lambda key: env.reset(key)[0].opponents)(jax.random.split(jax.random.key(0), 4000))
    counts = np.bincount(np.ravel(drawn), minlength=3) / drawn.size
    np.testing.assert_allclose(counts, [0.25, 0, 0.75], atol=0.02)
    assert not (drawn[:, 0] == drawn[:, 1]).all()


@pytest.mark.thorough
def test_members_at_random_move_at_random_whatever_their_parameters():
    env = SelfPlay(TicTacToe(), Opponents.of(lowest, [1.0], at_random=[True]))
    keys = jax.random.split(jax.random.key(0), 4000)
    cells = jax.jit(jax.vmap(lambda key: env.reset(key)[0].inner.cells))(keys)
    first = cells[(cells >= 0).any(axis=1)]
    np.testing.assert_allclose((first >= 0).mean(axis=0), np.full(9, 1 / 9), atol=0.03)


def test_a_new_opponent_compiles_nothing():
    count = 0

    @jax.jit
    def step(env, state, action):
        nonlocal count
        count += 1
        return env.step(state, action)[0].inner.cells

    env = SelfPlay(TicTacToe(), LOWEST)
    state, _ = env.reset(jax.random.key(seed_of_seat(env, 0)))
    low = step(env, state, jnp.int32(4))
    high = step(env.replace(opponent=Opponents.of(lowest, [-1.0])), state, jnp.int32(4))
    assert count == 1
    assert (low[0], high[8]) == (1, 1)


@pytest.mark.thorough
def test_it_keeps_the_contract():
    jaxenvs.check_env(SelfPlay(TicTacToe(), LOWEST))
    jaxenvs.check_env(SelfPlay(Race()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SelfPlay(jaxenvs.CartPole()), ValueError, "num_players of at least 2, got CartPole"),
        (lambda: SelfPlay(TicTacToe(), "random"), TypeError, "opponent must be an Opponents, got 'random'"),
        (lambda: SelfPlay(Race(), LOWEST), ValueError, r"logits of shape \(2,\), one for each action, got \(9,\)"),
        (lambda: Opponents.of(lowest, [1.0, 2.0], weights=[1.0]), ValueError, "one number for each member"),
        (lambda: Opponents.of(lowest, []), ValueError, "parameters must hold at least one member, got none"),
        (lambda: Opponents.of(lowest, [1.0], weights=[0.0]), ValueError, "weights must be finite"),
        (lambda: Opponents(np.ones(3), np.ones(2), np.zeros(2, bool)), ValueError, "leading axis size = 2"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
