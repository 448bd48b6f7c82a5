"""Where compiled functions run: the rule, and that they run there."""

import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from stable_baselines3.common.envs import FakeImageEnv

import bridge
import bridge.engine.choices
from bridge import JaxVecEnv, make_vec_env
from bridge.engine.acting import Actor
from bridge.engine.choices import placement_of_acting, placement_of_episodes
from bridge.vec_env import placement
from bridge.vec_env.placement import Work, of_environments
from jaxenvs import VectorEnv, make, make_vec
from tests.bridge.algorithms.cases import assert_equal, state_of
from tests.environments import Counter
from tests.on_cpu_devices import results_of


class UserCartPole(CartPoleEnv):
    """An environment of a user."""

    def step(self, action):
        return super().step(action)


ROOT = Path(__file__).parent.parent.parent.parent
GPU = SimpleNamespace(platform="gpu", id=0)


@functools.cache
def beside_an_accelerator():
    """What models have where, in a process in which one of two devices plays an accelerator."""
    return results_of("tests.bridge.placement.on_accelerator", num_devices=2)


# --- The rule ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as JAX's default device, as far as plans look at it."""
    for module in (placement, bridge.engine.choices):
        monkeypatch.setattr(module, "accelerator", lambda: GPU if jax.config.jax_default_device is None else None)


def mlp(units, num_in=4, num_out=2):
    return (num_in + 1) * units + (units + 1) * units + (units + 1) * num_out


def ppo(units, num_envs, n_steps, in_jax=True):
    params = mlp(units) + mlp(units, num_out=1)
    return Work(in_jax, True, 11 * num_envs * params, 1 / n_steps)


def dqn(units, in_jax=True):
    return Work(in_jax, False, (1 + 32 / 4) * 2 * mlp(units), 1 / 4)


def sac(batch_size=256, in_jax=True):
    return Work(in_jax, False, (1 + batch_size) * (mlp(256, 3) + 4 * mlp(256, 4, 1)), 1.0)


A2C = Work(False, True, 16 * (mlp(64) + mlp(64, num_out=1)), 1 / 5)
ROWS = {
    "PPO 64-64, 8 JAX environments x 256": ppo(64, 8, 256),
    "the same, 1,024 x 16": ppo(64, 1024, 16),
    "PPO 1024-1024, likewise": ppo(1024, 8, 256, in_jax=False),
    "PPO 64-64, 8 Gymnasium environments x 256": ppo(64, 8, 256, in_jax=False),
    "PPO 256-256, likewise": ppo(256, 8, 256, in_jax=False),
    "A2C, SB3's defaults, 8 Gymnasium environments": A2C,
    "DQN, SB3's defaults, 1 JAX environment": dqn(64),
    "DQN 512-512, likewise": dqn(512),
    "DQN 1024-1024, likewise": dqn(1024),
    "DQN, SB3's defaults, 1 Gymnasium environment": dqn(64, in_jax=False),
    "SAC, SB3's defaults, 1 JAX environment": sac(),
    "SAC, batches of 1,024, likewise": sac(1024),
    "SAC, SB3's defaults, 1 Gymnasium environment": sac(in_jax=False),
}


@pytest.mark.parametrize("label", ROWS)
def test_the_rule_chooses_the_faster_side_of_the_measured_ones(label):
    rows = [row.split("|") for row in (ROOT / "docs/gpu.md").read_text().splitlines() if row.startswith(f"| {label} |")]
    ratios = [float(cells[4].strip(" *")) for cells in rows]
    assert ratios
    assert all(ROWS[label].pays()[0] == (ratio > 1) for ratio in ratios)


