"""sweep is vmap, on as many cores as it may use."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.learn.sweep import compile_sweep, sweep

ON_ALL_CORES = """
from jaxenvs.learn.sweep import reserve_threads
assert reserve_threads()
import jax.numpy as jnp
import jaxenvs.learn.sweep as module
for cores in (1, 2, 3):
    module.num_cores = lambda: cores
    print(module.sweep(lambda x: x**2, jnp.arange(5.0)).tolist())
"""


@pytest.fixture(autouse=True)
def one_core_is_no_surprise():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sweep runs on one core")
        yield


def square_and_draw(x, key):
    return {"square": x**2, "draw": jax.random.uniform(key)}


def test_a_sweep_is_vmap():
    numbers, keys = jnp.arange(5.0), jax.random.split(jax.random.key(0), 5)
    swept = sweep(square_and_draw, numbers, keys)
    np.testing.assert_array_equal(swept["square"], numbers**2)
    np.testing.assert_array_equal(swept["draw"], jax.vmap(jax.random.uniform)(keys))


@pytest.mark.thorough
def test_a_sweep_is_vmap_however_many_cores_there_are():
    done = subprocess.run([sys.executable, "-c", ON_ALL_CORES], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [str([float(i * i) for i in range(5)])] * 3, done.stderr


def test_importing_sweep_changes_nothing_in_the_process():
    code = "import os; before = dict(os.environ); import jaxenvs.learn.sweep; assert dict(os.environ) == before"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_second_sweep_of_these_shapes_compiles_nothing():
    numbers, keys = jnp.arange(5.0), jax.random.split(jax.random.key(0), 5)
    assert compile_sweep(square_and_draw, numbers, keys) is compile_sweep(square_and_draw, numbers + 1, keys)


def test_who_gets_one_core_only_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr("jaxenvs.learn.sweep.num_cores", lambda: 4)
    monkeypatch.setattr("jaxenvs.learn.sweep._STARTED_WITH", [])
    with pytest.warns(UserWarning, match=r"sweep runs on one core\. .*reserve_threads\(\) before JAX runs"):
        sweep(lambda x: x, jnp.arange(3.0))


@pytest.mark.parametrize("arguments", [(), (jnp.arange(3.0), jnp.arange(2.0)), (jnp.ones(()),), (jnp.ones((0, 2)),)])
def test_arguments_without_one_leading_axis_are_refused(arguments):
    with pytest.raises(ValueError, match="arguments must share one leading axis"):
        sweep(lambda *x: x, *arguments)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="function must be callable, got None"):
        sweep(None, jnp.arange(3.0))
