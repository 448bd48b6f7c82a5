"""Environments side by side as Gymnasium's vector environments."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jaxenvs import CartPole, Environment, TimeLimit, VectorEnv
from jaxenvs.gym import GymnasiumEnv, GymnasiumVectorEnv
from tests.gym.lottery import Lottery, assert_same


def both(env: Environment[Any], num_envs: int, mode: AutoresetMode) -> Iterator[gymnasium.vector.VectorEnv]:
    yield SyncVectorEnv([lambda: GymnasiumEnv(env)] * num_envs, autoreset_mode=mode)
    yield GymnasiumVectorEnv(VectorEnv(env, num_envs, mode))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    # XLA rounds the dynamics of one cart and of a row of them differently.
    ("env", "tolerance"),
    [
        pytest.param(TimeLimit(CartPole(), 7), 1e-5, id="CartPole", marks=pytest.mark.thorough),
        pytest.param(TimeLimit(Lottery(), 4), 0.0, id="Lottery"),
    ],
)
@pytest.mark.parametrize("num_envs", [3, 20])  # with 20 environments, resets are searched for
def test_a_vector_is_what_a_sync_vector_of_its_environments_is(
    env: Environment[Any], tolerance: float, mode: AutoresetMode, num_envs: int
) -> None:
    sync, venv = both(env, num_envs, mode)
    assert venv.observation_space == sync.observation_space
    assert venv.action_space == sync.action_space
    assert venv.single_observation_space == sync.single_observation_space
    assert venv.single_action_space == sync.single_action_space
    assert venv.metadata["autoreset_mode"] is sync.metadata["autoreset_mode"]
    assert_same(sync.reset(seed=11), venv.reset(seed=11), "reset")
    venv.action_space.seed(0)
    ends = 0
    for step in range(30):
        actions = venv.action_space.sample()
        expected, found = sync.step(actions), venv.step(actions)
        assert_same(expected, found, f"step {step}", tolerance)
        done = found[2] | found[3]
        ends += done.sum()
        if mode is AutoresetMode.DISABLED and done.any():
            some = done.copy()
            if done.sum() > 1 and step % 2:  # the rest in a second call
                some[done.argmax()] = False
                assert_same(
                    *(v.reset(options={"reset_mask": done & ~some}) for v in (sync, venv)), f"mask {step}", tolerance
                )
            assert_same(
                *(v.reset(options={"reset_mask": some.copy()}) for v in (sync, venv)), f"mask {step}", tolerance
            )
        if step == 20:
            assert_same(*(v.reset() for v in (sync, venv)), "reset without seed", tolerance)
    assert ends > num_envs


@pytest.mark.thorough(but=["9-mask2"])
@pytest.mark.parametrize(
    ("seed", "mask"),
    [([5, None, 7], None), ([5, None, 7], [True, True, False]), (9, [False, True, True]), (None, [True, False, False])],
)
def test_seeds_and_masks_mean_what_they_mean_to_a_sync_vector(seed: Any, mask: Any) -> None:
    sync, venv = both(Lottery(), 3, AutoresetMode.DISABLED)
    for vector in (sync, venv):
        vector.reset(seed=[1, 2, 3])
        vector.reset()
    options = [None if mask is None else {"reset_mask": np.array(mask)} for _ in range(2)]
    assert_same(sync.reset(seed=seed, options=options[0]), venv.reset(seed=seed, options=options[1]))
    assert_same(sync.reset(), venv.reset())
    if mask is not None:
        assert "reset_mask" in options[1]  # the caller's dict is the caller's


def test_a_first_reset_without_seed_seeds_every_environment_for_itself() -> None:
    vectors = [GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2)]
    first, second = (vector.reset()[0] for vector in vectors)
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 6
    for vector in vectors:
        vector.np_random = np.random.default_rng(1)
    fresh = [GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2)]
    for vector in fresh:
        vector.np_random = np.random.default_rng(1)
    assert_same(*(vector.reset(seed=[4, None, None]) for vector in fresh))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": [1, 2]}, ValueError, "num_envs = 3.*got 2"),
        ({"seed": -1}, ValueError, "got -1"),
        ({"seed": 1.5}, ValueError, "seed must be a non-negative int, got 1.5"),
        ({"options": {"low": 0.1}}, ValueError, r"options must contain only reset_mask, got \['low'\]"),
        ({"options": [0]}, TypeError, "options must be a dict, got list"),
        ({"seed": [0, 1, 1.5]}, ValueError, "got 1.5"),
        ({"options": {"reset_mask": [True] * 3}}, TypeError, "array of bool, got list"),
        ({"options": {"reset_mask": np.ones(3)}}, TypeError, "got float64"),
        ({"options": {"reset_mask": np.ones(2, bool)}}, ValueError, r"shape \(3,\)"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, ValueError, "at least one True"),
    ],
)
def test_a_wrong_reset_resets_nothing(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    venv, reference = (GymnasiumVectorEnv(VectorEnv(CartPole(), 3)) for _ in range(2))
    venv.reset(seed=0)
    reference.reset(seed=0)
    with pytest.raises(error, match=message):
        venv.reset(**arguments)
    assert_same(reference.reset(), venv.reset())


def test_a_mask_in_the_first_reset_is_refused() -> None:
    with pytest.raises(ResetNeeded, match="before all sub-environments were reset"):
        GymnasiumVectorEnv(VectorEnv(CartPole(), 2)).reset(options={"reset_mask": np.array([True, False])})


def test_without_autoreset_an_environment_that_ended_must_be_reset() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(TimeLimit(CartPole(), 1), 2, AutoresetMode.DISABLED))
    venv.reset(seed=0)
    venv.step([0, 0])
    venv.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"sub-environments \[1\]"):
        venv.step([0, 0])
    venv.reset(options={"reset_mask": np.array([False, True])})
    venv.step([0, 0])


@pytest.mark.thorough
def test_what_a_vector_step_returns_belongs_to_the_caller() -> None:
    venv = GymnasiumVectorEnv(VectorEnv(TimeLimit(Lottery(), 1), 3))
    venv.reset(seed=0)
    steps = [venv.step(venv.action_space.sample()) for _ in range(2)]
    for leaf in jax.tree.leaves([steps, [list(step[4]["final_obs"]) for step in steps]]):
        if isinstance(leaf, np.ndarray):
            assert leaf.flags.writeable
            assert leaf.flags.owndata
    observation, final = steps[0][0], steps[0][4]["final_obs"][0]
    before = observation["image"].copy()
    final["image"][:] = 255 - final["image"]
    np.testing.assert_array_equal(observation["image"], before)


@pytest.mark.thorough
def test_environments_may_have_different_parameters() -> None:
    gravity = np.array([1.0, 50.0])
    envs = jax.vmap(lambda gravity: CartPole(gravity=gravity))(gravity)
    envs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2,)), envs)
    venv = GymnasiumVectorEnv(VectorEnv(envs, 2, env_axis=0), "rgb_array")
    sync = SyncVectorEnv([lambda g=g: GymnasiumEnv(CartPole(gravity=g)) for g in gravity])
    venv.reset(seed=0)
    sync.reset(seed=0)
    for _ in range(3):
        np.testing.assert_allclose(venv.step([1, 0])[0], sync.step([1, 0])[0], rtol=1e-6)
    assert venv.observation_space.shape == (2, 4)
    assert len(venv.render() or ()) == 2