FEW_STEPS = {"n_steps": 64}
CELLS = {
    "PPO, 1 on the host": (bridge.PPO, "MlpPolicy", "CartPole-v1", 1, {}, "cpu:0"),
    "PPO, 8 on the host": (bridge.PPO, "MlpPolicy", "CartPole-v1", 8, {}, "cpu:0"),
    "PPO, 8 in JAX": (bridge.PPO, "MlpPolicy", make("CartPole-v1"), 8, {}, "gpu:0"),
    "PPO, 1,024 in JAX": (bridge.PPO, "MlpPolicy", make("CartPole-v1"), 1024, {"n_steps": 16}, "gpu:0"),
    "A2C, 8 on the host": (bridge.A2C, "MlpPolicy", "CartPole-v1", 8, {}, "cpu:0"),
    "DQN, 1 on the host": (bridge.DQN, "MlpPolicy", "CartPole-v1", 1, {}, "cpu:0"),
    "DQN, 1 in JAX": (bridge.DQN, "MlpPolicy", make("CartPole-v1"), 1, {}, "cpu:0"),
    "SAC, 1 on the host": (bridge.SAC, "MlpPolicy", "Pendulum-v1", 1, {}, "gpu:0"),
    "SAC, 1 in JAX": (bridge.SAC, "MlpPolicy", make("Pendulum-v1"), 1, {}, "gpu:0"),
    "PPO, pictures of 8 on the host": (bridge.PPO, "CnnPolicy", FakeImageEnv, 8, FEW_STEPS, "gpu:0"),
    "PPO, pictures of 8 in JAX": (bridge.PPO, "CnnPolicy", Counter(observation_kind="image"), 8, FEW_STEPS, "gpu:0"),
    "DQN, pictures of 1 on the host": (bridge.DQN, "CnnPolicy", FakeImageEnv, 1, {"buffer_size": 100}, "cpu:0"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_the_plan_says_that_a_training_runs_where_it_is_fastest(cell, gpu, monkeypatch):
    algorithm, policy, env, num_envs, settings, expected = CELLS[cell]
    if cell.startswith("DQN, pictures"):  # PyTorch is faster if it has the policy on the GPU
        monkeypatch.setattr(bridge.engine.choices, "policy_is_on_gpu", lambda policy: True)
    backend = "serial" if isinstance(env, str) or env is FakeImageEnv else "jax"
    env = make_vec_env(env, num_envs, seed=0, backend=backend)
    plan = algorithm(policy, env, seed=0, **settings).plan
    assert f"device: {expected}, because " in str(plan)
    assert plan.updates == (not cell.startswith("DQN, pictures"))
    assert {"cpu:0": plan.device == jax.devices()[0], "gpu:0": plan.device is None}[expected]


def test_a_fallback_to_the_host_moves_the_training(gpu):
    model = bridge.PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), seed=0)
    assert "device: gpu:0, because one function steps" in str(model.plan)
    model._update_info_buffer = lambda *args, **kwargs: None
    assert not model.plan.collects
    assert "device: cpu:0, because a step takes 805,640 multiply-adds, and a GPU pays" in str(model.plan)


def test_environments_and_episodes_run_on_the_gpu_if_they_are_many(gpu):
    [cpu] = jax.devices()
    for num_envs, expected in ((8, cpu), (1024, cpu), (4096, None)):
        assert of_environments("auto", make_vec("CartPole-v1", num_envs)).device is expected
        assert of_environments("cpu", make_vec("CartPole-v1", num_envs)).device is cpu
        assert of_environments("cuda", make_vec("CartPole-v1", num_envs)).device is None
    assert of_environments("auto", make_vec("LunarLander-v3", 4096)).device is cpu
    venv = make_vec("CartPole-v1", 1)
    policy = bridge.PPO("MlpPolicy", JaxVecEnv(venv), seed=0).policy
    for num_envs, expected in ((16, cpu), (4096, None)):
        assert placement_of_episodes(policy, policy, venv, num_envs).device is expected
    for num_rows, expected in ((1, cpu), (4096, cpu), (100_000, None)):
        assert placement_of_acting("auto", policy, num_rows).device is expected


def test_without_a_choice_nothing_is_said():
    plan = bridge.PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), seed=0, device="cuda").plan
    assert str(plan) == "collecting: compiled\nupdating: compiled"
    assert plan.device is None


