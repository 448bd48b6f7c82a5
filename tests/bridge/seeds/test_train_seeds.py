"""`bridge.train_seeds`: which models it takes, and what it makes of them. tests/bridge/app trains with it."""

from types import MethodType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import bridge
from bridge import NotCompilable, make_vec_env, train_seeds
from bridge.seeds.seed_sweep import _row_of
from bridge.seeds.train_seeds import _require_constructors_schedules, _with_seeds
from jaxenvs import Environment, TimeLimit, TimeStep, environment
from tests.games import TicTacToe

OFF_POLICY = {"buffer_size": 10, "learning_starts": 4, "batch_size": 4}
ALGORITHMS = {
    "PPO": ("CartPole-v1", {"n_steps": 8, "batch_size": 8, "clip_range": lambda progress: 0.2 * progress}),
    "A2C": ("Pendulum-v1", {"use_sde": True}),
    "PQN": ("CartPole-v1", {"n_steps": 8, "batch_size": 8}),
    "DQN": ("CartPole-v1", {**OFF_POLICY, "train_freq": 4}),
    "SAC": ("Pendulum-v1", OFF_POLICY),
    "TD3": ("Pendulum-v1", {**OFF_POLICY, "train_freq": 2}),
    "DDPG": ("Pendulum-v1", OFF_POLICY),
    "QRDQN": ("CartPole-v1", {**OFF_POLICY, "train_freq": 4}),
    "TQC": ("Pendulum-v1", OFF_POLICY),
    "CrossQ": ("Pendulum-v1", OFF_POLICY),
}


def make(name, seed=None):
    env_id, settings = ALGORITHMS[name]
    return getattr(bridge, name)("MlpPolicy", env_id, seed=seed, policy_kwargs={"net_arch": [4]}, **settings)


@environment
class RarelyNan(Environment[jax.Array]):
    """Rewards are NaN in one of ten episodes."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return self._show(jax.random.uniform(key, ()), 0.0)

    def step(self, state, action):
        return self._show(state, jnp.where(state > 0.9, jnp.nan, 1.0))

    def _show(self, state, reward):
        return state, TimeStep.create(state[None], reward)


class OwnPPO(bridge.PPO):
    """A class that may do anything."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_seeds_model_begins_as_the_constructor_makes_it(name):
    made, (copied,) = make(name, seed=5), _with_seeds(make(name), [5])
    theirs, ours = made.policy.state_dict(), copied.policy.state_dict()
    assert all(torch.equal(theirs[part], ours[part]) for part in theirs)
    assert (made.key == copied.key).all()
    assert (made.get_env().reset() == copied.get_env().reset()).all()


def test_a_row_of_metrics_is_the_mean_of_its_episodes_and_the_mean_return_after_them():
    metrics = {
        "timesteps": [4, 8, 12],
        "episodes": [1, 0, 3],
        "episode_return": [2.0, 2.0, 5.0],
        "iteration_episode_return": [2.0, np.nan, 6.0],
        "loss": [1.0, 2.0, 3.0],
    }
    row = _row_of({name: jnp.array(values) for name, values in metrics.items()})
    expected = {"timesteps": 12, "episodes": 4, "episode_return": 5.0, "iteration_episode_return": 5.0}
    assert {name: value.item() for name, value in row.items()} == expected
    row = _row_of({name: jnp.array(values[1:2]) for name, values in metrics.items()})
    assert row["episode_return"] == 2
    assert np.isnan(row["iteration_episode_return"])


@pytest.mark.thorough
def test_running_statistics_are_each_seeds_own():
    first, second = train_seeds(make("CrossQ"), 12, seeds=range(2))
    means = [model.policy.actor.state_dict()["latent_pi.0.ra_mean"] for model in (first, second)]
    assert all(mean.abs().max() > 0 for mean in means)  # they begin at 0
    assert not torch.equal(*means)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("PPO", "lr_schedule"), ("SAC", "lr_schedule"), *((name, "exploration_schedule") for name in ("DQN", "PQN"))],
)
def test_a_schedule_of_ones_own_is_refused(name, schedule):
    model = make(name)
    setattr(model, schedule, lambda progress: 0.0)
    with pytest.raises(NotCompilable, match=f"{schedule} of the model was replaced"):
        train_seeds(model, 10, [0])


