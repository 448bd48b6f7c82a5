"""VectorEnv: auto-reset, statistics, randomness by environment and episode."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiBinary
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxenvs
from jaxenvs import (
    AutoresetMode,
    CartPole,
    Environment,
    TimeLimit,
    TimeStep,
    VectorEnv,
    environment,
    spaces,
    static,
    struct,
    vector,
)
from tests.environments import Counter

NUM_ENVS, NUM_STEPS = 20, 60
ACTIONS = np.random.default_rng(0).integers(0, 2, (NUM_STEPS, NUM_ENVS)).astype(np.int32)


@partial(jax.jit, static_argnums=0)
def run(patched, venv, key, actions):
    state, first = venv.reset(key)
    state, rest = jax.lax.scan(venv.step, state, actions)
    return state, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def unroll(venv, actions, key=None):
    """All timesteps of a VectorEnv, the first of reset included, as numpy."""
    patched = vector.FEWEST_ENVS_TO_SEARCH, vector.chunk_size  # compiled separately for each
    state, timesteps = run(patched, venv, jax.random.key(0) if key is None else key, actions)
    return state, jax.tree.map(np.asarray, timesteps)


@pytest.fixture(scope="module")
def same_step():
    return unroll(VectorEnv(TimeLimit(CartPole(), 30), NUM_ENVS), ACTIONS)


def assert_trees_equal(a, b):
    # Keys are compared as their data.
    def data(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    chex.assert_trees_all_equal(jax.tree.map(data, a), jax.tree.map(data, b))


def test_same_step_equals_a_loop_over_single_environments(same_step):
    _, timesteps = same_step
    env = TimeLimit(CartPole(), 30)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for index in (0, 7):
        env_key = jax.random.fold_in(jax.random.key(0), index)
        episode, length, total = 0, 0, 0.0
        state, timestep = reset(jax.random.fold_in(env_key, episode))
        np.testing.assert_allclose(timesteps.observation[0, index], timestep.observation, atol=1e-6)
        for t in range(NUM_STEPS):
            state, timestep = step(state, ACTIONS[t, index])
            length, total = length + 1, total + float(timestep.reward)
            seen = jax.tree.map(lambda leaf, t=t, index=index: leaf[t + 1, index], timesteps)
            np.testing.assert_allclose(seen.final_observation, timestep.observation, atol=1e-5)
            assert (seen.terminated, seen.truncated) == (timestep.terminated, timestep.truncated)
            assert (seen.episode_length, seen.episode_return, seen.reward) == (length, total, timestep.reward)
            if timestep.done:
                episode, length, total = episode + 1, 0, 0.0
                state, timestep = reset(jax.random.fold_in(env_key, episode))
            np.testing.assert_allclose(seen.observation, timestep.observation, atol=1e-5)


def test_both_kinds_of_end_occur_and_the_final_observation_survives_the_reset(same_step):
    _, timesteps = same_step
    assert timesteps.terminated.any()
    assert timesteps.truncated.any()
    done = timesteps.done
    assert (np.abs(timesteps.observation[done]) <= 0.05).all()
    fallen = timesteps.terminated
    final = timesteps.final_observation[fallen]
    assert ((np.abs(final[:, 2]) > 0.2) | (np.abs(final[:, 0]) > 2.4)).all()
    np.testing.assert_array_equal(timesteps.observation[~done], timesteps.final_observation[~done])


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_resets_of_ended_environments_only_give_the_bits_of_resets_of_all(monkeypatch, same_step, chunk):
    monkeypatch.setattr(vector, "FEWEST_ENVS_TO_SEARCH", 10_000)
    select = unroll(VectorEnv(TimeLimit(CartPole(), 30), NUM_ENVS), ACTIONS)
    monkeypatch.setattr(vector, "FEWEST_ENVS_TO_SEARCH", 1)
    monkeypatch.setattr(vector, "chunk_size", lambda num_envs: chunk)
    searched = unroll(VectorEnv(TimeLimit(CartPole(), 30), NUM_ENVS), ACTIONS)
    assert_trees_equal(searched, select)
    assert_trees_equal(searched, same_step)


# Each class once: ids that differ in a limit or in the actions that they leave out differ in no bit.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "id",
    sorted(
        {
            spec.entry_point: spec.id
            for spec in map(jaxenvs.spec, jaxenvs.registered())
            if not spec.entry_point.startswith("jaxenvs.envs.box2d.")  # whose rounding hangs on how many there are
        }.values()
    ),
)
def test_the_bits_are_the_same_for_every_environment(monkeypatch, id):
    venv = VectorEnv(jaxenvs.make(id, max_episode_steps=10), 300)
    sample = jax.vmap(lambda key: spaces.sample(venv.env.action_space, key))
    actions = sample(jax.random.split(jax.random.key(1), 300))
    actions = jnp.broadcast_to(actions, (35, *actions.shape))
    searched = unroll(venv, actions)
    monkeypatch.setattr(vector, "FEWEST_ENVS_TO_SEARCH", 10_000)
    assert_trees_equal(searched, unroll(venv, actions))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(mask=st.lists(st.booleans(), min_size=17, max_size=17), chunk=st.sampled_from([1, 4, 17, 30]))
def test_exactly_the_masked_environments_are_replaced(mask, chunk):
    mask = np.array(mask)
    old = {"x": jnp.arange(17.0), "y": -jnp.arange(34).reshape(17, 2)}
    fresh = {"x": 100.0 + jnp.arange(17.0), "y": 1000 + jnp.arange(34).reshape(17, 2)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector, "chunk_size", lambda num_envs: chunk)
        got = vector.replace_where(lambda _, fresh: fresh, mask, old, None, fresh)
    np.testing.assert_array_equal(got["x"], np.where(mask, fresh["x"], old["x"]))
    np.testing.assert_array_equal(got["y"], np.where(mask[:, None], fresh["y"], old["y"]))


@pytest.mark.thorough
def test_an_environment_does_not_depend_on_how_many_there_are(same_step):
    _, many = same_step
    _, few = unroll(VectorEnv(TimeLimit(CartPole(), 30), 3), ACTIONS[:, :3])
    np.testing.assert_allclose(few.observation, many.observation[:, :3], atol=1e-5)
    np.testing.assert_array_equal(few.done, many.done[:, :3])


def test_reset_takes_the_keys_of_the_environments():
    venv = VectorEnv(CartPole(), 3)
    folded = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(4), jnp.arange(3))
    assert_trees_equal(venv.reset(jax.random.key(4)), venv.reset(folded))


def test_episodes_of_an_environment_start_from_different_states(same_step):
    _, timesteps = same_step
    starts = timesteps.observation[timesteps.done]
    assert len(np.unique(starts, axis=0)) == len(starts) > 20


def test_next_step_resets_in_the_step_after_the_end_and_ignores_its_action():
    venv = VectorEnv(Counter(length=3), 2, AutoresetMode.NEXT_STEP)
    _, timesteps = unroll(venv, np.ones((8, 2), np.int32))
    np.testing.assert_array_equal(timesteps.observation[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(timesteps.terminated[:, 0], [0, 0, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(timesteps.reward[:, 0], [0, 1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(timesteps.episode_return[:, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(timesteps.episode_length[:, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(timesteps.final_info["count"], timesteps.info["count"])


def test_same_step_hides_nothing_of_the_step_that_ends():
    _, timesteps = unroll(VectorEnv(Counter(length=3), 2), np.ones((7, 2), np.int32))
    np.testing.assert_array_equal(timesteps.observation[:, 0, 0], [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(timesteps.final_observation[:, 0, 0], [0, 1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(timesteps.info["count"][:, 0], [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(timesteps.final_info["count"][:, 0], [0, 1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(timesteps.episode_return[:, 0], [0, 1, 2, 3, 1, 2, 3, 1])


@pytest.mark.thorough
def test_disabled_never_resets_until_restart_does():
    venv = VectorEnv(Counter(length=3), 2, AutoresetMode.DISABLED)
    state, timestep = venv.reset(jax.random.key(0))
    for _ in range(4):
        state, timestep = venv.step(state, jnp.ones(2, jnp.int32))
    np.testing.assert_array_equal(timestep.observation[:, 0], [4, 4])
    assert timestep.terminated.all()
    state, timestep = venv.restart(state, timestep, jnp.array([True, False]))
    np.testing.assert_array_equal(timestep.observation[:, 0], [0, 4])
    np.testing.assert_array_equal(timestep.terminated, [False, True])
    np.testing.assert_array_equal(timestep.reward, [0, 1])
    np.testing.assert_array_equal(timestep.episode_length, [0, 4])
    np.testing.assert_array_equal(state.episode, [1, 0])


@pytest.mark.thorough
def test_a_batch_of_environments_gives_every_environment_its_own_parameters():
    gravity = jnp.array([5.0, 9.8, 20.0])
    batch = jax.vmap(lambda g: TimeLimit(CartPole(gravity=g), 30))(gravity)
    actions = ACTIONS[:15, :3]
    _, together = unroll(VectorEnv(batch, 3, env_axis=0), actions)
    for index in range(3):
        env = TimeLimit(CartPole(gravity=float(gravity[index])), 30)
        _, alone = unroll(VectorEnv(env, 3), actions)
        np.testing.assert_allclose(together.observation[:, index], alone.observation[:, index], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_batch_restarts_each_one_with_its_own_environment(monkeypatch):
    monkeypatch.setattr(vector, "FEWEST_ENVS_TO_SEARCH", 1)
    batch = jax.vmap(lambda length: Counter(length=length))(jnp.array([2, 3, 4]))
    _, timesteps = unroll(VectorEnv(batch, 3, env_axis=0), np.zeros((12, 3), np.int32))
    np.testing.assert_array_equal(timesteps.done.sum(axis=0), [6, 4, 3])


@pytest.mark.thorough
@pytest.mark.parametrize("num_envs", [4, 40])
def test_returns_are_differentiable_through_the_reset_of_some_environments(num_envs):
    # Every environment ends at its third step, and starts again from a state that does not depend on the force.
    def mean_velocity(force, counts):
        venv = VectorEnv(TimeLimit(CartPole(force_magnitude=force), 3), num_envs)
        actions = jnp.ones((4, num_envs), jnp.int32)
        _, timesteps = jax.lax.scan(venv.step, venv.reset(jax.random.key(0))[0], actions)
        return timesteps.observation[:, :, 1].mean(1) @ counts

    backward = jax.jit(jax.grad(mean_velocity))
    along = jax.jit(lambda force, counts: jax.jvp(lambda force: mean_velocity(force, counts), (force,), (1.0,))[1])
    for num_steps, steps_that_count in ((2, 2), (3, 0), (4, 1)):
        last = jax.nn.one_hot(num_steps - 1, 4)
        reverse, forward = backward(10.0, last), along(10.0, last)
        np.testing.assert_allclose(reverse, forward, rtol=1e-5)
        np.testing.assert_allclose(reverse, 0.0195 * steps_that_count, rtol=0.02)


@pytest.mark.thorough
def test_step_and_reset_make_a_legal_carry_that_compiles_once():
    venv = jaxenvs.make_vec("CartPole-v1", 4)
    step = jax.jit(chex.assert_max_traces(venv.step, n=1))
    state, timestep = jax.jit(venv.reset)(jax.random.key(0))
    shapes = jax.tree.map(jax.typeof, timestep)
    for _ in range(3):
        state, timestep = step(state, jnp.zeros(4, jnp.int32))
    assert jax.tree.map(jax.typeof, timestep) == shapes


@pytest.mark.thorough
def test_x64_makes_everything_but_observations_float64(x64):
    state, timestep = jaxenvs.make_vec("CartPole-v1", 4).reset(jax.random.key(0))
    assert timestep.reward.dtype == timestep.episode_return.dtype == state.env_states.inner.x.dtype == jnp.float64
    assert timestep.observation.dtype == jnp.float32


def test_wrong_arguments_are_named():
    venv = VectorEnv(CartPole(), 3)
    with pytest.raises(ValueError, match=r"key must have shape \(\) or \(3,\), got \(2,\)"):
        venv.reset(jax.random.split(jax.random.key(0), 2))
    with pytest.raises(TypeError, match=r"typed key, such as jax.random.key\(0\), got an array of uint32"):
        venv.reset(jax.random.PRNGKey(0))
    state, _ = venv.reset(jax.random.key(0))
    with pytest.raises(ValueError, match=r"leading axis num_envs = 3, got shape \(4,\)"):
        venv.step(state, jnp.zeros(4, jnp.int32))
    with pytest.raises(ValueError, match="autoreset must be one of"):
        VectorEnv(CartPole(), 3, "same_step")


def test_what_is_no_environment_or_no_batch_of_them_is_refused():
    with pytest.raises(TypeError, match=r"env must be a jaxenvs\.Environment, got str"):
        VectorEnv("CartPole-v1", 2)
    with pytest.raises(TypeError, match=r"got the class CartPole: make an instance"):
        VectorEnv(CartPole, 2)
    with pytest.raises(ValueError, match=r"env.gravity must have the leading axis num_envs = 2 .*, got shape \(\)"):
        VectorEnv(CartPole(), 2, env_axis=0)
    with pytest.raises(ValueError, match="num_envs must be a positive int up to 2147483647, got 1099511627776"):
        VectorEnv(CartPole(), 2**40)


# A state of which only shapes are known: what follows is found out before anything runs.
COUNTERS = VectorEnv(Counter(action_kind="discrete"), 3)
STATE, TIMESTEP = jax.eval_shape(COUNTERS.reset, jax.random.key(0))


@pytest.mark.parametrize("action", [None, {}, [], [0, 0, 0], {"a": np.zeros(3, int)}], ids=repr)
def test_an_action_of_another_structure_is_refused(action):
    with pytest.raises(ValueError, match=r"action must have the structure of the action space, int32\[\], got"):
        COUNTERS.step(STATE, action)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (np.zeros((3, 1), int), ValueError, r"action must have shape \(3,\), got \(3, 1\)"),
        (np.zeros(3), TypeError, "action must have dtype int32 or one of the same kind, got float64"),
        (np.array(["a"] * 3), TypeError, "action must be an array"),
        (0, TypeError, "action must be an array, got 0"),
    ],
)
def test_an_action_of_another_shape_or_kind_is_refused(action, error, message):
    with pytest.raises(error, match=message):
        COUNTERS.step(STATE, action)


def test_a_state_of_another_vector_is_refused():
    state, _ = jax.eval_shape(VectorEnv(Counter(), 2).reset, jax.random.key(0))
    with pytest.raises(ValueError, match=r"state must hold num_envs = 3 environments, got shape \(2,\)"):
        COUNTERS.step(state, np.zeros(3, int))
    with pytest.raises(TypeError, match="state must be a VectorState, as reset returns it, got None"):
        COUNTERS.step(None, np.zeros(3, int))
    with pytest.raises(ValueError, match=r"mask must be a bool array with shape \(3,\), got float64\[3\]"):
        COUNTERS.restart(STATE, TIMESTEP, np.zeros(3))


@struct
class Kept:
    action: jax.Array


@environment
class Keeper(Environment[Kept]):
    """Keeps its action in its state, in the dtype of the space; `reach` makes a space that needs its value."""

    reach: float = 1.0
    kind: str = static(default="binary")
    observation_space = Box(-1.0, 1.0, (1,))

    @property
    def action_space(self):
        return MultiBinary(2) if self.kind == "binary" else Box(-self.reach, self.reach, (2,))

    def reset(self, key):
        dtype = jnp.int8 if self.kind == "binary" else jnp.float32
        return Kept(jnp.zeros(2, dtype)), TimeStep.create(jnp.zeros(1))

    def step(self, state, action):
        return Kept(action), TimeStep.create(jnp.zeros(1))


@pytest.mark.parametrize(("kind", "dtype"), [("binary", jnp.int32), ("binary", bool), ("real", jnp.float16)])
def test_an_environment_gets_actions_in_the_dtype_of_its_space(kind, dtype):
    def run(reach):
        venv = VectorEnv(Keeper(reach, kind=kind), 3)  # in traced code, where its space cannot be computed
        return jax.lax.scan(venv.step, venv.reset(jax.random.key(0))[0], jnp.zeros((4, 3, 2), dtype))

    state, _ = jax.eval_shape(run, 1.0)
    assert state.env_states.action.dtype == Keeper(kind=kind).action_space.dtype


def test_under_x64_too_an_environment_gets_actions_in_the_dtype_of_its_space(x64):
    venv = VectorEnv(Keeper(kind="real"), 3)
    step = jax.eval_shape(
        lambda state: venv.step(state, jnp.zeros((3, 2))), jax.eval_shape(venv.reset, jax.random.key(0))[0]
    )
    assert step[0].env_states.action.dtype == jnp.float32