def test_a_device_is_for_jax_environments():
    with pytest.raises(ValueError, match="device must be one of 'auto', 'cpu', 'cuda', got 'gpu'"):
        JaxVecEnv(VectorEnv(make("CartPole-v1"), 2), device="gpu")
    with pytest.raises(ValueError, match="device is only for JAX environments, got device='cuda' and backend='serial'"):
        make_vec_env("CartPole-v1", 2, backend="serial", device="cuda")


# --- Weights on another device ----------------------------------------------------------------------------------------


@pytest.fixture
def acts(monkeypatch):
    """How often compiled functions act."""
    found, act = [], Actor.act
    monkeypatch.setattr(Actor, "act", lambda *args: found.append(None) or act(*args))
    return found


def learned(env_id="CartPole-v1"):
    env = make_vec_env(env_id, 1, seed=0, backend="serial")
    small = {"learning_starts": 4, "buffer_size": 64, "batch_size": 4, "policy_kwargs": {"net_arch": [8]}}
    return bridge.DQN("MlpPolicy", env, seed=0, learning_rate=0.1, exploration_fraction=0.01, **small).learn(64)


def test_weights_that_are_copied_are_those_of_the_last_update(acts, monkeypatch):
    shared, num_shared = state_of(learned()), len(acts)
    monkeypatch.setattr("bridge.engine.acting.is_where_jax_computes", lambda tensor: False)  # as on a GPU of PyTorch's
    assert_equal(state_of(learned()), shared)
    assert len(acts) == 2 * num_shared > 0


def test_pytorch_acts_where_each_step_would_copy_the_weights(acts, monkeypatch):
    assert learned(UserCartPole).plan.updates  # its steps may change weights
    each_step = len(acts)
    monkeypatch.setattr("bridge.engine.acting.is_where_jax_computes", lambda tensor: False)
    assert learned(UserCartPole).plan.updates
    assert len(acts) - each_step <= 60 / 4 < each_step  # once after each update


# --- Where functions run ----------------------------------------------------------------------------------------------

CPU, ACCELERATOR = [0], [1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "expected"),
    {"PPO, jax, auto": ACCELERATOR, "PPO, jax, cpu": CPU, "DQN, jax, auto": CPU, "DQN, jax, cuda": ACCELERATOR}.items(),
)
def test_a_training_in_jax_is_where_its_plan_says(model, expected):
    told = beside_an_accelerator()[model]
    assert f"device: cpu:{expected[0]}, because" in told["plan"]
    assert told["env"] == expected
    assert told["replay"] == (expected if model.startswith("DQN") else [])
    assert told["loaded"]  # runs where the saved model ran
    assert told["calls"]["predict"] == CPU
    assert told["calls"]["_reset"] == CPU  # few environments
    assert told["episodes"] == (ACCELERATOR if model.endswith("cuda") else CPU)  # few of them


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["PPO, serial", "DQN, serial"])
def test_a_policy_acts_where_its_weights_are_and_learns_where_its_plan_says(model):
    for device, expected in {"cpu": CPU, "cuda": ACCELERATOR}.items():
        calls = beside_an_accelerator()[f"{model}, {device}"]["calls"]
        assert calls["act"] == CPU
        assert calls["update"] == expected


@pytest.mark.thorough
def test_results_do_not_depend_on_the_device():
    told = beside_an_accelerator()
    for model in ("PPO, jax", "DQN, jax", "PPO, serial", "DQN, serial", "env"):
        bits = {each["bits"] for name, each in told.items() if name.startswith(f"{model}, ") and "many" not in name}
        assert len(bits) == 1
    assert len({tuple(each["returns"]) for name, each in told.items() if name.startswith("PPO, jax")}) == 1


@pytest.mark.thorough
def test_environments_are_stepped_on_their_device_wherever_their_state_was():
    told = beside_an_accelerator()
    assert {name: each["state"] for name, each in told.items() if name.startswith("env")} == {
        "env, auto": [CPU, CPU],
        "env, cpu": [CPU, CPU],
        "env, cuda": [ACCELERATOR, ACCELERATOR],
        "env, many": [ACCELERATOR, ACCELERATOR],
    }
