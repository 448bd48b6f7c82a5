"""Shared by all tests: settings of JAX and PyTorch; x64, and the wheel, as fixtures."""

import gc
import os
import signal
import sys
from pathlib import Path

# In the environment, and before JAX and PyTorch are imported, so that subprocesses have them too.
# Tests compile far more than they run: keep compiled functions between runs and share them between workers.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# For what tests compile themselves. LLVM's -O1, as our own compiled functions have it: a tenth to a fifth faster, the
# same bits. And one thread for each kernel, as the cores have tests to run.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_multi_thread_eigen=false")
# Tests check that our own compiled functions are right without the guard for the whole process, which
# tests/compilation checks in processes that it starts.
os.environ.setdefault("JAXENVS_GUARD", "0")
# One thread for each of PyTorch's operations: tests run side by side, and threads that wait for a core spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import jax
import pytest
from stable_baselines3.common.utils import set_random_seed

import jaxenvs
from tests.packaging.installed import CHECKOUT, run

# A shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each function that XLA compiles takes some memory mappings, of which Linux gives a process 65,530: with more, it dies.
MOST_MAPPINGS = 25_000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave in `make test` the cases of thorough tests that `@pytest.mark.thorough(but=[...])` names by their ids."""
    named, there = set(), set()
    for item in items:
        kept = [id for mark in item.iter_markers("thorough") for id in mark.kwargs.get("but", ())]
        named.update((item.path, item.originalname, id) for id in kept)
        if kept and item.callspec.id in kept:
            there.add((item.path, item.originalname, item.callspec.id))
            item.own_markers = [mark for mark in item.own_markers if mark.name != "thorough"]
    if named != there and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no test has the cases {sorted(map(str, named - there))}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seed the global generators before each test: PyTorch's weights do not depend on the tests that ran before."""
    set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_functions():
    """Forget compiled functions after a module, once there are many: a worker compiles more than a process may hold.

    Until then the garbage collector leaves alone what earlier modules left: it would walk through all of it each time.
    """
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        gc.unfreeze()
        jax.clear_caches()
        gc.collect()
    gc.freeze()


@pytest.fixture
def x64():
    """64-bit arithmetic for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def registries(monkeypatch):
    """Forget afterwards what a test registers."""
    known = dict(gymnasium.registry)
    monkeypatch.setattr(jaxenvs.registry, "_specs", dict(jaxenvs.registry._specs))
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(known)


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    """A folder with the wheel and the sdist, of which the wheel was built."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT])
    return folder


@pytest.fixture(scope="session")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path
