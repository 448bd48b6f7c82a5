"""On an NVIDIA GPU: the arithmetic of an update, DLPack, memory beside PyTorch, resuming, and stock policies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import configure

import bridge
import jaxenvs
from benchmarks.peers.torch_cartpole import TorchCartPole
from bridge import GymVecEnv, make_vec_env, to_jax, to_torch
from bridge.engine.on_policy import device_arrays

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("resumed.py")
ROLLOUT = {"n_steps": 32, "seed": 0, "device": "cuda", "policy_kwargs": {"net_arch": [64]}}
FIELDS = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")


def is_on_gpu(array):
    return {device.platform for device in array.devices()} == {"gpu"}


def run(script, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# --- Arithmetic -------------------------------------------------------------------------------------------------


def updated(algorithm, env_id, settings):
    """A stock model and ours, before and after an update from the same weights and the same rollout, as vectors."""
    env = make_vec_env(env_id, 8, seed=0)
    ours = getattr(bridge, algorithm)("MlpPolicy", env, engine="xla", **ROLLOUT, **settings)
    stock = getattr(stable_baselines3, algorithm)("MlpPolicy", env, **ROLLOUT, **settings)
    stock.set_parameters(ours.get_parameters())
    for model in (ours, stock):
        model.set_logger(configure(None, []))
    _, callback = ours._setup_learn(256)
    assert ours.collect_rollouts(ours.env, callback, ours.rollout_buffer, 32)
    for name in FIELDS:
        setattr(stock.rollout_buffer, name, getattr(ours.rollout_buffer, name).copy())
    stock.rollout_buffer.full = True
    before = torch.nn.utils.parameters_to_vector(ours.policy.parameters()).detach().cpu().numpy()
    for model in (ours, stock):
        model.train()
    assert next(stock.policy.parameters()).is_cuda
    after = [torch.nn.utils.parameters_to_vector(m.policy.parameters()).detach().cpu().numpy() for m in (ours, stock)]
    return before, *after


# One minibatch, so that its order does not matter: a pass over it is a gradient step.
@pytest.mark.parametrize(
    ("algorithm", "env_id", "settings"),
    [
        ("PPO", "CartPole-v1", {"batch_size": 256, "n_epochs": 4}),
        ("PPO", "Pendulum-v1", {"batch_size": 256, "n_epochs": 4, "use_sde": True}),
        ("A2C", "Pendulum-v1", {}),
    ],
    ids=["ppo", "ppo with gsde", "a2c"],
)
def test_an_update_is_that_of_torch_to_1e_4_at_the_highest_precision(algorithm, env_id, settings):
    with jax.default_matmul_precision("highest"):
        before, ours, stock = updated(algorithm, env_id, settings)
    largest = np.abs(stock - before).max()
    assert largest > 1e-5
    np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-4 * np.abs(stock).max())
    # Of the way that the weights went, which is shorter than they are.
    np.testing.assert_allclose(ours - before, stock - before, atol=2e-2 * largest)


def test_an_update_at_jaxs_default_precision_is_near():
    before, ours, stock = updated("PPO", "CartPole-v1", {"batch_size": 256, "n_epochs": 4})
    way, error = stock - before, ours - stock
    assert np.linalg.norm(error) <= 0.1 * np.linalg.norm(way)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_a_step_is_that_of_the_cpu(env_id):
    venv = jaxenvs.make_vec(env_id, 64)
    [cpu] = jax.devices("cpu")[:1]
    actions = np.stack([venv.env.action_space.sample() for _ in range(64)])
    state, _ = jax.jit(venv.reset)(jax.random.key(0))
    _, on_gpu = jax.jit(venv.step)(state, jnp.asarray(actions))
    with jax.default_device(cpu):
        _, on_cpu = jax.jit(venv.step)(jax.device_put(state, cpu), jnp.asarray(actions))
    assert is_on_gpu(on_gpu.observation)
    np.testing.assert_allclose(on_gpu.observation, on_cpu.observation, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(on_gpu.reward, on_cpu.reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(on_gpu.done, on_cpu.done)


# --- DLPack -----------------------------------------------------------------------------------------------------

SIZE = 2048


def test_arrays_cross_both_ways_without_a_copy():
    array = jax.block_until_ready(jnp.arange(1000.0))
    tensor = to_torch(array)
    assert tensor.device.type == "cuda"
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    tensor = torch.arange(1000.0, device="cuda")
    array = to_jax(tensor)
    assert is_on_gpu(array)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    copy = to_jax(tensor, copy=True)
    tensor.add_(1)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(copy, np.arange(1000.0))


@pytest.mark.parametrize("stream", ["default", "side"])
def test_torch_waits_for_what_jax_still_computes(stream):
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 50, lambda _, y: y @ x, x) + 1

    x = jnp.eye(SIZE)
    jax.block_until_ready(slow(x))
    side = torch.cuda.default_stream() if stream == "default" else torch.cuda.Stream()
    for _ in range(10):
        array = slow(x)
        with torch.cuda.stream(side):
            total = to_torch(array).sum()
        side.synchronize()
        assert total.item() == SIZE * SIZE + SIZE


@pytest.mark.parametrize("stream", ["default", "side"])
def test_jax_waits_for_what_torch_still_computes(stream):
    side = torch.cuda.default_stream() if stream == "default" else torch.cuda.Stream()
    x = torch.eye(SIZE, device="cuda")
    torch.cuda.synchronize()
    for _ in range(10):
        with torch.cuda.stream(side):
            y = x
            for _ in range(50):
                y = y @ x
            tensor = y + 1
            array = to_jax(tensor)
        total = float(array.sum())
        side.synchronize()
        assert total == SIZE * SIZE + SIZE


def test_steps_on_tensors_are_those_on_arrays():
    """Actions computed from observations on the GPU, and nobody waits in between."""

    def act(observation):
        return (observation[:, 2] + observation[:, 3] > 0).to(torch.int64)

    tensors, arrays = (make_vec_env("CartPole-v1", 64, seed=0) for _ in range(2))
    observation = torch.as_tensor(tensors.reset(), device="cuda")
    rewards, observations = [], []
    for _ in range(200):
        observation, reward, *_ = tensors.step_torch(act(observation))
        rewards.append(reward)
        observations.append(observation.sum())
    assert observation.device.type == "cuda"
    expected, expected_sums = torch.as_tensor(arrays.reset()), []
    for _ in range(200):
        expected, expected_reward, _, _ = arrays.step(act(torch.as_tensor(expected)).numpy())
        expected_sums.append(expected.sum())
    np.testing.assert_allclose(torch.stack(rewards).sum().item(), 200 * 64)
    np.testing.assert_allclose(observation.cpu(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(torch.stack(observations).cpu(), expected_sums, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(rewards[-1].cpu(), expected_reward)


def test_rollouts_on_tensors_are_those_of_sb3():
    buffers = []
    for algorithm, settings in ((stable_baselines3.PPO, {}), (bridge.PPO, {"engine": "torch"})):
        env = make_vec_env("CartPole-v1", 16, seed=0, env_kwargs={"max_episode_steps": 12})
        model = algorithm("MlpPolicy", env, batch_size=512, n_epochs=1, **ROLLOUT, **settings)
        _, callback = model._setup_learn(10_000)
        for _ in range(2):
            assert model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
        fields = {name: getattr(model.rollout_buffer, name) for name in FIELDS}
        buffers.append({n: f.cpu().numpy() if isinstance(f, torch.Tensor) else f for n, f in fields.items()})
    stock, ours = buffers
    for name in FIELDS:
        np.testing.assert_allclose(
            ours[name], stock[name].reshape(ours[name].shape), rtol=1e-4, atol=1e-4, err_msg=name
        )


# --- Memory, resuming, stock policies ---------------------------------------------------------------------------

MEMORY = """
import json
import bridge, jax, jax.numpy as jnp, torch
jax.block_until_ready(jnp.ones(8) + 1)
free, total = torch.cuda.mem_get_info()
tensor = torch.ones(int(0.4 * total) // 4, device="cuda")
# Two axes, as an index of JAX is an int32.
array = jax.block_until_ready(jnp.ones((int(0.2 * total) // 4096, 1024), jnp.float32))
torch.cuda.synchronize()
print(json.dumps({"taken": (total - free) / total, "sum": float(tensor[-1] + float(array[-1, -1]))}))
"""


def test_jax_and_torch_share_the_memory(tmp_path):
    """After `import bridge` JAX takes what it needs, not three quarters at the start, so both find room."""
    (tmp_path / "memory.py").write_text(MEMORY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA_PYTHON_CLIENT")}
    free, total = torch.cuda.mem_get_info()
    done = subprocess.run(
        [sys.executable, tmp_path / "memory.py"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["taken"] - (total - free) / total < 0.1
    assert result["sum"] == 2


def test_a_resumed_training_goes_on_bit_for_bit(tmp_path):
    """Where kernels are deterministic, which XLA makes them at some cost."""
    flags = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"}
    whole = run(SCRIPT, tmp_path / "model.zip", "begin", **flags)
    resumed = run(SCRIPT, tmp_path / "model.zip", "resume", **flags)
    assert json.loads(resumed.splitlines()[-1]) == json.loads(whole.splitlines()[-1])


def test_a_stock_policy_on_the_gpu_trains_on_environments_there():
    env = make_vec_env("CartPole-v1", 64, seed=0)
    settings = {"batch_size": 512, "n_epochs": 4, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
    model = stable_baselines3.PPO("MlpPolicy", env, **ROLLOUT, **settings)
    model.learn(20 * 64 * 32)
    assert next(model.policy.parameters()).is_cuda
    assert all(is_on_gpu(leaf) for leaf in jax.tree.leaves(env.packed_state))
    assert isinstance(model._last_obs, np.ndarray)
    assert bridge.evaluate(model, "CartPole-v1", n_episodes=100).mean > 100


def test_a_compiled_training_with_its_policy_on_the_gpu_learns():
    settings = {"batch_size": 512, "n_epochs": 4, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
    model = bridge.PPO("MlpPolicy", make_vec_env("CartPole-v1", 64, seed=0), engine="xla", **ROLLOUT, **settings)
    model.learn(20 * 64 * 32)
    assert next(model.policy.parameters()).is_cuda
    assert bridge.evaluate(model, "CartPole-v1", n_episodes=100).mean > 100


# --- Environments of tensors ------------------------------------------------------------------------------------


def test_a_rollout_of_tensors_stays_on_the_gpu(monkeypatch):
    with jax.default_matmul_precision("highest"):
        models = []
        for host in ("cuda", "cpu"):  # through arrays, and not
            monkeypatch.setattr(device_arrays, "HOST", host)
            env = GymVecEnv(TorchCartPole(64, max_episode_steps=12, device="cuda"))
            models.append(bridge.PPO("MlpPolicy", env, batch_size=512, n_epochs=1, learning_rate=0.0, **ROLLOUT))
            models[-1].learn(2 * 64 * 32)
    through_arrays, on_the_gpu = models
    for name in FIELDS:
        expected, given = (getattr(model.rollout_buffer, name) for model in models)
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(on_the_gpu._last_obs, through_arrays._last_obs, rtol=1e-4, atol=1e-4)
