"""Updates that stay PyTorch's: weights stay where they are, and memory that is freed is kept."""

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

import bridge
from bridge import JaxVecEnv
from bridge.engine import runtime
from tests.environments import Counter

FAULTS = """
import ctypes
import resource
import torch
from bridge.engine.runtime import M_MMAP_THRESHOLD, keep_freed_memory

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("DQN", {"buffer_size": 50, "learning_starts": 4, "batch_size": 4}), ("A2C", {})],
)
def test_weights_stay_in_shared_memory_and_in_a_state_dict_that_was_kept(algorithm, settings):
    env = JaxVecEnv(Counter(observation_kind="image"), 2)
    model = getattr(bridge, algorithm)("CnnPolicy", env, seed=0, device="cpu", **settings)
    model.policy.share_memory()
    kept = model.policy.state_dict()
    model.learn(20)
    assert all(parameter.is_shared() for parameter in model.policy.parameters())
    for name, tensor in model.policy.state_dict().items():
        assert tensor.data_ptr() == kept[name].data_ptr(), name


def test_a_system_whose_libraries_are_not_glibc_keeps_its_own_memory(monkeypatch):
    def refuse(name):  # as Windows does, of the library of a process
        raise TypeError("LoadLibrary() argument 1 must be str, not None")

    monkeypatch.setattr(runtime.ctypes, "CDLL", refuse)
    monkeypatch.setattr(runtime, "_most_from_heap", 0)
    runtime.release_freed_memory()
    runtime.keep_freed_memory()


def test_the_most_memory_that_was_asked_for_is_kept(monkeypatch):
    thresholds = []

    def mallopt(parameter, value):
        if parameter == runtime.M_MMAP_THRESHOLD:
            thresholds.append(value)
        return 1

    monkeypatch.setattr(runtime, "_most_from_heap", 0)
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    for most_from_heap in (2, 5, 2, 5, 7):
        runtime.keep_freed_memory(most_from_heap)
    assert thresholds == [2, 5, 7]


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's")
def test_memory_that_is_freed_and_taken_again_is_kept():
    # In a separate process, in which it was not called yet.
    printed = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    given_back, kept = map(int, printed.split())
    assert kept < given_back / 10  # not in numbers: where pages are huge, there are fewer
