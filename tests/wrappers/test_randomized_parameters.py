"""RandomizedParameters: other physics in every episode, the same within one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge import JaxVecEnv
from bridge.vec_env.attribute_access import with_state
from jaxenvs import CartPole, RandomizedParameters, TimeLimit, VectorEnv, check_env, environment
from jaxenvs.wrappers.action_masker import action_masks_of
from tests.environments import Counter
from tests.masked_environments import Locks


def heavy(key):
    return 1.0 + jax.random.exponential(key)


ENV = RandomizedParameters(
    TimeLimit(CartPole(), 6), {"half_length": (0.25, 1.5), "cart_mass": heavy, "max_steps": (3, 5)}
)
VENV = VectorEnv(ENV, 64)


@pytest.fixture(scope="module")
def walk():
    """The state at the start, and the parameters, episodes, observations and ends of ten steps, (10, 64)."""

    @jax.jit
    def walk(key):
        def step(state, action):
            state, timestep = VENV.step(state, jnp.full(64, action))
            return state, (state.env_states.parameters, state.episode, timestep.final_observation, timestep.done)

        start, _ = VENV.reset(key)
        return start, jax.lax.scan(step, start, np.arange(10) % 2)[1]

    start, steps = walk(jax.random.key(0))
    return start.env_states, *jax.tree.map(np.asarray, steps)


@pytest.mark.thorough
def test_every_environment_and_episode_draws_its_own_and_keeps_it(walk):
    start, parameters, episodes, *_ = walk
    lengths = parameters["half_length"]
    assert len(np.unique(start.parameters["half_length"])) == 64
    for index in range(64):
        assert len(np.unique(lengths[:, index])) == len(np.unique(episodes[:, index]))
    assert (episodes[-1] >= 2).all()


@pytest.mark.thorough
def test_draws_are_of_their_distributions(walk):
    _, parameters, *_ = walk
    length, mass, limit = (parameters[name] for name in ("half_length", "cart_mass", "max_steps"))
    assert 0.25 <= length.min() < 0.35
    assert 1.4 < length.max() <= 1.5
    assert 1.0 < mass.min() < 1.1
    np.testing.assert_array_equal(np.unique(limit), [3, 4, 5])  # both ends of a range of integers


def test_an_episode_is_one_of_an_environment_with_these_parameters(walk):
    start, _, _, observations, dones = walk
    np.testing.assert_array_equal(dones.argmax(0) + 1, start.parameters["max_steps"])
    index = 7
    fixed = ENV.env.replace(**{name: value[index].item() for name, value in start.parameters.items()})
    state = jax.tree.map(lambda leaf: leaf[index], start.inner)
    for action in range(2):
        state, timestep = fixed.step(state, action)
        np.testing.assert_allclose(observations[action, index], timestep.observation, rtol=1e-5)


@pytest.mark.thorough
def test_the_number_of_environments_changes_nothing(walk):
    state, _ = jax.jit(VectorEnv(ENV, 3).reset)(jax.random.key(0))
    for name, value in state.env_states.parameters.items():
        np.testing.assert_array_equal(value, walk[0].parameters[name][:3])


def test_bounds_can_be_swept():
    def drawn(high):
        env = RandomizedParameters(CartPole(), {"gravity": (5.0, high)})
        return env.reset(jax.random.key(0))[0].parameters["gravity"]

    gravity = jax.jit(jax.vmap(drawn))(jnp.array([5.0, 6.0, 7.0]))
    np.testing.assert_allclose(np.diff(gravity), gravity[1] - 5.0, rtol=1e-5)
    assert 5.0 == gravity[0] < gravity[1]


def test_integers_for_a_real_parameter_are_a_range_of_reals():
    state, _ = RandomizedParameters(CartPole(gravity=10), {"gravity": (1, 20)}).reset(jax.random.key(0))
    assert state.parameters["gravity"] % 1 != 0


def test_the_picture_is_of_the_parameters_that_were_drawn():
    env = RandomizedParameters(CartPole(), {"half_length": (0.2, 0.3)})
    state, _ = env.reset(jax.random.key(0))
    fixed = CartPole(half_length=state.parameters["half_length"].item())
    np.testing.assert_array_equal(env.render(state), fixed.render(state.inner))
    assert not np.array_equal(env.render(state), CartPole().render(state.inner))


@environment
class LengthLocks(Locks):
    """Locks whose legal actions depend on a parameter."""

    def action_masks(self, state):
        return jnp.arange(4) < self.length


def test_legal_actions_are_of_the_parameters_that_were_drawn():
    env = RandomizedParameters(TimeLimit(LengthLocks(tells=""), 9), {"length": (2, 2)})
    venv = JaxVecEnv(env, 1, seed=0)
    venv.reset()
    expected = [True, True, False, False]
    for masks in (action_masks_of(env, env.reset(jax.random.key(0))[0]), *venv.env_method("action_masks", indices=0)):
        np.testing.assert_array_equal(masks, expected)
    method = with_state(env, "action_masks", venv.get_attr("state", 0)[0])
    np.testing.assert_array_equal(method(), expected)


def test_what_is_not_drawn_can_be_replaced_and_what_is_drawn_cannot():
    assert ENV.replace(gravity=5.0).env.env.gravity == 5.0
    with pytest.raises(ValueError, match="half_length is randomized at each reset: change distributions"):
        ENV.replace(half_length=1.0)
    other = ENV.replace(distributions={"gravity": (1.0, 2.0)})
    assert list(other.distributions) == ["gravity"]


@pytest.mark.thorough
def test_sb3_sets_the_parameters_of_some_environments():
    venv = JaxVecEnv(RandomizedParameters(Counter(length=50), {"length": (2, 4)}), 3, seed=0)
    assert venv.get_attr("length") == [50] * 3
    with pytest.raises(ValueError, match="length is randomized at each reset"):
        venv.set_attr("length", 4)
    venv = JaxVecEnv(RandomizedParameters(TimeLimit(Counter(length=50), 40), {"length": (30, 35)}), 3, seed=0)
    venv.set_attr("max_steps", 2, indices=1)
    venv.reset()
    venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(venv.step(np.zeros(3, int))[2], [False, True, False])


@pytest.mark.thorough
def test_the_contract_holds(x64):
    check_env(RandomizedParameters(Counter(), {"length": (2, 4)}), num_steps=6)


@pytest.mark.parametrize(
    ("distributions", "error", "message"),
    [
        (
            {"half_lenght": (0.2, 1)},
            AttributeError,
            "CartPole has no parameter 'half_lenght'. Did you mean 'half_length'",
        ),
        ({"sutton_barto_reward": (0, 1)}, ValueError, "CartPole.sutton_barto_reward is static"),
        (
            {"gravity": (9, 8)},
            ValueError,
            r"distributions\['gravity'\] must be \(low, high\), finite and with low <= high",
        ),
        ({"gravity": (0, np.inf)}, ValueError, r"finite and with low <= high, got \(0, inf\)"),
        ({"gravity": 9.8}, TypeError, r"must be a pair \(low, high\) of numbers .* or a function of a key, got 9.8"),
        ({"gravity": ("low", "high")}, TypeError, r"must be a pair \(low, high\) of numbers"),
        ({}, ValueError, "distributions must be a mapping .* got none"),
        ([("gravity", (1, 2))], TypeError, "distributions must be a mapping .* got list"),
    ],
)
def test_a_bad_distribution_is_named(distributions, error, message):
    with pytest.raises(error, match=message):
        RandomizedParameters(TimeLimit(CartPole(), 5), distributions)


def test_a_parameter_is_drawn_once():
    with pytest.raises(ValueError, match="gravity must be randomized by one RandomizedParameters"):
        RandomizedParameters(RandomizedParameters(CartPole(), {"gravity": (1, 2)}), {"gravity": (1, 2)})


def test_a_function_that_gives_no_such_parameter_is_named():
    with pytest.raises(
        ValueError, match=r"distributions\['gravity'\] must return a number with shape \(\), got float32\[2\]"
    ):
        VectorEnv(RandomizedParameters(CartPole(), {"gravity": lambda key: jax.random.normal(key, (2,))}), 1)
