"""Files of 0.2.0 load: models, a checkpoint, a state of environments."""

import json
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

import bridge

DATA = Path(__file__).parent.parent / "data" / "0.2.0"
EXPECTED = json.loads((DATA / "expected.json").read_text())


@pytest.mark.parametrize("package", [bridge, stable_baselines3])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_model_loads_and_acts_as_it_did(name, package):
    model = getattr(package, name.upper()).load(DATA / name)
    observations = np.array(EXPECTED["observations"], np.float32)
    assert model.predict(observations, deterministic=True)[0].tolist() == EXPECTED[name]
    assert model.num_timesteps == EXPECTED[f"{name}_timesteps"]


def test_a_model_goes_on_training():
    model = bridge.PPO.load(DATA / "ppo", env=bridge.make_vec_env("CartPole-v1", 4))
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps == EXPECTED["ppo_timesteps"] + 64


def test_a_checkpoint_continues():
    env = VecNormalize(VecMonitor(bridge.make_vec_env("Pendulum-v1", 4, seed=0)))
    model = bridge.load_checkpoint(bridge.PPO, DATA / "checkpoint", env)
    np.testing.assert_allclose(env.obs_rms.mean, EXPECTED["checkpoint_mean"])
    observations = np.array(EXPECTED["checkpoint_observations"], np.float32)
    np.testing.assert_allclose(
        model.predict(observations, deterministic=True)[0], EXPECTED["checkpoint"], rtol=1e-5, atol=1e-6
    )
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps == EXPECTED["checkpoint_timesteps"] + 64


def test_a_state_of_environments_is_taken_over():
    env = bridge.make_vec_env("Pendulum-v1", 4)
    with np.load(DATA / "state.npz") as state:
        env.set_state(state)
        for name, array in env.get_state().items():
            np.testing.assert_array_equal(
                array, state[name.replace(".env_states", ".lanes").replace(".env_keys", ".lane_key")], name
            )
