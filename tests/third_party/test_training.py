"""Other libraries' environments under stock Stable-Baselines3, bridge and jaxenvs.learn, unchanged."""

import jax
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces

import bridge
import jaxenvs
from jaxenvs import learn

# One of each library, cheap to compile; of observations of several kinds.
IDS = {
    "brax": "inverted_pendulum",
    "craftax": "Craftax-Classic-Symbolic-v1",
    "gymnax": "Catch-bsuite",
    "jumanji": "Snake-v1",
    "navix": "Navix-Empty-5x5-v0",
    "pgx": "minatar-breakout",
    "playground": "CartpoleBalance",
    "xminigrid": "MiniGrid-Empty-5x5",
}
CHEAP = ("jumanji",)


def params():
    for library, name in IDS.items():
        module = "mujoco_playground" if library == "playground" else library
        marks = [pytest.mark.thorough if library in CHEAP else pytest.mark.third_party]
        yield pytest.param(module, f"{library}/{name}", id=library, marks=marks)


@pytest.mark.parametrize(("module", "id"), list(params()))
def test_it_trains_with_each_of_the_three(module, id):
    pytest.importorskip(module)
    for package in (stable_baselines3, bridge):
        env = bridge.make_vec_env(id, 2, seed=0)
        policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
        model = package.PPO(policy, env, n_steps=8, batch_size=8, n_epochs=1, seed=0).learn(32)
        assert all(weights.isfinite().all() for weights in model.policy.parameters())
    env = jaxenvs.make(id)
    settings = learn.PPO(n_steps=8, batch_size=8, n_epochs=1)
    training = learn.Training(jaxenvs.VectorEnv(env, 2), learn.ActorCritic.of(env), settings, total_timesteps=32)
    result = jax.jit(learn.train)(jax.random.key(0), training)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
