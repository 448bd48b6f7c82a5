"""JaxMARL's environments under our contract, beside their own stepping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
import jaxenvs
from jaxenvs import VectorEnv, learn
from jaxenvs.third_party import from_jaxmarl
from jaxenvs.wrappers import Agents
from tests.third_party.episodes import keys_of

jaxmarl = pytest.importorskip("jaxmarl")
SPREAD = "jaxmarl/MPE_simple_spread_v3"


def test_its_episodes_are_those_of_jaxmarl():
    env, own = jaxenvs.make(SPREAD), jaxmarl.make("MPE_simple_spread_v3")
    key = jax.random.key(0)
    state, timestep = jax.jit(env.reset)(key)
    observations, theirs = own.reset(keys_of(key, 0)[0])
    step, their_step = jax.jit(env.step), jax.jit(own.step_env)
    random = np.random.default_rng(0)
    for number in range(26):
        np.testing.assert_array_equal(timestep.observation, np.stack([observations[agent] for agent in own.agents]))
        action = random.integers(0, 5, 3)
        state, timestep = step(state, jnp.asarray(action))
        given = {agent: jnp.asarray(each) for agent, each in zip(own.agents, action)}
        observations, theirs, rewards, dones, _ = their_step(keys_of(key, number)[1], theirs, given)
        np.testing.assert_array_equal(timestep.reward, [rewards[agent] for agent in own.agents])
        np.testing.assert_array_equal(timestep.done, [dones[agent] for agent in own.agents])
    assert timestep.truncated.all()  # the library's limit
    assert not timestep.terminated.any()


def test_its_agents_train_with_one_policy():
    env = bridge.make_vec_env(SPREAD, 4, seed=0)
    assert (env.num_envs, env.observation_space.shape) == (12, (18,))
    model = bridge.PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=0).learn(12 * 32)
    assert not model.plan.reasons
    assert {episode["l"] for episode in model.ep_info_buffer} == {26}


def test_its_agents_train_in_pure_jax():
    venv = Agents(jaxenvs.make(SPREAD), 12)
    network = learn.ActorCritic.of(venv.first_env)
    training = learn.Training(venv, network, learn.PPO(n_steps=8, batch_size=32, n_epochs=1), total_timesteps=96)
    result = jax.jit(learn.train)(jax.random.key(0), training)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_agents_with_different_spaces_are_refused():
    with pytest.raises(ValueError, match="All agents must have one observation_space to share a policy"):
        jaxenvs.make("jaxmarl/MPE_simple_tag_v3")


def test_wrappers_and_environments_that_reset_inside_are_refused():
    from jaxmarl.wrappers.baselines import LogWrapper

    with pytest.raises(ValueError, match="got LogWrapper around"):
        from_jaxmarl(LogWrapper(jaxmarl.make("MPE_simple_spread_v3")))
    with pytest.raises(ValueError, match="got Ant around AutoResetWrapper"):
        jaxenvs.make("jaxmarl/ant_4x2")


def test_a_team_against_opponents_of_the_library_is_adapted():
    assert jaxenvs.make("jaxmarl/HeuristicEnemySMAX").num_agents == jaxmarl.make("HeuristicEnemySMAX").num_agents


def test_parameters_go_to_the_library():
    assert jaxenvs.make(SPREAD, num_agents=4, num_landmarks=4).num_agents == 4


def test_one_environment_alone_is_no_environment_of_one_agent():
    with pytest.raises(ValueError, match=r"make a jaxenvs\.wrappers\.Agents"):
        VectorEnv(jaxenvs.make(SPREAD), 2)
