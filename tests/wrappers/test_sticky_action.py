"""StickyAction beside Gymnasium's, which is fed with the same draws."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import StickyAction, VectorEnv, check_env
from jaxenvs.gym.env import GymnasiumEnv
from tests.environments import Counter


class Draws:
    """In the place of a generator of NumPy's."""

    def uniform(self):
        return self.number

    def integers(self, low, high):
        assert low <= self.duration < high
        return self.duration


@pytest.mark.thorough(but=["0.0-3"])
@pytest.mark.parametrize(("probability", "duration"), [(0.4, 1), (0.3, (2, 5)), (0.0, 3)])
def test_with_the_same_draws_the_same_actions_as_gymnasium(probability, duration):
    inside = Counter(length=10_000, action_kind="multi_discrete")
    env = StickyAction(inside, probability, duration)
    theirs = gymnasium.wrappers.StickyAction(GymnasiumEnv(inside), probability, duration)
    step, draw = jax.jit(env.step), jax.jit(env._draw)
    generator = np.random.default_rng(0)
    for episode in range(2):
        state, _ = env.reset(jax.random.key(episode))
        theirs.reset(seed=0)
        theirs.unwrapped.np_random = draws = Draws()
        for _ in range(150):
            number, drawn = draw(state)
            draws.number, draws.duration = float(number), int(drawn)
            action = generator.integers([3, 4])
            state, timestep = step(state, action)
            expected = theirs.step(action)[1]  # of a Counter the reward is the sum of the action
            assert timestep.reward == expected
            np.testing.assert_array_equal(state.last_action, theirs.last_action)


@pytest.mark.thorough
def test_environments_and_episodes_draw_their_own_and_the_first_step_never_repeats():
    venv = VectorEnv(StickyAction(Counter(length=50), 0.5), 64)
    wanted = np.arange(100) % 2 + 1

    @jax.jit
    def taken(key):
        def step(state, action):
            state, timestep = venv.step(state, jnp.full(64, action))
            return state, timestep.reward  # of a Counter the action that it got

        return jax.lax.scan(step, venv.reset(key)[0], wanted)[1]

    actions = np.asarray(taken(jax.random.key(0)))
    assert (actions[[0, 50]] == 1).all()
    missed = actions != wanted[:, None]
    assert len({each.tobytes() for each in missed.T}) == 64
    assert not np.array_equal(missed[:50], missed[50:])
    assert 0.3 < missed.mean() < 0.36  # a third: every other repetition is of what was wanted


@pytest.mark.thorough
def test_the_contract_holds_for_every_kind_of_action(x64):
    check_env(StickyAction(Counter(action_kind="box"), 0.25, (1, 2)), num_steps=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0,), "repeat_action_probability must be below 1"),
        ((-0.1,), "repeat_action_probability must be a finite number, at least 0 and at most 1, got -0.1"),
        ((0.5, 0), "repeat_action_duration must be a positive int, got 0"),
        ((0.5, (3, 2)), r"repeat_action_duration must be \(least, most\) .*, got \(3, 2\)"),
        ((0.5, (1, 2, 3)), r"repeat_action_duration must be an int or \(least, most\), got \(1, 2, 3\)"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        StickyAction(Counter(), *arguments)
