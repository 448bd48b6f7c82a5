"""ActionRepeat beside Gymnasium's RepeatAction."""

import gymnasium
import jax
import numpy as np
import pytest

from jaxenvs import ActionRepeat, CartPole, TimeLimit, check_env
from tests.environments import Counter
from tests.wrappers.against_gymnasium import assert_equal_to


@pytest.mark.skipif(not hasattr(gymnasium.wrappers, "RepeatAction"), reason="this Gymnasium has no RepeatAction")
@pytest.mark.parametrize("inside", [Counter(length=7), TimeLimit(CartPole(), 9)], ids=["terminated", "truncated"])
def test_steps_are_those_of_gymnasium_where_an_episode_ends_on_the_way_too(inside):
    assert_equal_to(lambda env: gymnasium.wrappers.RepeatAction(env, 4), ActionRepeat(inside, 4), inside)


def test_rewards_are_summed_up_to_the_end_and_the_state_stays_there():
    env = ActionRepeat(Counter(length=6), 4)
    state, _ = env.reset(jax.random.key(0))
    found = []
    for _ in range(2):
        state, timestep = env.step(state, np.int32(2))
        found.append((int(state.count), float(timestep.reward), bool(timestep.done), int(timestep.info["count"])))
    assert found == [(4, 8.0, False, 4), (6, 4.0, True, 6)]


@pytest.mark.thorough
def test_it_can_be_differentiated():
    def reward(magnitude):
        env = ActionRepeat(CartPole(force_magnitude=magnitude), 3)
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, np.int32(1))[0].x_dot

    assert jax.grad(reward)(10.0) > 0


def test_once_is_allowed_and_never_is_not():
    check_env(ActionRepeat(Counter(), 1), num_steps=6)
    with pytest.raises(ValueError, match="num_repeats must be a positive int, got 0"):
        ActionRepeat(Counter(), 0)
