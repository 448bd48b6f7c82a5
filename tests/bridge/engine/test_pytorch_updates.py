"""SB3's own convolutions learn with their channels last, which nobody else meets, and memory is kept meanwhile."""

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3 import A2C
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

import bridge
from bridge import JaxVecEnv
from bridge.engine.pytorch_updates import fast_update
from tests.environments import Counter

FAULTS = """
import ctypes
import resource
import torch
from bridge.engine.memory import M_MMAP_THRESHOLD, keep_freed_memory

def faults(num):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(num):
        arrays = [torch.ones(4_500_000) for _ in range(3)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)  # with which glibc begins
print(faults(20))
keep_freed_memory()
faults(5)
print(faults(20))
"""
IMAGES = Counter(observation_kind="image")


class Flattening(BaseFeaturesExtractor):
    """A user's: PyTorch refuses its view of activations whose channels are last."""

    def __init__(self, observation_space):
        super().__init__(observation_space, 8)
        self.convolution = torch.nn.Conv2d(2, 4, 3)
        self.linear = torch.nn.Linear(4 * 34 * 34, 8)

    def forward(self, observations):
        features = self.convolution(observations)
        return self.linear(features.view(len(features), -1))


def model(algorithm=bridge.A2C, **policy_kwargs):
    return algorithm("CnnPolicy", JaxVecEnv(IMAGES, 2), seed=0, device="cpu", policy_kwargs=policy_kwargs)


def test_meanwhile_only():
    policy = model().policy
    weights = policy.features_extractor.cnn[2].weight
    with fast_update(policy):
        assert weights.is_contiguous(memory_format=torch.channels_last)
        assert not weights.is_contiguous()
    assert weights.is_contiguous()


def test_what_is_learnt_is_the_same_and_lies_as_before():
    learnt = []
    for algorithm in (bridge.A2C, A2C):
        policy = model(algorithm, optimizer_class=torch.optim.SGD).learn(20).policy
        learnt.append(torch.nn.utils.parameters_to_vector(policy.parameters()))  # refuses weights with channels last
    torch.testing.assert_close(*learnt, atol=1e-6, rtol=1e-4)


def test_an_extractor_of_the_users_stays_as_it_is():
    extractor = Flattening(Box(0, 255, (2, 36, 36), np.uint8))
    with fast_update(extractor):
        extractor(torch.zeros(3, 2, 36, 36))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's")
def test_memory_that_is_freed_and_taken_again_is_kept():
    # In a process of its own, where nobody has called it yet.
    printed = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    given_back, kept = map(int, printed.split())
    assert kept < given_back / 10  # not in numbers: where pages are huge, there are fewer
