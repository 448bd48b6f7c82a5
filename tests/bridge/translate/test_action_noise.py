"""Action noise of SB3 in compiled functions: one draw for each number of an action, or SB3's own code."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise

import bridge
from bridge import JaxVecEnv
from bridge.translate.action_noise import export_noise, noise_state, write_noise_state
from bridge.translate.pytorch.operations import NotCompilable
from jaxenvs import Environment, TimeLimit, TimeStep, environment
from tests.bridge.algorithms.cases import SETTINGS

SIGMA = np.array([[0.01, 0.02], [0.1, 0.2]])
NORMAL = NormalActionNoise(np.zeros((2, 2)), SIGMA)


@environment
class Matrix(Environment[jax.Array]):
    """Takes matrices, or columns of two numbers, and gives nothing."""

    observation_space = spaces.Box(-1.0, 1.0, (3,))
    action_space = spaces.Box(-1.0, 1.0, (2, 2))

    def reset(self, key):
        return jnp.zeros(()), TimeStep.create(jnp.zeros(3))

    def step(self, state, action):
        return state, TimeStep.create(jnp.zeros(3))


@environment
class Column(Matrix):
    action_space = spaces.Box(-1.0, 1.0, (2, 1))


class HostMatrix(gymnasium.Env):
    observation_space, action_space = Matrix.observation_space, Matrix.action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert action.shape == (2, 2)
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Silent(VectorizedActionNoise):
    def __call__(self):
        return 0 * super().__call__()


def explored(env, noise, package=bridge, steps=400):
    """Return what is added to the actions of a policy that learns nothing, (steps, n_envs, n)."""
    np.random.seed(0)  # noqa: NPY002
    settings = {**SETTINGS, "buffer_size": steps * getattr(env, "num_envs", 1), "policy_kwargs": {"net_arch": [8]}}
    model = package.TD3("MlpPolicy", env, action_noise=noise, learning_starts=0, gradient_steps=0, **settings)
    model.learn(settings["buffer_size"])
    actions = model.replay_buffer.actions
    mean, _ = model.policy.predict(np.zeros((1, 3), np.float32), deterministic=True)
    return actions - mean.reshape(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("env_class", [Matrix, Column])
def test_each_number_of_an_action_of_any_shape_has_its_noise(env_class):
    sigma = SIGMA if env_class is Matrix else np.array([[0.01], [0.1]])
    env = JaxVecEnv(TimeLimit(env_class(), 10), 2, 0)
    added = explored(env, NormalActionNoise(np.zeros_like(sigma), sigma))
    np.testing.assert_allclose(added.std(axis=0), [sigma.ravel()] * 2, rtol=0.2)
    assert np.abs(np.corrcoef(added.reshape(len(added), -1).T) - np.eye(2 * sigma.size)).max() < 0.3


def test_drifting_noise_of_a_matrix_is_handed_back_and_forth():
    noise = VectorizedActionNoise(OrnsteinUhlenbeckActionNoise(np.zeros((2, 2)), SIGMA), 3)
    exported = export_noise(noise, (2, 2))
    state, added = exported.step(noise_state(noise, 3), np.ones((3, 4), np.float32))
    np.testing.assert_allclose(added, [0.1 * SIGMA.ravel()] * 3, rtol=1e-6)
    write_noise_state(noise, state)
    assert all(each.noise_prev.shape == (2, 2) for each in noise.noises)
    np.testing.assert_array_equal(noise_state(noise, 3), state)


@pytest.mark.parametrize(
    "noise", [NORMAL, NormalActionNoise(np.zeros(2), SIGMA[0]), None], ids=["matrix", "row", "none"]
)
def test_noise_on_the_host_is_what_sb3_adds(noise):
    ours, stock = (explored(HostMatrix(), noise, package, 20) for package in (bridge, stable_baselines3))
    np.testing.assert_allclose(ours, stock, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "shape", "what"),
    [
        (NormalActionNoise(np.zeros(2), SIGMA[0]), (2, 2), r"with the shape \(2, 2\)"),
        (VectorizedActionNoise(NormalActionNoise(np.zeros(2), SIGMA[0]), 2), (2, 2), r"with the shape \(2, 2\)"),
        (NormalActionNoise(np.zeros(3), 0.1), (2,), r"with the shape \(2,\)"),
        (NormalActionNoise(np.zeros(1), 0.1), (2,), r"with the shape \(2,\)"),
        (OrnsteinUhlenbeckActionNoise(np.zeros(1), SIGMA[0]), (2,), r"with the shape \(2,\)"),
        (Silent(NormalActionNoise(np.zeros(2), SIGMA[0]), 2), (2,), "action noise Silent"),
    ],
    ids=["row", "rows", "too many", "one", "one draw", "subclass"],
)
def test_noise_that_sb3_alone_knows_how_to_add_is_refused(noise, shape, what):
    with pytest.raises(NotCompilable, match=what):
        export_noise(noise, shape)


def test_a_subclass_of_the_noise_of_many_environments_is_asked():
    added = explored(JaxVecEnv(TimeLimit(Matrix(), 10), 2, 0), Silent(NORMAL, 2), steps=20)
    np.testing.assert_allclose(added, 0, atol=1e-6)


@pytest.mark.thorough
def test_noise_of_ones_own_leaves_the_update_compiled():
    class Mine(NormalActionNoise):
        """Noise with the interface of SB3's."""

    settings = {**SETTINGS, "learning_starts": 4, "policy_kwargs": {"net_arch": [8]}}
    model = bridge.TD3("MlpPolicy", HostMatrix(), action_noise=Mine(np.zeros((2, 2)), SIGMA), **settings).learn(8)
    assert model.plan.updates
    assert model._n_updates > 0
