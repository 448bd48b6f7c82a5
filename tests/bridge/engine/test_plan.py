"""What auto leaves to SB3 because compiling would cost its user something."""

import pytest

import bridge
from bridge import JaxVecEnv
from tests.environments import Counter

IMAGES = Counter(observation_kind="image")


def plan(algorithm, n_steps, engine="auto"):
    return algorithm("CnnPolicy", JaxVecEnv(IMAGES, 2), n_steps=n_steps, engine=engine, seed=0, device="cpu").plan


@pytest.mark.parametrize(
    ("algorithm", "n_steps", "collects"),
    [(bridge.PPO, 64, True), (bridge.PPO, 63, False), (bridge.A2C, 5, False)],
    ids=["long rollouts", "shorter ones", "A2C"],
)
def test_on_a_cpu_learning_from_images_is_sb3s_and_acting_in_short_rollouts(algorithm, n_steps, collects):
    made = plan(algorithm, n_steps)
    assert (made.collects, made.updates) == (collects, False)
    assert "PyTorch learns from images faster" in str(made)


def test_xla_compiles_it_all_the_same():
    made = plan(bridge.A2C, 5, engine="xla")
    assert made.collects
    assert made.updates
