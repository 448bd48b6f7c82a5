"""The environments with goals: their contract and pictures, BitFlipping beside SB3's example, ArmReach beside NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs import goals
from jaxenvs.envs.goals.arm_reach import ArmReachState
from jaxenvs.envs.goals.bit_flipping import BitFlippingState

IDS = [spec.id for spec in goals.ENVIRONMENTS]
all_ids = pytest.mark.parametrize("id", IDS)


@pytest.mark.thorough
@pytest.mark.parametrize("id", IDS)
def test_the_reward_of_a_step_is_that_of_its_goals_and_of_many_at_once(id: str) -> None:
    venv = jaxenvs.make_vec(id, 64)
    state, _ = jax.jit(venv.reset)(jax.random.key(0))
    sample = jax.vmap(lambda key: jaxenvs.spaces.sample(venv.env.action_space, key))
    _, timestep = jax.jit(venv.step)(state, sample(jax.random.split(jax.random.key(1), 64)))
    seen = timestep.final_observation
    compute_reward = venv.env.parameter("compute_reward")
    np.testing.assert_array_equal(compute_reward(seen["achieved_goal"], seen["desired_goal"], {}), timestep.reward)
    one = compute_reward(seen["achieved_goal"][3], seen["desired_goal"][3], {})
    assert one.shape == ()
    assert one == timestep.reward[3]
    np.testing.assert_array_equal(compute_reward(seen["achieved_goal"], seen["achieved_goal"], {}), np.zeros(64))
    np.testing.assert_array_equal(timestep.info["is_success"], timestep.reward == 0)


@all_ids
def test_gymnasiums_view_tells_the_reward_of_any_goal(id: str) -> None:
    env = gymnasium.make(f"jaxenvs/{id}")
    env.reset(seed=0)
    seen, reward, *_ = env.step(env.action_space.sample())
    computed = env.get_wrapper_attr("compute_reward")(seen["achieved_goal"], seen["desired_goal"], {})
    assert isinstance(computed, np.ndarray)
    assert computed == reward


def test_each_bit_has_a_square_of_its_own() -> None:
    env = jaxenvs.BitFlipping(n_bits=5)
    blank = env.render(BitFlippingState(jnp.zeros(5, jnp.int8)))
    for bit in range(5):
        drawn = env.render(BitFlippingState((jnp.arange(5) == bit).astype(jnp.int8)))
        changed = np.flatnonzero((drawn != blank).any(axis=(0, 2)))
        assert 40 * bit < changed.min() < changed.max() < 40 * (bit + 1)


# BitFlipping beside SB3's.


def theirs(n_bits: int, continuous: bool) -> Any:
    envs = pytest.importorskip("stable_baselines3.common.envs")
    return envs.BitFlippingEnv(n_bits=n_bits, continuous=continuous)


@pytest.mark.parametrize("continuous", [False, True])
def test_spaces_and_limit_equal_sb3s(continuous: bool) -> None:
    ours = jaxenvs.make("BitFlippingContinuous-v0" if continuous else "BitFlipping-v0", n_bits=7)
    reference = theirs(7, continuous)
    assert ours.observation_space == reference.observation_space
    assert ours.action_space == reference.action_space
    assert ours.parameter("max_steps") == reference.max_steps == 7


def test_every_flip_of_every_state_equals_sb3s() -> None:
    reference, ours = theirs(5, False), jaxenvs.BitFlipping(n_bits=5)
    reference.reset(seed=0)
    cases = [*itertools.product(itertools.product((0, 1), repeat=5), range(5))]
    states = BitFlippingState(jnp.asarray([bits for bits, _ in cases], jnp.int8))
    _, timestep = jax.jit(jax.vmap(ours.step))(states, jnp.asarray([action for _, action in cases]))
    for index, (bits, action) in enumerate(cases):
        reference.state = np.array(bits, np.int8)
        _assert_step(reference.step(action), timestep, index)


def test_steps_of_continuous_actions_equal_sb3s() -> None:
    reference, ours = theirs(6, True), jaxenvs.BitFlipping(n_bits=6, continuous=True)
    reference.reset(seed=0)
    rng = np.random.default_rng(0)
    bits, actions = rng.integers(0, 2, (300, 6)).astype(np.int8), rng.uniform(-1, 1, (300, 6)).astype(np.float32)
    actions[:20] = np.where(bits[:20] == 1, -0.5, 0.5)  # which achieve the goal
    actions[20:40] = 0  # at which nothing is flipped
    _, timestep = jax.jit(jax.vmap(ours.step))(BitFlippingState(jnp.asarray(bits)), jnp.asarray(actions))
    assert np.asarray(timestep.terminated)[:20].all()
    for index in range(300):
        reference.state = bits[index].copy()
        _assert_step(reference.step(actions[index]), timestep, index)


def _assert_step(step: Any, timestep: Any, index: int) -> None:
    observation, reward, terminated, _, info = step
    for name, value in observation.items():
        got = np.asarray(timestep.observation[name][index])
        assert got.dtype == value.dtype
        np.testing.assert_array_equal(got, value)
    assert timestep.reward[index] == reward
    assert timestep.terminated[index] == terminated
    assert timestep.info["is_success"][index] == info["is_success"]


def test_whole_episodes_end_as_sb3s() -> None:
    reference, ours = theirs(3, False), jaxenvs.make("BitFlipping-v0", n_bits=3)
    step, rng, ends = jax.jit(ours.step), np.random.default_rng(1), set()
    for seed in range(60):
        state, timestep = ours.reset(jax.random.key(seed))
        reference.reset()
        reference.state = np.array(timestep.observation["observation"])
        for _ in range(3):
            action = int(rng.integers(3))
            state, timestep = step(state, action)
            _, reward, terminated, truncated, _ = reference.step(action)
            assert (timestep.reward, timestep.terminated, timestep.truncated) == (reward, terminated, truncated)
            ends.add((terminated, truncated))
            if terminated or truncated:
                break
    assert ends == {(False, False), (True, False), (False, True), (True, True)}


def test_starts_are_any_bits_alike() -> None:
    starts = jax.vmap(lambda key: jaxenvs.BitFlipping(n_bits=4).reset(key)[0].bits)(
        jax.random.split(jax.random.key(0), 8000)
    )
    counts = np.bincount(np.asarray(starts) @ (2 ** np.arange(4)), minlength=16)
    assert ((counts - 500) ** 2 / 500).sum() < 37.7  # chi-squared of 15 degrees of freedom, 0.1 %


@pytest.mark.parametrize("n_bits", [0, 2.5])
def test_what_is_no_number_of_bits_is_refused(n_bits: Any) -> None:
    with pytest.raises(ValueError, match="n_bits must be an int"):
        jaxenvs.BitFlipping(n_bits=n_bits)


# ArmReach beside scalar arithmetic.


def arm_step(theta_1: float, theta_2: float, goal: tuple[float, float], action: Any, links: Any = (0.5, 0.5)) -> Any:
    """What is observed and earned after a step, in double precision."""
    angles = [angle + 0.2 * min(max(float(turn), -1), 1) for angle, turn in zip((theta_1, theta_2), action)]
    tip = [
        links[0] * function(angles[0]) + links[1] * function(angles[0] + angles[1]) for function in (math.cos, math.sin)
    ]
    joints = [function(angle) for angle in angles for function in (math.cos, math.sin)]
    return joints, tip, 0.0 if math.dist(tip, goal) <= 0.05 else -1.0


@pytest.mark.thorough
def test_arm_moves_as_its_kinematics_say() -> None:
    rng = np.random.default_rng(0)
    theta = rng.uniform(-math.pi, math.pi, (2000, 2)).astype(np.float32)
    actions = rng.uniform(-1.5, 1.5, (2000, 2)).astype(np.float32)  # which are clipped
    goal = rng.uniform(-1, 1, (2000, 2)).astype(np.float32)
    # Half of the goals near the tip, to see both rewards.
    for index in range(0, 2000, 2):
        _, tip, _ = arm_step(*theta[index], goal[index], actions[index])
        goal[index] = tip + rng.uniform(-0.06, 0.06, 2)
    states = ArmReachState(jnp.asarray(theta[:, 0]), jnp.asarray(theta[:, 1]), jnp.asarray(goal))
    after, timestep = jax.jit(jax.vmap(jaxenvs.ArmReach().step))(states, jnp.asarray(actions))
    for angle in (after.theta_1, after.theta_2):
        assert np.abs(angle).max() <= math.pi + 1e-6
    rewards = []
    for index in range(2000):
        joints, tip, reward = arm_step(*theta[index], goal[index], actions[index])
        seen = {name: leaf[index] for name, leaf in timestep.observation.items()}
        np.testing.assert_allclose(seen["observation"], joints, atol=2e-6)
        np.testing.assert_allclose(seen["achieved_goal"], tip, atol=2e-6)
        np.testing.assert_array_equal(seen["desired_goal"], goal[index])
        if abs(math.dist(tip, goal[index]) - 0.05) > 1e-5:  # where rounding does not decide
            assert timestep.reward[index] == reward
            rewards.append(reward)
    assert 0.2 < -np.mean(rewards) < 0.8
    assert not timestep.done.any()


def test_goals_lie_where_the_tip_can_reach_as_likely_here_as_there() -> None:
    env = jaxenvs.ArmReach(link_length_1=0.7, link_length_2=0.3)
    _, timestep = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 4000))
    goal = np.asarray(timestep.observation["desired_goal"], float)
    radius = np.linalg.norm(goal, axis=1)
    assert 0.4 - 1e-6 < radius.min() < 0.42
    assert 0.99 < radius.max() < 1 + 1e-6
    area = np.sort((radius**2 - 0.16) / 0.84)
    assert np.abs(area - (np.arange(4000) + 0.5) / 4000).max() < 1.6 / math.sqrt(4000)  # Kolmogorov-Smirnov, 1 %
    direction = np.sort((np.arctan2(goal[:, 1], goal[:, 0]) / math.pi + 1) / 2)
    assert np.abs(direction - (np.arange(4000) + 0.5) / 4000).max() < 1.6 / math.sqrt(4000)
    assert env.observation_space["desired_goal"].high[0] == 1
