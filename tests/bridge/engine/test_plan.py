"""Parts that engine="auto" does not compile, because compiling would change what the user gets."""

import pytest

import bridge
from bridge import JaxVecEnv
from tests.environments import Counter

IMAGES = Counter(observation_kind="image")


def plan(algorithm, n_steps, engine="auto"):
    return algorithm("CnnPolicy", JaxVecEnv(IMAGES, 2), n_steps=n_steps, engine=engine, seed=0, device="cpu").plan


@pytest.mark.parametrize("algorithm", [bridge.PPO, bridge.A2C])
def test_on_a_cpu_convolutions_are_pytorchs(algorithm):
    made = plan(algorithm, 64)
    assert (made.collects, made.updates) == (False, False)
    assert "PyTorch runs convolutions faster" in str(made)


def test_xla_compiles_it_all_the_same():
    made = plan(bridge.A2C, 5, engine="xla")
    assert made.collects
    assert made.updates
