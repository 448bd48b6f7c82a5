"""The constructors of all algorithms show the arguments of SB3's and their own, at run time and to type checkers."""

import inspect
import itertools
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import bridge
from bridge.algorithms.common import constructor_arguments
from bridge.algorithms.specs import SPECS

CHECKOUT = Path(__file__).parent.parent.parent
NAMES = sorted(SPECS)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_stable_baselines3_and_ours(name):
    library = pytest.importorskip(SPECS[name].stock or SPECS[name].library)
    ours = inspect.signature(getattr(bridge, name)).parameters
    theirs = inspect.signature(getattr(library, name)).parameters
    assert [*ours] == [*theirs, "engine"]
    assert all(ours[each].default == theirs[each].default for each in theirs)
    assert ours["engine"].default == "auto"


@pytest.mark.parametrize("name", NAMES)
def test_type_checkers_see_the_same_arguments(name):
    library = pytest.importorskip(SPECS[name].stock or SPECS[name].library)
    constructor = getattr(bridge, name).__init__
    (unpacked,) = typing.get_args(eval(constructor.__annotations__["kwargs"], vars(sys.modules[SPECS[name].module])))
    # An older version may lack some.
    assert {*inspect.signature(getattr(library, name)).parameters} - {"policy", "env"} <= {*unpacked.__annotations__}


def test_each_argument_has_a_line():
    source = Path(constructor_arguments.__file__).read_text().splitlines()
    for line, following in itertools.pairwise(source):
        if line.startswith("    ") and ": " in line and not line.lstrip().startswith(('"""', "_")):
            assert following.lstrip().startswith('"""'), line


RIGHT = """
import jaxenvs
from jaxenvs.sb3 import DDPG, DQN, PPO, RecurrentPPO, make_vec_env

PPO("MlpPolicy", jaxenvs.make("CartPole-v1"), 3e-4, n_steps=32, engine="xla", policy_kwargs={"net_arch": [8]}).learn(9)
DQN("MlpPolicy", make_vec_env("CartPole-v1"), learning_rate=lambda progress: progress)
DDPG("MlpPolicy", "Pendulum-v1", tau=0.1)
RecurrentPPO("MlpLstmPolicy", "CartPole-v1")
"""
WRONG = """
from jaxenvs.sb3 import A2C, CrossQ, PPO

PPO("MlpPolicy", "CartPole-v1", n_step=32)
PPO("MlpPolicy", "CartPole-v1", n_steps="32")
A2C("MlpPolicy", "CartPole-v1", batch_size=32)
CrossQ("MlpPolicy", "Pendulum-v1", tau=0.1)
"""


@pytest.mark.slow
@pytest.mark.thorough  # it takes a minute, and `make types` checks what the package itself calls
def test_mypy_accepts_right_arguments_and_denies_wrong_ones(tmp_path):
    for name, code in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--config-file", CHECKOUT / "pyproject.toml"]
    result = subprocess.run(
        [*command, tmp_path / "right.py", tmp_path / "wrong.py"], cwd=CHECKOUT, capture_output=True, text=True
    )
    found = [line.partition(":")[2].partition(":")[0] for line in result.stdout.splitlines() if ": error:" in line]
    assert "right.py" not in result.stdout, result.stdout
    assert found == ["4", "5", "6", "7"], result.stdout + result.stderr
