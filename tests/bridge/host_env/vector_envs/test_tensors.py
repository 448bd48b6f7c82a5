"""Vector environments of tensors in a GymVecEnv: a VecEnv of NumPy arrays, equal to one of Gymnasium's CartPole."""

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium.vector import AutoresetMode

from benchmarks.peers.torch_cartpole import TorchCartPole
from bridge import GymVecEnv
from tests.bridge.vec_env.test_jax_vec_env import assert_same_step, sample_actions

LIMIT = 20


@pytest.mark.parametrize("mode", AutoresetMode)
def test_steps_and_resets_are_gymnasiums(mode):
    ours = GymVecEnv(TorchCartPole(8, mode, LIMIT))
    reference = GymVecEnv(gymnasium.make_vec("CartPole-v1", 8, "vector_entry_point", max_episode_steps=LIMIT))
    for venv in (ours, reference):
        venv.seed(5)
    np.testing.assert_array_equal(ours.reset(), reference.reset())
    ends = set()
    for actions in sample_actions(ours, 60):
        step = ours.step(actions)
        assert_same_step(step, reference.step(actions))
        ends |= {info["TimeLimit.truncated"] for info, done in zip(step[3], step[2]) if done}
    assert ends == {False, True}
    assert ours.tensor_device.type == "cpu"
    assert reference.tensor_device is None


@pytest.mark.parametrize("mode", AutoresetMode)
def test_arrays_and_infos_stay_what_they_were(mode):
    """The environment has its observations always in the same memory, and writes into actions."""
    venv = GymVecEnv(TorchCartPole(2, mode, 3, with_infos=True))
    first = venv.reset()
    actions = np.ones(2, int)
    steps = [venv.step(actions) for _ in range(4)]
    assert actions.tolist() == [1, 1]
    assert {type(part) for step in steps for part in step[:3]} == {np.ndarray}
    observations = [first, *(step[0] for step in steps)]
    x = [[info["x"] for info in step[3]] for step in steps]
    for i in (0, 1, 3):
        np.testing.assert_allclose(np.float32(x[i]), observations[i + 1][:, 0])
    at_the_end = steps[2][3]
    assert [np.float32(info["x"]) for info in at_the_end] == [each["terminal_observation"][0] for each in at_the_end]
    assert not np.isin(observations[3][:, 0], np.float32(x[2])).any()
    assert steps[1][3][0] == {"x": x[1][0], "scene": {"count": 2}, "version": 1, "TimeLimit.truncated": False}
    assert type(x[1][0]) is float


class Forgetful(TorchCartPole):
    """A simulator that has overwritten last observations by the time that it returns."""

    def step(self, actions):
        *step, info = super().step(actions)
        return *step, {name: value for name, value in info.items() if name != "final_obs"}


def test_without_last_observations_a_truncated_episode_counts_as_terminated():
    venv = GymVecEnv(Forgetful(2, max_episode_steps=2))
    venv.reset()
    with pytest.warns(UserWarning, match="hold no final_obs"):
        steps = [venv.step(np.zeros(2, int)) for _ in range(2)]
    assert steps[1][2].all()
    for info in steps[1][3]:
        assert (info["TimeLimit.truncated"], info["episode"]["l"]) == (False, 2)
        assert "terminal_observation" not in info


def test_the_former_name_of_last_observations_is_known():
    class Former(TorchCartPole):
        def step(self, actions):
            *step, info = super().step(actions)
            return *step, {"final_observation": info.pop("final_obs"), "_final_observation": torch.ones(2) == 1, **info}

    venv = GymVecEnv(Former(2, max_episode_steps=1, with_infos=True))
    venv.reset()
    infos = venv.step(np.zeros(2, int))[3]
    assert [np.float32(info["x"]) for info in infos] == [info["terminal_observation"][0] for info in infos]
    assert infos[0].keys() == {"x", "terminal_observation", "TimeLimit.truncated", "episode"}


def test_an_environment_need_not_be_a_subclass():
    class Simulator(gymnasium.Env):
        def __init__(self):
            self.inner = TorchCartPole(3)
            self.num_envs, self.metadata, self.device = 3, self.inner.metadata, "cpu"
            self.single_observation_space = self.inner.single_observation_space
            self.single_action_space = self.inner.single_action_space
            self.reset, self.step = self.inner.reset, self.inner.step

    venv = GymVecEnv(Simulator())
    assert venv.reset().shape == (3, 4)
    assert venv.step(np.ones(3, int))[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_without_reset_mask_it_is_refused(mode):
    class All(TorchCartPole):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    with pytest.raises(ValueError, match=rf"auto-reset {mode.name}, .* its reset does not read this option"):
        GymVecEnv(All(2, mode))


def test_a_stock_model_learns_on_it():
    venv = GymVecEnv(TorchCartPole(4, max_episode_steps=LIMIT))
    model = stable_baselines3.PPO("MlpPolicy", venv, n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(128)
    assert model.rollout_buffer.observations.any()
    assert {episode["l"] for episode in model.ep_info_buffer} <= set(range(LIMIT + 1))
