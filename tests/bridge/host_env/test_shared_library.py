"""The example over a shared library that a process can use once."""

import shutil

import pytest

from bridge import PPO, make_vec_env
from tests.bridge.host_env.references import example_at

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def example():
    return example_at("shared_library/tank.py")


@pytest.fixture(scope="module")
def library(example, tmp_path_factory):
    return example.build(tmp_path_factory.mktemp("shared_library"))


def test_a_second_tank_in_one_process_is_refused(example, library):
    tank = example.Tank(library)
    with pytest.raises(RuntimeError, match="There is a tank in this process already"):
        make_vec_env(example.Tank, 1, env_kwargs={"library": library}, backend="serial")
    tank.close()


@pytest.mark.thorough
def test_four_tanks_are_trained_in_four_processes_of_which_this_is_none(example, library):
    env = make_vec_env(example.Tank, 4, seed=0, env_kwargs={"library": library}, backend="process")
    here = example.Tank(library)  # the library is free here
    PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=0).learn(64)
    levels = env.get_attr("level")
    assert len(set(levels)) == 4
    assert env.env_method("_observe")[0][0] == pytest.approx(levels[0])
    here.close()
    env.close()
