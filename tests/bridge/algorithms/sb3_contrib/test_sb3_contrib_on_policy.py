"""Tests of sb3-contrib (2.9.2) for MaskablePPO and RecurrentPPO, run on bridge's: with its environments, callbacks
and arguments. What test_maskable_ppo.py and test_recurrent_ppo.py show already is not here.
"""

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common import envs
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_with_masks
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.callbacks import EventCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from tests.bridge.algorithms.sb3_contrib.contrib_models import in_dict, make
from tests.masked_environments import Locks

# --- Masks ----------------------------------------------------------------------------------------------------------

DISCRETE, ONE_LEGAL = envs.InvalidActionEnvDiscrete, {"dim": 20, "n_invalid_actions": 19}
# With one legal action in each step, so that nothing has to be learnt.
FORCED = {
    "discrete": lambda: DISCRETE(**ONE_LEGAL),
    "multi_discrete": lambda: envs.InvalidActionEnvMultiDiscrete(dims=[2, 3], n_invalid_actions=3),
    "multi_binary": lambda: envs.InvalidActionEnvMultiBinary(dims=3, n_invalid_actions=3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FORCED)
def test_who_may_do_one_thing_alone_does_it_untrained_and_without_masks_does_not(kind):
    env = FORCED[kind]()
    model = make("MaskablePPO", env)
    assert evaluate_with_masks(model, env, 3, warn=False)[0] == 100
    assert evaluate_with_masks(model, env, 3, warn=False, use_masking=False)[0] < 90
    assert model.learn(64)._n_updates == 4


def test_whether_masks_are_supported_is_seen_through_every_vec_env():
    for env, is_supported in (
        (bridge.JaxVecEnv(Locks(), 2), True),
        (bridge.JaxVecEnv(Locks(tells=""), 2), False),
        (bridge.SerialVecEnv([FORCED["discrete"]] * 2), True),
        (bridge.SerialVecEnv([lambda: IdentityEnv(2)] * 2), False),
        (VecNormalize(bridge.JaxVecEnv(Locks(), 2)), True),
    ):
        assert is_masking_supported(env) == is_supported


@pytest.mark.thorough
def test_callbacks_of_evaluations_with_masks_act_and_stop_the_training(tmp_path):
    model = make("MaskablePPO", DISCRETE(20, n_invalid_actions=10))
    new_best, stop = EventCallback(), StopTrainingOnNoModelImprovement(1, 2)
    evaluation = MaskableEvalCallback(
        Monitor(DISCRETE(20, n_invalid_actions=10)),
        eval_freq=32,
        n_eval_episodes=1,
        callback_after_eval=stop,
        callback_on_new_best=new_best,
        log_path=tmp_path,
        best_model_save_path=tmp_path,
    )
    model.learn(3200, callback=evaluation)
    assert stop.n_calls >= new_best.n_calls > 0
    assert model.num_timesteps == 32 * stop.n_calls < 3200
    assert len(np.load(tmp_path / "evaluations.npz")["timesteps"]) == stop.n_calls
    bridge.MaskablePPO.load(tmp_path / "best_model")


# --- Memories -------------------------------------------------------------------------------------------------------


DROPOUT = {"lstm_hidden_size": 4, "lstm_kwargs": {"dropout": 0.5}, "n_lstm_layers": 2}
MEMORIES = {
    "extractors apart": {"share_features_extractor": False},
    "extractors apart, none": {"share_features_extractor": False, "enable_critic_lstm": False},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "own, dropped out": DROPOUT,
    "none, dropped out": DROPOUT | {"enable_critic_lstm": False},
}


@pytest.mark.thorough
@pytest.mark.parametrize("see", ["numbers", "pictures", "a dict"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_all_memories_go_with_all_observations(memory, see):
    env, policy, kwargs = gymnasium.make("CartPole-v1"), "Mlp", MEMORIES[memory]
    if see == "a dict":
        env, policy = in_dict(env), "MultiInput"
    if see == "pictures":
        env, policy = FakeImageEnv(screen_height=40, screen_width=40, n_channels=3), "Cnn"
        kwargs = kwargs | {"features_extractor_kwargs": {"features_dim": 32}}
    model = make("RecurrentPPO", env, policy, policy_kwargs=kwargs).learn(64)
    assert model._n_updates == 4
    assert model.plan.updates == ("dropped out" not in memory and see != "pictures")
    evaluate_policy(model, model.get_env(), 1, warn=False)


class Pairs(gymnasium.Env):
    """Takes actions that are matrices, whose sum is the reward."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (2, 2), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(3, np.float32), {}

    def step(self, action):
        assert action.shape == (2, 2)
        return self.np_random.random(3, np.float32), action.sum(), self.np_random.random() > 0.8, False, {}


BEFORE_2_8 = tuple(map(int, sb3_contrib.__version__.split(".")[:2])) < (2, 8)


@pytest.mark.thorough
@pytest.mark.skipif(BEFORE_2_8, reason="predict of sb3-contrib itself clipped them before they were matrices")
def test_memories_choose_actions_that_are_matrices():
    model = make("RecurrentPPO", Pairs()).learn(64)
    assert model.plan.updates
    evaluate_policy(model, model.get_env(), 2, warn=False)
    with torch.no_grad():
        model.policy.action_net.bias.copy_(torch.tensor([9.0, -9.0, 0.0, 9.0]))
    action, _ = model.predict(np.zeros((1, 3), np.float32), deterministic=True)
    assert action.shape == (1, 2, 2)
    np.testing.assert_array_equal(action[0, [0, 0, 1], [0, 1, 1]], [1, -1, 1])


@pytest.mark.thorough
def test_memories_explore_by_noise_that_depends_on_the_state():
    model = make("RecurrentPPO", "Pendulum-v1", use_sde=True, sde_sample_freq=4, clip_range_vf=0.1)
    assert model.learn(200)._n_updates == 14
    assert model.plan.updates
