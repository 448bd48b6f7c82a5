"""Policies and tensors on a GPU of PyTorch's that JAX does not have: training, `predict` and `step_torch`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from bridge import dlpack, make_vec_env
from bridge.algorithms.common import predicting
from bridge.algorithms.specs import SPECS
from tests.bridge import small_models
from tests.bridge.algorithms import cases
from tests.bridge.engine.test_stepping import OBSERVATIONS, sampled
from tests.cuda_tensors import CudaTensor, cuda_beside_jax_on_the_cpu

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to run .* on the GPU")  # SB3's advice


@pytest.fixture
def cuda(monkeypatch):
    # SB3 sets these where there is a GPU.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with cuda_beside_jax_on_the_cpu() as mode:
        yield mode


def weights(model):
    return torch.cat([each.detach().reshape(-1) for each in model.policy.parameters()]).cpu().numpy()


def on_jax(name):
    return cases.make_env(name)


def on_the_host(name):
    return make_vec_env("Pendulum-v1" if SPECS[name].actions == "Box" else "CartPole-v1", 2, 0, backend="serial")


ALL = [(name, on_jax) for name in SPECS] + [(name, on_the_host) for name in SPECS if not name.startswith("Maskable")]


@pytest.mark.thorough(but=["A2C-on_jax"])
@pytest.mark.parametrize(("name", "make_env"), ALL)
def test_a_training_is_the_one_on_the_cpu(cuda, name, make_env):
    trained = []
    further = {"action_noise": None} if name == "TD3" else {}  # which `cases` makes for two numbers
    for device, kind in (("cuda", CudaTensor), ("cpu", torch.Tensor)):
        model = cases.make(name, env=make_env(name), device=device, **further)
        before = weights(model)
        trained.append(weights(model.learn(cases.STEPS[name])))
        assert {type(parameter.data) for parameter in model.policy.parameters()} == {kind}
        assert "not compiled" not in str(model.plan)
    on_cuda, on_cpu = trained
    # On a CPU, parameters are aligned in one vector, so compiled functions round differently, which Adam enlarges.
    assert np.linalg.norm(on_cuda - on_cpu) < 0.1 * np.linalg.norm(on_cpu - before)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("observation", "action"), [("box", "discrete"), ("dict", "box")])
def test_predict_of_a_cuda_tensor_is_pytorchs_forward(cuda, observation, action, device, monkeypatch):
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 0)
    policy = "MultiInputPolicy" if observation == "dict" else "MlpPolicy"
    ours = small_models.make(sampled(observation, action), policy=policy, device=device)
    stock = small_models.make(sampled(observation, action), stable_baselines3.PPO, policy, device=device)
    inputs = OBSERVATIONS[observation].sample()
    tensors = jax.tree.map(lambda part: torch.as_tensor(part, device="cuda"), inputs)
    expected, _ = stock.predict(inputs, deterministic=True)
    before = cuda.to_cpu
    actions, _ = ours.predict(tensors, deterministic=True)
    assert cuda.to_cpu - before == (0 if device == "cuda" else len(jax.tree.leaves(inputs)))
    assert actions.device.type == "cuda"
    np.testing.assert_allclose(actions.cpu().numpy(), expected, atol=1e-6)


def test_predict_of_a_policy_on_cuda_is_sb3s(cuda, monkeypatch):
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 0)
    model = small_models.make(sampled(), device="cuda")
    inputs = OBSERVATIONS["box"].sample()
    expected, _ = BaseAlgorithm.predict(model, inputs, deterministic=True)
    before = cuda.to_cpu
    for _ in range(3):
        np.testing.assert_array_equal(model.predict(inputs, deterministic=True)[0], expected)
    assert cuda.to_cpu - before == 3  # the actions
    action, _ = model.predict(jnp.asarray(inputs), deterministic=True)
    assert isinstance(action, jax.Array)
    np.testing.assert_array_equal(action, expected)


def test_step_torch_copies_tensors_and_says_so_once(cuda, caplog):
    dlpack._log_copies.cache_clear()
    env, twin = (small_models.make_env() for _ in range(2))
    env.reset(), twin.reset()
    for _ in range(3):
        actions = np.random.default_rng(0).integers(0, 2, env.num_envs)
        before = cuda.to_cpu
        observation, reward, terminated, truncated, final = env.step_torch(torch.as_tensor(actions, device="cuda"))
        assert cuda.to_cpu - before == 1
        expected, rewards, dones, _ = twin.step(actions)
        assert {each.device.type for each in (observation, reward, terminated, truncated, final)} == {"cuda"}
        np.testing.assert_array_equal(observation.cpu().numpy(), expected)
        np.testing.assert_array_equal(reward.cpu().numpy(), rewards)
        np.testing.assert_array_equal((terminated | truncated).cpu().numpy(), dones)
    assert [record.getMessage() for record in caplog.records] == [
        "JAX runs on the CPU, so step_torch copies tensors from cuda in each step, and its results back. To avoid "
        'this, install JAX with CUDA: pip install "jax[cuda13]".'
    ]
    with pytest.raises(ValueError, match=r"actions\[0\] must lie in Discrete\(2\), got 2"):
        env.step_torch(torch.full((env.num_envs,), 2, device="cuda"))
