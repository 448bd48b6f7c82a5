"""Tests of sb3-contrib (2.9.2) for QRDQN, TQC and CrossQ, with its environments and arguments, run on bridge's.

What other modules show already is not here: test_contrib_off_policy.py has settings, quantiles and running statistics,
test_off_policy_files.py zips.
"""

import copy

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.bridge.algorithms.sb3_contrib.contrib_models import env_of, in_dict, make

NAMES = ["QRDQN", "TQC", "CrossQ"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_weights_can_be_set_in_part_and_what_does_not_fit_is_refused(name, tmp_path):
    model = make(name, DummyVecEnv([lambda: env_of(name)])).learn(60)
    before = copy.deepcopy(model.get_parameters())
    with pytest.raises(ValueError, match="nobody"):
        model.set_parameters(before | {"nobody": {}}, exact_match=False)
    with pytest.raises(ValueError, match="parameters"):
        model.set_parameters(dict(list(before.items())[:-1]), exact_match=True)
    *all_but_one, last = before["policy"]
    part = {each: torch.rand_like(before["policy"][each].float()) for each in all_but_one}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.set_parameters(before | {"policy": part}, exact_match=True)
    model.set_parameters(before | {"policy": part}, exact_match=False)
    now = model.policy.state_dict()
    assert torch.equal(now[last], before["policy"][last])
    for each in all_but_one:
        torch.testing.assert_close(now[each], part[each].to(now[each].dtype))
    model.save(tmp_path / "model")
    observation = np.stack([model.observation_space.sample() for _ in range(10)])
    expected, _ = getattr(sb3_contrib, name).load(tmp_path / "model").predict(observation, deterministic=True)
    for each in (model, type(model).load(tmp_path / "model", env=env_of(name))):
        np.testing.assert_allclose(each.predict(observation, deterministic=True)[0], expected, rtol=1e-4, atol=1e-5)
        assert each.learn(40)._n_updates == 15


@pytest.mark.thorough(but=["QRDQN"])
@pytest.mark.parametrize("name", NAMES)
def test_policies_and_what_acts_can_be_saved_by_themselves(name, tmp_path):
    model = make(name, env_of(name)).learn(60)
    acts = model.quantile_net if name == "QRDQN" else model.actor
    observation = np.stack([model.observation_space.sample() for _ in range(10)])
    expected, _ = model.predict(observation, deterministic=True)
    for part in (model.policy, acts):
        part.save(tmp_path / "part")
        loaded = type(part).load(tmp_path / "part", device="cpu")
        np.testing.assert_allclose(loaded.predict(observation, deterministic=True)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough(but=["QRDQN"])
@pytest.mark.parametrize("name", NAMES)
def test_other_environments_can_be_set_between_trainings(name):
    model = make(name, DummyVecEnv([lambda: env_of(name)])).learn(60)
    for env in (DummyVecEnv([lambda: env_of(name)]), env_of(name)):
        before = model._n_updates
        model.set_env(env)
        model.learn(60)
        assert model._n_updates == before + 10


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["QRDQN", "TQC"])
def test_a_dict_of_one_vector_trains_as_the_vector(name):
    env_id = "CartPole-v1" if name == "QRDQN" else "Pendulum-v1"
    plain, packed = gymnasium.make(env_id), in_dict(gymnasium.make(env_id))
    one, other = make(name, plain).learn(100), make(name, packed, "MultiInput").learn(100)
    assert one._n_updates == other._n_updates == 20
    for ours, theirs in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
