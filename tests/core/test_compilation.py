"""Compiler options, and processes in which JAX cannot run."""

import os
import subprocess
import sys

import jax
import pytest

import jaxenvs
from jaxenvs.compilation import IN_ORDER, OPTIONS, compiler_options
from jaxenvs.compilation.faults import guard


def test_the_options_are_a_dict_of_the_callers_own():
    compiler_options()["xla_no_such_option"] = "1"
    assert "xla_no_such_option" not in compiler_options()


def test_this_version_of_xla_knows_all_the_options():
    if jax.default_backend() != "cpu":
        pytest.skip("the options are of XLA for CPUs")
    if jax.__version_info__ < (0, 9):
        pytest.skip("This version of XLA does not know all of them.")
    assert compiler_options() == {**OPTIONS, **IN_ORDER, **guard()}


FORK = """
import warnings
warnings.simplefilter("ignore")  # JAX's own, of the fork
import gymnasium, jax, jaxenvs
from gymnasium.vector import AsyncVectorEnv

def start(method):
    venv = AsyncVectorEnv([lambda: gymnasium.make("jaxenvs/CartPole-v1")] * 2, context=method)
    try:
        return venv.reset(seed=0)[0].shape
    finally:
        venv.close(terminate=True)

if __name__ == "__main__":
    print(start("fork"))
    jax.numpy.zeros(1).block_until_ready()
    try:
        start("fork")
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_is_refused_if_jax_ran_before_it_and_works_if_not(tmp_path):
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    works, refused = result.stdout.strip().splitlines()[-2:] or (result.stderr, "")
    assert works == "(2, 4)"
    assert refused.startswith("JAX ran in the process that this process was forked from")
    assert refused.endswith('start processes with the method "spawn" or "forkserver".')


def test_the_version_is_that_of_the_package():
    assert jaxenvs.__version__[0].isdigit()
