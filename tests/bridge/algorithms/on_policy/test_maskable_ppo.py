"""bridge.MaskablePPO instead of sb3-contrib's: illegal actions are never taken, and everything else stays the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import bridge
from jaxenvs import environment
from tests.bridge.algorithms import cases
from tests.masked_environments import ACTIONS, GymnasiumLocks, Locks, LocksOnHost, LocksWithMethod, is_legal

N_ENVS, N_STEPS = 4, 16
ROLLOUT = N_ENVS * N_STEPS


def jax_env(cls=Locks, **parameters):
    return bridge.JaxVecEnv(cls(**parameters), N_ENVS, seed=0)


def host_env(kind="discrete"):
    return bridge.SerialVecEnv([lambda: GymnasiumLocks(kind)] * N_ENVS)


make = functools.partial(cases.make, "MaskablePPO")


# --- Collecting -----------------------------------------------------------------------------------------------------

ENVIRONMENTS = {
    "told in the info": (lambda kind: jax_env(kind=kind), "compiled"),
    "told in the observation": (lambda kind: jax_env(kind=kind, tells="observation"), "compiled"),
    "by a method": (lambda kind: jax_env(LocksWithMethod, kind=kind), "compiled"),
    "by a method that cannot be traced": (lambda kind: jax_env(LocksOnHost, kind=kind), "acting compiled"),
    "Gymnasium": (host_env, "acting compiled"),
}
CASES = [(where, kind) for where in ENVIRONMENTS for kind in ACTIONS]


@pytest.mark.thorough
@pytest.mark.parametrize(("where", "kind"), CASES)
def test_rollouts_hold_legal_actions_and_what_the_torch_policy_thinks_of_them(where, kind):
    make_env, collects = ENVIRONMENTS[where]
    model = make(make_env(kind), policy="MultiInputPolicy" if where == "told in the observation" else "MlpPolicy")
    assert str(model.plan).startswith(f"collecting: {collects}")
    _, callback = model._setup_learn(ROLLOUT)
    buffer = model.rollout_buffer
    assert model.collect_rollouts(model.env, callback, buffer, N_STEPS)
    masks, actions = buffer.action_masks.reshape(ROLLOUT, -1), buffer.actions.reshape(ROLLOUT, -1)
    assert len({tuple(mask) for mask in masks}) == 3
    assert all(is_legal(kind, action, mask) for action, mask in zip(actions, masks))
    observations = buffer.observations
    if where == "told in the observation":
        np.testing.assert_array_equal(observations["action_mask"], buffer.action_masks)
        observations = {name: torch.tensor(part.reshape(ROLLOUT, -1)) for name, part in observations.items()}
    else:
        observations = torch.tensor(observations.reshape(ROLLOUT, -1))
    given = torch.tensor(actions).flatten() if kind == "discrete" else torch.tensor(actions)
    with torch.no_grad():
        values, log_probs, _ = model.policy.evaluate_actions(observations, given, action_masks=torch.tensor(masks))
    np.testing.assert_allclose(buffer.log_probs.ravel(), log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(buffer.values.ravel(), values.flatten(), rtol=1e-5, atol=1e-5)
    model.train()


@pytest.mark.thorough
@pytest.mark.parametrize("package", [bridge, sb3_contrib])
def test_environments_without_masks_are_refused_as_by_sb3_contrib_unless_masks_are_left_out(package):
    model = make(jax_env(tells=""), package)
    with pytest.raises(ValueError, match="Environment does not support action masking"):
        model.learn(ROLLOUT)
    model.learn(ROLLOUT, use_masking=False)
    assert (model.rollout_buffer.action_masks == 1).all()
    assert set(model.rollout_buffer.actions.ravel().tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("where", ["JAX", "the host"])
def test_masks_of_another_size_are_refused_with_both_shapes(where):
    """Four numbers each, for actions of which there are three."""

    @environment
    class Three(LocksWithMethod):
        @property
        def action_space(self):
            return spaces.Discrete(3)

    class HostThree(GymnasiumLocks):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(3)

    env = jax_env(Three) if where == "JAX" else bridge.SerialVecEnv([HostThree] * N_ENVS)
    with pytest.raises(RuntimeError, match=r"action masks must have shape \(4, 3\), got \(4, 4\)"):
        make(env).learn(ROLLOUT)


# --- Beside sb3-contrib ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_predict_takes_masks_by_a_program_too():
    env = jax_env()
    model, rng = make(env), np.random.default_rng(0)
    stock = make(env, sb3_contrib)
    stock.set_parameters(model.get_parameters())
    observations = np.float32(rng.uniform(0, 5, (230, N_ENVS, 2)))
    masks = rng.random((230, N_ENVS, 4)) < 0.5
    masks[..., 1] = True
    for observation, mask in zip(observations, masks):
        action, _ = model.predict(observation, deterministic=True, action_masks=mask)
        np.testing.assert_array_equal(action, stock.predict(observation, deterministic=True, action_masks=mask)[0])
        drawn, _ = model.predict(observation, action_masks=mask)
        assert mask[np.arange(N_ENVS), drawn].all()
    tensor, _ = model.predict(torch.tensor(observation), deterministic=True, action_masks=mask)
    array, _ = model.predict(jnp.asarray(observation), deterministic=True, action_masks=mask)
    np.testing.assert_array_equal(tensor.numpy(), action)
    np.testing.assert_array_equal(np.asarray(array), action)
    alone, _ = model.predict(observation[0], deterministic=True)
    np.testing.assert_array_equal(alone, stock.predict(observation[0], deterministic=True)[0])


@pytest.mark.thorough
def test_evaluate_takes_legal_actions_alone():
    model = make(jax_env(LocksWithMethod))
    ours = bridge.evaluate(model, LocksWithMethod(), 8, max_steps=9)
    env = VecMonitor(bridge.JaxVecEnv(LocksWithMethod(), 8, seed=0))
    theirs, lengths = evaluate_policy(model, env, 8, return_episode_rewards=True)
    np.testing.assert_array_equal(ours.returns, theirs)
    np.testing.assert_array_equal(ours.lengths, lengths)
    np.testing.assert_array_equal(bridge.evaluate(model, GymnasiumLocks(), 3).lengths, 5)
    with pytest.raises(ValueError, match="has no action masks"):
        bridge.evaluate(model, Locks(tells=""), 8, max_steps=5)


@pytest.mark.thorough
def test_maskable_eval_callback_leaves_programs_whole():
    evaluation = MaskableEvalCallback(
        DummyVecEnv([GymnasiumLocks]), eval_freq=2 * N_STEPS, n_eval_episodes=2, warn=False
    )
    model = make(jax_env(), engine="xla").learn(6 * ROLLOUT, evaluation)
    assert evaluation.n_calls == 6 * N_STEPS
    assert evaluation.last_mean_reward > 0
    whole = make(jax_env(), engine="xla").learn(6 * ROLLOUT)
    np.testing.assert_array_equal(*(cases.weights(each) for each in (model, whole)))


def test_what_tells_masks_can_be_asked_of_a_jax_vec_env():
    env = jax_env()
    observation = env.reset()
    expected = [info["action_mask"] for info in env.reset_infos]
    np.testing.assert_array_equal(np.stack(env.env_method("action_masks")), expected)
    np.testing.assert_array_equal(env.env_method("action_masks", indices=2), [expected[2]])
    assert jax.tree.leaves(env.get_state())  # with the masks, to continue from it
    assert observation.shape == (N_ENVS, 2)
