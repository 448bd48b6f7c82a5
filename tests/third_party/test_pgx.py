"""pgx's games of one player under our contract, beside its own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from tests.third_party.episodes import Shown, all_ids, assert_same_episodes, keys_of

pgx = pytest.importorskip("pgx")


def assert_parity(name: str) -> None:
    own = pgx.make(name)

    def reset(key):
        state = own.init(keys_of(key, 0)[0])
        return state, state.observation

    def step(state, action, key, number):
        state = own.step(state, action, keys_of(key, number)[1])
        return state, Shown(state.observation, state.rewards[0], state.terminated, state.truncated)

    num_steps = 2501 if name == "minatar-freeway" else 200  # Freeway ends then
    shown = assert_same_episodes(jaxenvs.make(f"pgx/{name}"), reset, step, num_steps)
    assert shown.terminated.any()


@pytest.mark.thorough
@pytest.mark.parametrize("id", all_ids("pgx", "minatar-breakout"))
def test_its_episodes_are_those_of_pgx(id: str) -> None:
    assert_parity(id.partition("/")[2])


@pytest.fixture(scope="module")
def game():
    env = jaxenvs.make("pgx/2048")
    return env, jax.jit(env.reset), jax.jit(env.step)


@pytest.mark.thorough
def test_the_mask_of_legal_actions_is_in_the_info_from_the_reset_on(game) -> None:
    _, reset, step = game
    state, timestep = reset(jax.random.key(0))
    for _ in range(20):
        np.testing.assert_array_equal(timestep.info["action_mask"], state.inner.legal_action_mask)
        assert timestep.info["action_mask"].any()
        state, timestep = step(state, jnp.argmax(timestep.info["action_mask"]))


@pytest.mark.thorough
def test_an_illegal_action_ends_the_game(game) -> None:
    _, reset, step = game
    state, timestep = next(  # two numbers that cannot move in one of the four directions
        start for start in (reset(jax.random.key(seed)) for seed in range(99)) if not start[1].info["action_mask"].all()
    )
    _, timestep = step(state, jnp.argmin(timestep.info["action_mask"]))
    assert (timestep.reward, timestep.terminated, timestep.truncated) == (-1, True, False)


@pytest.mark.thorough
def test_a_game_that_ended_gives_nothing_more(game) -> None:
    env, reset, _ = game
    state, _ = reset(jax.random.key(0))
    _, timesteps = jax.jit(lambda state: jax.lax.scan(env.step, state, jnp.zeros(50, jnp.int32)))(state)
    end = int(timesteps.terminated.argmax())
    assert timesteps.terminated[end:].all()
    assert not timesteps.reward[end + 1 :].any()


def test_the_probability_of_sticky_actions_is_a_parameter() -> None:
    env = jaxenvs.make("pgx/minatar-breakout")
    assert env.parameter("sticky_action_prob") == 0.1
    step = jax.jit(lambda env, state, action: env.step(state, action)[0].inner._pos)
    state, _ = env.reset(jax.random.key(0))  # the last action was none
    stuck, free = (step(env.replace(sticky_action_prob=p), state, jnp.int32(1)) for p in (1.0, 0.0))
    assert stuck == state.inner._pos
    assert free == state.inner._pos - 1


def test_minatars_picture_is_of_its_own_colours_and_2048_has_none(game) -> None:
    from pgx.minatar.utils import get_cmap

    env = jaxenvs.make("pgx/minatar-breakout")
    state, _ = env.reset(jax.random.key(0))
    picture = env.draw(state, 10, 10)
    colours = np.round(np.array([(0, 0, 0), *get_cmap(4)]) * 255)
    cells = np.asarray(state.inner.observation)
    topmost = np.where(cells.any(-1), 4 - cells[..., ::-1].argmax(-1), 0)
    np.testing.assert_array_equal(picture, colours[topmost])
    assert env.can_render
    assert not game[0].can_render


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(jaxenvs.UnknownEnvironment, match="pgx/minatar-breakout"):
        jaxenvs.make("pgx/minatar-brakeout")


@pytest.mark.thorough
@pytest.mark.parametrize("id", all_ids("pgx", "2048"))
def test_it_keeps_the_contract(id: str) -> None:
    jaxenvs.check_env(jaxenvs.make(id))


@pytest.mark.thorough
def test_it_keeps_the_contract_in_float64(x64: None) -> None:
    jaxenvs.check_env(jaxenvs.make("pgx/2048"), num_steps=20)
