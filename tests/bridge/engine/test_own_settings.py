"""Settings with which users check their own JAX code do not reach compiled functions of bridge."""

import jax
import numpy as np
import pytest

import bridge
from bridge.algorithms.common import predicting

SETTINGS = {
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no broadcasting": lambda: jax.numpy_rank_promotion("raise"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "no jit": lambda: jax.disable_jit(),
    "no NaN": lambda: jax.debug_nans(True),
    "keys used once": lambda: jax.debug_key_reuse(True),
}
ALGORITHMS = {
    "PPO": ("CartPole-v1", {"n_steps": 8, "batch_size": 16, "n_epochs": 1}),
    "DQN": ("CartPole-v1", {"learning_starts": 4, "train_freq": 2, "buffer_size": 100}),
    "SAC": ("Pendulum-v1", {"learning_starts": 4, "buffer_size": 100}),
}


def run(name, backend):
    """Train, predict and evaluate; return the weights, actions and returns."""
    env_id, arguments = ALGORITHMS[name]
    env = bridge.make_vec_env(env_id, 2, seed=0, backend=backend)
    network = {"net_arch": [4]}
    model = getattr(bridge, name)("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=network, **arguments)
    model.learn(32)
    observation = env.reset()
    actions = [model.predict(observation, deterministic=True)[0] for _ in range(8)]
    returns = bridge.evaluate(model, env, 2, max_steps=20).returns if backend == "jax" else ()
    weights = [each.detach().numpy() for each in model.policy.parameters()]
    assert not model.plan.reasons
    return [*weights, *actions, np.asarray(returns)]


@pytest.fixture(autouse=True)
def compile_predict_at_once(monkeypatch):
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 2)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*in one compiled function")
@pytest.mark.parametrize("backend", ["jax", "serial"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_the_same_under_every_setting(name, backend):
    expected = run(name, backend)
    for setting, context in SETTINGS.items():
        with context():
            got = run(name, backend)
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=setting)
