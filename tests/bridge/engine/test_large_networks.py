"""Large networks, whose parameters compiled functions take apart, learn what they learn from vectors."""

import jax
import numpy as np
import pytest

import bridge
from bridge.engine import learner
from bridge.seeds.model_training import parameters_of

ROLLOUT = {"n_steps": 16}
MINIBATCHES = ROLLOUT | {"batch_size": 8, "n_epochs": 2}
KL = {"target_kl": 1e-4}  # so that updates end early
REPLAY = {"learning_starts": 8, "batch_size": 8, "buffer_size": 100, "train_freq": 4, "gradient_steps": 2}
CASES = {
    "PPO": ("CartPole-v1", "MlpPolicy", MINIBATCHES | KL),
    "A2C": ("CartPole-v1", "MlpPolicy", ROLLOUT),
    "PQN": ("CartPole-v1", "MlpPolicy", MINIBATCHES),
    "RecurrentPPO": ("CartPole-v1", "MlpLstmPolicy", MINIBATCHES),
    "DQN": ("CartPole-v1", "MlpPolicy", REPLAY | {"target_update_interval": 8}),
    "TQC": ("Pendulum-v1", "MlpPolicy", REPLAY),
    "CrossQ": ("Pendulum-v1", "MlpPolicy", REPLAY),
    "TD3": ("Pendulum-v1", "SimbaPolicy", REPLAY),
}


@pytest.mark.parametrize("backend", ["jax", "serial"])
@pytest.mark.thorough(but=["PPO-jax", "DQN-jax"])
@pytest.mark.parametrize("name", CASES)
def test_they_learn_the_same(name, backend, monkeypatch):
    env_id, policy, settings = CASES[name]
    found = []
    for fewest in (10**9, 0):
        for limit in ("SPLIT_FROM", "SPLIT_ON_POLICY_FROM"):
            monkeypatch.setattr(learner, limit, fewest)
        small = {"net_arch": [8, 8]} | ({"lstm_hidden_size": 8} if policy == "MlpLstmPolicy" else {})
        env = bridge.make_vec_env(env_id, 1, seed=0, backend=backend)
        model = getattr(bridge, name)(policy, env, seed=0, device="cpu", policy_kwargs=small, **settings)
        params, *_ = model.plan.learner.vectors()
        assert isinstance(next(iter(params.values())), tuple) == (fewest == 0)
        model.learn(32)
        model.learn(16, reset_num_timesteps=False)
        found.append({key: each.numpy() for key, each in model.policy.state_dict().items()})
    vectors, parts = found
    for key, expected in vectors.items():
        np.testing.assert_allclose(parts[key], expected, rtol=1e-3, atol=1e-4, err_msg=key)


def test_a_sweep_takes_vectors_so_that_its_checkpoints_load_on_other_devices(monkeypatch):
    monkeypatch.setattr(learner, "SPLIT_ON_POLICY_FROM", 0)
    model = bridge.PPO("MlpPolicy", bridge.make_vec_env("CartPole-v1", 1), device="cpu", **MINIBATCHES)
    assert isinstance(parameters_of(model), jax.Array)