@pytest.mark.parametrize("name", ["PPO", "PQN", "DQN", "QRDQN"])
def test_schedules_of_the_constructor_are_no_ones_own(name):
    env_id, settings = ALGORITHMS[name]
    for learning_rate in (1e-3, lambda progress: 1e-3 * progress):
        model = getattr(bridge, name)("MlpPolicy", env_id, learning_rate=learning_rate, **settings)
        _require_constructors_schedules(model)


def with_own_train():
    model = make("PPO")
    model.train = MethodType(lambda self: None, model)
    return model


def with_statistics():
    env = VecNormalize(make_vec_env("CartPole-v1"))
    env.reset()
    return env


def ppo(env="CartPole-v1", cls=bridge.PPO, **settings):
    return cls("MlpPolicy", env, **settings)


@pytest.mark.parametrize(
    ("make_model", "said"),
    [
        (lambda: ppo(cls=OwnPPO), "OwnPPO may train differently"),
        (with_own_train, "The model overrides train"),
        (lambda: ppo(engine="torch"), 'The model has engine="torch"'),
        (lambda: ppo(make_vec_env("CartPole-v1", backend="serial")), "wrapped in VecNormalize; got SerialVecEnv"),
        (lambda: ppo(VecFrameStack(make_vec_env("CartPole-v1"), 2)), "wrapped in VecNormalize; got VecFrameStack"),
        (lambda: ppo(VecNormalize(make_vec_env("CartPole-v1"), norm_reward=False)), "with norm_reward=False"),
        (lambda: ppo(VecNormalize(make_vec_env("CartPole-v1"), norm_obs=False)), "with norm_obs=False"),
        (lambda: ppo(VecNormalize(make_vec_env("CartPole-v1"), gamma=0.5)), "VecNormalize with gamma=0.5"),
        (lambda: ppo(with_statistics()), "VecNormalize with statistics of earlier steps"),
        (
            lambda: bridge.MaskablePPO("MlpPolicy", make_vec_env(TicTacToe, opponent="self")),
            "SelfPlayCallback runs between rollouts",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(make_model, said):
    with pytest.raises(NotCompilable, match=said):
        train_seeds(make_model(), 10, [0])


@pytest.mark.parametrize(
    ("seeds", "total_timesteps", "said"),
    [([], 10, "seeds must hold at least one"), ([-1], 10, "seeds must be"), ([0], 0, "total_timesteps must be")],
)
def test_arguments_that_are_none_are_refused(seeds, total_timesteps, said):
    with pytest.raises(ValueError, match=said):
        train_seeds(make("PPO"), total_timesteps, seeds)


def test_a_model_that_has_begun_to_learn_is_refused():
    model = make("PPO")
    model.num_timesteps = np.int64(8)
    with pytest.raises(ValueError, match="must not have begun to learn, got one with 8 steps"):
        train_seeds(model, 10, [0])


def test_seeds_must_be_several():
    with pytest.raises(TypeError, match="seeds must be an iterable of ints, got int"):
        train_seeds(make("PPO"), 10, 5)


def test_seeds_keep_what_the_environments_are():
    env = make_vec_env("CartPole-v1", device="cpu")
    (copied,) = _with_seeds(ppo(env), [5])
    assert (copied.get_env().spec, copied.get_env()._asked_device) == (env.spec, "cpu")


def test_seeds_whose_parameters_become_nan_are_named():
    env = bridge.JaxVecEnv(TimeLimit(RarelyNan(), 16), 1, seed=0)
    model = ppo(env, n_steps=16, batch_size=16, n_epochs=1, policy_kwargs={"net_arch": [4]})
    with pytest.raises(ValueError, match=r"Parameters became NaN with the seeds \[0, 4\]. Leave them out"):
        train_seeds(model, 64, range(6))
