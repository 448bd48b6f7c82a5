"""Whole games of SelfPlay on pgx's games of several players, beside pgx's own stepping with the same moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.wrappers import Opponents, SelfPlay
from tests.third_party.episodes import keys_of

pgx = pytest.importorskip("pgx")

NAMES = ("connect_four", "tic_tac_toe", "othello", "hex", "backgammon", "go_9x9", "sparrow_mahjong")


NUM_OPPONENTS = 64


def ranks(parameters, observation, num_actions):
    """An order of all actions that depends on each number of the observation, exactly: in integers."""
    mixed = jnp.sum(parameters * observation.reshape(-1).astype(jnp.uint32), dtype=jnp.uint32) + parameters[0]
    hashed = (mixed ^ (jnp.arange(1, num_actions + 1, dtype=jnp.uint32) * jnp.uint32(2654435761))) * jnp.uint32(40503)
    hashed = (hashed ^ (hashed >> 15)) * jnp.uint32(2246822519)
    return jnp.argsort(jnp.argsort(hashed ^ (hashed >> 13)))


def preferring(num_actions):
    """A policy whose logits are so far apart that the legal action of the highest rank is always drawn."""
    return lambda parameters, observation: 1e6 * ranks(parameters, observation, num_actions)


def drawn(key, number, mask):
    """The learner's moves: any legal action."""
    return jax.random.categorical(jax.random.fold_in(key, number), jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)


def played_here(game, pool, keys):
    """State, return and number of steps of whole games."""
    env = SelfPlay(game, pool)

    def episode(key):
        state, timestep = env.reset(key)

        def step(carry):
            state, timestep, returned, length = carry
            state, timestep = env.step(state, drawn(key, length, env.action_masks(state)))
            return state, timestep, returned + timestep.reward, length + 1

        begun = state, timestep, timestep.reward, jnp.zeros((), jnp.int32)
        state, _, returned, length = jax.lax.while_loop(lambda carry: ~carry[1].done, step, begun)
        return state, returned, length

    return jax.jit(jax.vmap(episode))(keys)


def played_by_pgx(name, others, seats, members, keys):
    """The same games, stepped by pgx, with the same moves of each player in turn."""
    own = pgx.make(name)

    def episode(seat, members, key):
        game_key = jax.random.split(key, 4)[0]
        state = own.init(keys_of(game_key, 0)[0])
        nothing = jnp.zeros((), jnp.int32)

        def step(carry):
            state, returned, moves, mine = carry
            is_mine = state.current_player == seat
            mask, parameters = state.legal_action_mask, others[members[state.current_player]]
            theirs = jnp.argmax(jnp.where(mask, ranks(parameters, state.observation, mask.size), -1))
            action = jnp.where(is_mine, drawn(key, mine, mask), theirs).astype(jnp.int32)
            state = own.step(state, action, keys_of(game_key, moves)[1])
            return state, returned + state.rewards[seat], moves + 1, mine + is_mine

        return jax.lax.while_loop(lambda carry: ~carry[0].terminated, step, (state, jnp.zeros(()), nothing, nothing))

    return jax.jit(jax.vmap(episode))(seats, members, keys)


def assert_same_games(name, count):
    game = jaxenvs.make(f"pgx/{name}")
    shape = NUM_OPPONENTS, int(np.prod(game.observation_space.shape))
    others = jax.random.bits(jax.random.key(0), shape, jnp.uint32)
    keys = jax.random.split(jax.random.key(7), count)
    pool = Opponents.of(preferring(int(game.action_space.n)), list(others))
    state, returned, length = played_here(game, pool, keys)
    theirs, their_return, moves, mine = played_by_pgx(name, others, state.seat, state.opponents, keys)
    for path, leaf in jax.tree_util.tree_leaves_with_path(theirs):
        ours = dict(jax.tree_util.tree_leaves_with_path(state.inner.inner))[path]
        np.testing.assert_array_equal(ours, leaf, err_msg=jax.tree_util.keystr(path))
    np.testing.assert_array_equal(returned, their_return)
    np.testing.assert_array_equal(state.moves, moves)
    np.testing.assert_array_equal(length, mine)
    assert len(set(np.asarray(state.seat).tolist())) == game.num_players
    assert len(set(np.asarray(returned).tolist())) > 1
    assert len(np.unique(np.asarray(state.inner.inner.observation).reshape(count, -1), axis=0)) > count / 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_few_games_are_those_of_pgx(name):
    assert_same_games(name, 32)


@pytest.mark.third_party
@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_games_are_those_of_pgx(name):
    assert_same_games(name, 1000)


def test_a_game_of_several_players_reports_who_moves_and_what_each_earns():
    env = jaxenvs.make("pgx/tic_tac_toe")
    state, timestep = env.reset(jax.random.key(0))
    first, step = int(timestep.info["current_player"]), jax.jit(env.step)
    for action, mover in zip([0, 3, 1, 4, 2], [first, 1 - first] * 3):
        assert timestep.info["current_player"] == mover
        state, timestep = step(state, jnp.int32(action))
    assert timestep.terminated
    assert timestep.reward == 1  # of the player who made the last move
    np.testing.assert_array_equal(timestep.info["rewards"], np.where(np.arange(2) == first, 1, -1))


def test_an_illegal_move_loses_for_the_player_who_made_it():
    env = jaxenvs.make("pgx/tic_tac_toe")
    state, timestep = env.reset(jax.random.key(0))
    first = int(timestep.info["current_player"])
    state, _ = env.step(state, jnp.int32(4))
    _, timestep = env.step(state, jnp.int32(4))
    assert (timestep.terminated, timestep.reward) == (True, -1)
    assert timestep.info["rewards"][first] == 1


@pytest.mark.thorough
def test_connect_four_trains_by_self_play():
    import bridge

    env = bridge.make_vec_env("pgx/connect_four", 8, seed=0, opponent="self")
    settings = {"n_steps": 16, "batch_size": 64, "n_epochs": 2, "policy_kwargs": {"net_arch": [8]}, "seed": 0}
    model = bridge.MaskablePPO("MlpPolicy", env, **settings)
    model.learn(3 * 128, bridge.SelfPlayCallback(every=128, pool_size=4))
    assert model.league.num_copies == 3
    assert not model.plan.reasons
