"""Compiled functions that are kept on disk."""

import os
import time
from unittest.mock import Mock

import gymnasium
import jax
import jax.numpy as jnp
import pytest

import bridge
import jaxenvs
from jaxenvs import learn
from jaxenvs.compilation import cache
from jaxenvs.learn.sweep import sweep
from tests.packaging.fresh_process import output, python

COMPILE = "print(jax.jit(lambda x: jax.numpy.sin(x) @ x.T)(jax.numpy.ones((3, 3)))[0, 0]);"
# And how many functions were found on disk.
BEGIN = """
import jax
from jaxenvs.compilation import cache
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("/cache_hits") else None)
"""


@pytest.mark.thorough
def test_compiled_functions_are_kept_in_the_users_cache_folder_and_found_again(tmp_path):
    code = f"{BEGIN}\nprint(cache.configure(cache=True)); {COMPILE} print(len(hits))"
    folder, result, hits = output(python(code, XDG_CACHE_HOME=str(tmp_path)))[0].split()
    assert folder.startswith(f"{tmp_path}/jaxenvs/jaxlib-")
    assert hits == "0"
    assert any(name.endswith("-cache") for name in os.listdir(folder))
    # Two at once, of which one finds the other's, or its own, or writes the same: nothing is said of it.
    first, second = (python(code, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    for started in (first, second):
        out, err = output(started)
        assert out.split()[:2] == [folder, result]
        assert int(out.split()[2]) > 0
        assert err == ""


@pytest.mark.thorough
def test_a_damaged_file_is_compiled_again(tmp_path):
    code = f"{BEGIN}\nprint(cache.configure(cache={str(tmp_path)!r})); {COMPILE} print(len(hits))"
    folder, result, _ = output(python(code))[0].split()
    for name in os.listdir(folder):
        (tmp_path / folder / name).write_bytes(b"damaged")
    assert output(python(code))[0].split() == [folder, result, "0"]


@pytest.fixture
def jax_without_cache(monkeypatch):
    """JAX as a process begins with it; whatever a test changes is undone."""
    values = {"jax_compilation_cache_dir": None}
    monkeypatch.setattr(cache, "setting", values.get)
    monkeypatch.setattr(cache.config, "update", values.__setitem__)
    monkeypatch.setattr(cache, "_ours", None)
    monkeypatch.setattr(cache, "_is_configured", False)
    monkeypatch.setattr(cache.compilation_cache, "reset_cache", lambda: None)
    for name in ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", cache.CACHE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return values


def test_small_functions_are_kept_too(jax_without_cache, tmp_path):
    folder = cache.configure(cache=tmp_path)
    assert jax_without_cache == {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    assert cache.configure(cache=False) is None
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_the_environment_variable_turns_it_off_or_names_the_folder(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXENVS_CACHE", str(tmp_path / "named"))
    assert cache.configure().parent == tmp_path / "named"
    monkeypatch.setenv("JAXENVS_CACHE", "0")
    assert cache.configure(cache=tmp_path) is None
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_a_folder_may_be_in_the_users_home(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in cache.configure(cache="~/compiled").parents


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_a_default_folder_that_others_can_write_is_not_used(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "jaxenvs").mkdir()
    (tmp_path / "jaxenvs").chmod(0o777)
    assert cache.configure() is None
    assert cache.configure(cache=tmp_path / "jaxenvs") is not None  # the user may share a folder


def test_the_default_does_not_undo_what_the_user_configured(jax_without_cache):
    assert cache.configure(cache=False) is None
    cache.configure_by_default()
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def make_a_model():
    return bridge.PPO("MlpPolicy", gymnasium.make("CartPole-v1"))


def trace_a_training():
    venv = jaxenvs.make_vec("CartPole-v1", 2)
    training = learn.Training(venv, learn.ActorCritic.of(venv.env), learn.PPO(n_steps=8, batch_size=16), 16)
    jax.eval_shape(lambda key: learn.train(key, training), jax.random.key(0))


USES = {
    "a VecEnv": lambda: bridge.make_vec_env("CartPole-v1", 1),
    "a model": make_a_model,
    "a training": trace_a_training,
    "a sweep": lambda: sweep(lambda x: x + 1, jnp.ones(1)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_what_trains_uses_the_cache_by_default(jax_without_cache, use, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    use()
    assert jax_without_cache["jax_compilation_cache_dir"].startswith(f"{tmp_path}/jaxenvs/jaxlib-")


def test_a_loaded_model_uses_the_cache_by_default(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make_a_model().save(tmp_path / "model")
    monkeypatch.setattr(cache, "_is_configured", False)
    jax_without_cache["jax_compilation_cache_dir"] = None
    bridge.PPO.load(tmp_path / "model")
    assert jax_without_cache["jax_compilation_cache_dir"].startswith(f"{tmp_path}/jaxenvs/jaxlib-")


@pytest.mark.thorough
def test_an_import_configures_nothing_and_the_users_own_cache_is_heeded(tmp_path):
    imports = (
        "import jax, jaxenvs, bridge, jaxenvs.learn.sweep; jaxenvs.make_vec('CartPole-v1', 2); bridge.make_vec_env"
    )
    told = "print(jax.config.jax_compilation_cache_dir)"
    use = "jaxenvs.learn.sweep.sweep(lambda x: x + 1, jax.numpy.ones(1))"
    own = str(tmp_path / "own")
    update = f"jax.config.update('jax_compilation_cache_dir', {own!r})"
    code = f"{imports}; {told}; {update}; {use}; {told}"
    assert output(python(code, XDG_CACHE_HOME=str(tmp_path)))[0].split() == ["None", own]
    code = f"import jax, jaxenvs.learn.sweep; {use}; {told}"
    assert output(python(code, JAX_COMPILATION_CACHE_DIR=own))[0].strip() == own


def test_something_else_than_a_folder_is_named():
    with pytest.raises(TypeError, match="cache must be True, False or a path, got float"):
        cache.configure(cache=3.5)


def test_a_cache_of_the_users_stays(jax_without_cache, tmp_path):
    jax_without_cache["jax_compilation_cache_dir"] = "/of/the/user"
    assert str(cache.configure(cache=tmp_path)) == "/of/the/user"
    assert jax_without_cache == {"jax_compilation_cache_dir": "/of/the/user"}
    assert not list(tmp_path.iterdir())


def test_each_kind_of_cpu_and_version_has_a_folder_of_its_own(jax_without_cache, tmp_path, monkeypatch):
    here = cache.configure(cache=tmp_path)
    assert cache._cpu()
    monkeypatch.setattr(cache, "_cpu", lambda: "another")
    other = cache.configure(cache=tmp_path)
    monkeypatch.setattr(cache.jaxlib_version, "__version__", "0.0.1")
    assert len({here, other, cache.configure(cache=tmp_path)}) == 3


def test_a_folder_that_cannot_be_written_or_is_full_is_not_used(jax_without_cache, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "inside", "/proc/jaxenvs"):
        assert cache.configure(cache=place) is None
    assert cache.configure(cache=tmp_path) is not None
    for name, value in (("FREE_BYTES", 2**80), ("Path.write_bytes", Mock(side_effect=PermissionError))):
        with monkeypatch.context() as patch:
            patch.setattr(f"jaxenvs.compilation.cache.{name}", value)
            assert cache.configure(cache=tmp_path) is None
            assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_the_folder_does_not_grow_for_ever(jax_without_cache, tmp_path, monkeypatch):
    folder = cache.configure(cache=tmp_path)
    now = time.time()
    for age in range(6):
        (folder / f"{age}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{age}-cache", (now - age, now - age))
    (folder / "empty-cache").touch()
    cache.configure(cache=tmp_path)
    assert sorted(os.listdir(folder)) == [f"{age}-cache" for age in range(6)]
    monkeypatch.setattr(cache, "MOST_BYTES", 500)
    cache.configure(cache=tmp_path)
    assert sorted(os.listdir(folder)) == ["0-cache", "1-cache"]
