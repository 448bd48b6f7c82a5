"""Agents beside the environment of several agents, stepped by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.evaluation import evaluate_policy

import bridge
import jaxenvs
from jaxenvs import Environment, TimeStep, VectorEnv, environment, static, struct
from jaxenvs.wrappers import Agents
from tests.bridge.small_models import SETTINGS


@struct
class WalkState:
    places: jax.Array
    goals: jax.Array


@environment
class Walk(Environment[WalkState]):
    """Three agents walk to a goal each, which is 1 to 4 steps away; the reward is the number of all who walked.

    An agent that is at its goal has ended. Observes place and goal, and who has walked.
    """

    num_agents = 3
    masks: bool = static(default=False)
    observation_space = spaces.Box(-9, 9, (5,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[WalkState, TimeStep]:
        state = WalkState(jnp.zeros(3, jnp.int32), jax.random.randint(key, (3,), 1, 5, jnp.int32))
        return state, self._show(state, jnp.zeros(3, jnp.int32))

    def step(self, state: WalkState, action: Any) -> tuple[WalkState, TimeStep]:
        state = WalkState(state.places + action, state.goals)
        return state, self._show(state, action)

    def _show(self, state: WalkState, action: Any) -> TimeStep:
        observation = jnp.column_stack([state.places, state.goals, jnp.tile(action, (3, 1))]).astype(jnp.float32)
        ends = state.places >= state.goals
        info = {"action_mask": jnp.column_stack([state.places > 0, jnp.ones(3, bool)])} if self.masks else {}
        return TimeStep(observation, jnp.full(3, jnp.sum(action), float), ends, jnp.zeros(3, bool), info)


@pytest.mark.thorough
def test_every_agent_has_its_own_rewards_and_ends():
    venv, num_games = Agents(Walk(), 12), 4
    key, step = jax.random.key(3), jax.jit(venv.step)
    state, timestep = jax.jit(venv.reset)(key)
    env, random, episodes = Walk(), np.random.default_rng(0), np.zeros(4, int)

    def start(game):
        env_key = jax.random.fold_in(key, 3 * game)  # of its first agent
        return env.reset(jax.random.fold_in(env_key, episodes[game]))

    games = [start(game) for game in range(num_games)]
    is_out, returns, lengths = np.zeros((4, 3), bool), np.zeros((4, 3)), np.zeros((4, 3), int)
    np.testing.assert_array_equal(timestep.observation, np.concatenate([shown.observation for _, shown in games]))
    num_ends = 0
    for _ in range(40):
        action = random.integers(0, 2, 12)
        state, timestep = step(state, jnp.asarray(action))
        for game in range(num_games):
            rows = slice(3 * game, 3 * game + 3)
            inner, shown = env.step(games[game][0], jnp.asarray(action[rows]))
            was_out, ends = is_out[game].copy(), np.asarray(shown.terminated) & ~is_out[game]
            reward = np.where(was_out, 0, shown.reward)
            returns[game] += reward
            lengths[game] += ~was_out
            is_out[game] |= ends
            np.testing.assert_array_equal(timestep.reward[rows], reward)
            np.testing.assert_array_equal(timestep.terminated[rows], ends)
            np.testing.assert_array_equal(timestep.final_observation[rows], shown.observation)
            np.testing.assert_array_equal(timestep.episode_return[rows], returns[game])
            np.testing.assert_array_equal(timestep.episode_length[rows], lengths[game])
            returns[game, ends], lengths[game, ends] = 0, 0
            num_ends += ends.sum()
            seen = np.where(is_out[game][:, None], 0, shown.observation)
            games[game] = inner, shown
            if is_out[game].all():
                episodes[game] += 1
                is_out[game] = False
                games[game] = start(game)
                seen = games[game][1].observation
            np.testing.assert_array_equal(timestep.observation[rows], seen)
    assert num_ends > 40
    assert (episodes > 2).all()


@pytest.mark.thorough
def test_many_games_and_few_give_the_same():
    """Beyond 16 games, only the games that ended are started again."""
    few, many = Agents(Walk(), 6), Agents(Walk(), 96)
    action = np.random.default_rng(0).integers(0, 2, (20, 96))
    seen = []
    for venv in (few, many):
        state, _ = venv.reset(jax.random.key(0))
        actions = jnp.asarray(action[:, : venv.num_envs])
        _, timesteps = jax.jit(lambda state, actions, venv=venv: jax.lax.scan(venv.step, state, actions))(
            state, actions
        )
        seen.append(timesteps)
    for a, b in zip(jax.tree.leaves(seen[0]), jax.tree.leaves(seen[1]), strict=True):
        np.testing.assert_array_equal(a, b[:, :6])


@pytest.mark.thorough
def test_bridge_trains_all_agents_with_one_policy():
    env = bridge.make_vec_env(Walk(), 4, seed=0)
    assert env.num_envs == 12
    model = bridge.PPO("MlpPolicy", env, **SETTINGS).learn(600)
    assert not model.plan.reasons
    assert len(model.ep_info_buffer) > 10
    assert env.get_attr("state")[0].is_out.shape == ()


@pytest.mark.thorough
def test_legal_actions_are_each_agents_own():
    env = bridge.make_vec_env(Walk(masks=True), 2, seed=0)
    env.reset()
    np.testing.assert_array_equal(env.env_method("action_masks"), [[False, True]] * 6)
    env.step(np.array([1, 1, 1, 1, 1, 1]))
    assert np.all([mask[0] for mask in env.env_method("action_masks")])
    bridge.MaskablePPO("MlpPolicy", env, **SETTINGS).learn(200)


@pytest.mark.thorough
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluate_gives_each_agents_episode_however_many_run_at_once(deterministic):
    policy = bridge.PPO("MlpPolicy", bridge.make_vec_env(Walk(), 2, seed=0), **SETTINGS).policy
    env = bridge.make_vec_env(Walk(), 10)
    found = bridge.evaluate(policy, env, 30, deterministic=deterministic, max_steps=50)
    alone = bridge.evaluate(policy, Walk(), 30, deterministic=deterministic, max_steps=50, max_envs=4)
    np.testing.assert_array_equal(found.returns, alone.returns)
    assert found.terminated.any()


def test_evaluate_gives_the_episodes_of_evaluate_policy():
    env = bridge.make_vec_env(Walk(), 10, seed=0)
    policy = bridge.PPO("MlpPolicy", env, **SETTINGS).policy
    policy.action_net.bias.data[:] = torch.tensor([0.0, 9.0])  # all walk, because who stays never ends
    found = bridge.evaluate(policy, env, 30, max_steps=50)
    returns, lengths = evaluate_policy(policy, env, 30, return_episode_rewards=True, warn=False)
    assert sorted(zip(found.returns, found.lengths)) == sorted(zip(returns, lengths))
    assert found.terminated.all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: VectorEnv(Walk(), 3),
            r"reward must be .* Walk has num_agents = 3: if .*, make a jaxenvs.wrappers.Agents",
        ),
        (lambda: bridge.JaxVecEnv(jaxenvs.TimeLimit(Walk(), 9), 3), "Walk has num_agents = 3"),
        (lambda: Agents(jaxenvs.CartPole(), 3), "several agents, got CartPole"),
        (lambda: Agents(Walk(), 4), "a multiple of num_agents = 3, got 4"),
        (lambda: Agents(Walk(), 3, AutoresetMode.NEXT_STEP), "auto-reset SAME_STEP"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_evaluation_is_one_episode_of_each_agent():
    venv = Agents(Walk(), 12)
    results = jaxenvs.evaluate(
        venv, lambda key, observation: jnp.ones(len(observation), jnp.int32), jax.random.key(0), 9
    )
    goals = venv.reset(jax.random.split(jax.random.key(0))[0])[1].observation[:, 1]
    np.testing.assert_array_equal(results.lengths, goals)  # each walks at every step
    np.testing.assert_array_equal(results.terminated, True)
