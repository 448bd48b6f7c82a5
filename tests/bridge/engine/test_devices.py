"""Models whose environments are divided over devices: the results are the same as on one device."""

import functools

import pytest

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from tests.bridge.algorithms.cases import assert_equal, state_of
from tests.on_cpu_devices import results_of


@functools.cache
def on_devices(*names):
    """Return the results of models on four devices, from a process that has four."""
    return results_of("tests.bridge.engine.on_devices", *names, num_devices=4)


FIRST = ("whole batches: A2C", "refusals")
PLAN = "collecting: compiled\nupdating: compiled\ndevices: 4, each with 2 of the environments and an equal part of each"


@pytest.mark.thorough
def test_an_update_over_devices_is_that_of_the_whole_rollout():
    told = on_devices(*FIRST)["whole batches: A2C"]
    assert told["moved"] > 1e-3
    assert told["difference"] < 1e-6
    assert told["logs"] < 1e-4


@pytest.mark.thorough
def test_what_cannot_be_divided_is_said():
    told = on_devices(*FIRST)["refusals"]
    assert told["num_envs"] == "num_envs must be a multiple of the 4 devices of the mesh, got 6."
    refused = "The devices cannot share the work equally: "
    refused += "batch_size must be a multiple of the 4 devices of the mesh, got 6."
    remedy = 'Pass engine="auto" to allow a fallback.'
    assert told["minibatches"] == f'engine="xla" cannot compile this model: {refused} {remedy}'
    assert told["falls back"].endswith(f"updating: compiled\nnot compiled: {refused}")
    assert "HerReplayBuffer does not support environments on several devices." in told["hindsight"]
    assert told["tensors"] == "step_torch needs environments on one device, but these are on 4 devices."


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(
        ValueError, match="num_devices must be at most 1, the number of devices that JAX has here, got 2"
    ):
        make_vec_env("CartPole-v1", 4, vec_env_kwargs={"devices": 2})
    with pytest.raises(ValueError, match="devices must be a positive int, got 0"):
        JaxVecEnv(jaxenvs.make("CartPole-v1"), 4, devices=0)


SETTINGS = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu", "engine": "xla"}
ALGORITHMS = {"A2C": {"n_steps": 8}, "DQN": {"learning_starts": 16, "buffer_size": 400, "batch_size": 8}}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALGORITHMS)
def test_over_one_device_the_bits_are_those_without(name):
    def learnt(devices):
        env = JaxVecEnv(jaxenvs.make("CartPole-v1"), 4, seed=0, devices=devices)
        return getattr(bridge, name)("MlpPolicy", env, **SETTINGS, **ALGORITHMS[name]).learn(64)

    over, alone = learnt(1), learnt(None)
    assert "devices: 1, each with 4 of the environments" in str(over.plan)
    assert_equal(state_of(over, with_store=name == "DQN"), state_of(alone, with_store=name == "DQN"))


# QRDQN, TD3 and TQC divide what these do.
ON_POLICY = ("PPO", "PPO, normalised", "RecurrentPPO", "MaskablePPO")
OFF_POLICY = ("DQN", "SAC", "CrossQ")
OTHERS = ("environments", "whole batches: PPO, normalised", "shown: A2C", "shown: DQN", "stored: DQN", "stored: SAC")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_each_device_does_what_an_element_of_vmap_does(name):
    told = on_devices(*(ON_POLICY if name in ON_POLICY else OFF_POLICY))[name]
    assert told["plan"].startswith(PLAN)
    assert told["moved"] > 1e-4
    assert told["vmap"] < 2e-5  # of weights, moments, observations and returns
    assert told["alike"]
    assert told["one device"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_environments_do_what_they_would_do_without_devices():
    told = on_devices(*OTHERS)["environments"]
    assert told["infos"]
    assert told["one device"] == 0
    assert told["difference"] < 1e-5  # XLA rounds otherwise for another number of environments


@pytest.mark.thorough
@pytest.mark.slow
def test_minibatches_that_are_the_whole_rollout_teach_what_they_teach_without_devices():
    told = on_devices(*OTHERS)["whole batches: PPO, normalised"]
    assert told["moved"] > 1e-4
    assert told["difference"] < 1e-6


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["A2C", "DQN"])
def test_callbacks_logs_and_zips_are_as_ever(name):
    told = on_devices(*OTHERS)[f"shown: {name}"]
    assert told["events"]
    assert told["locals"]
    assert told["logs"]
    assert told["zip"]
    assert told["goes on"] == 2 * 192


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_what_devices_stored_comes_back_in_one_buffer(name):
    told = on_devices(*OTHERS)[f"stored: {name}"]
    size, position, num_ended = told["rows"]
    assert (size, position) == (24, 24)
    assert told["gap"] < 1e-6
    assert told["later"] == 48
    assert name == "SAC" or num_ended > 0
