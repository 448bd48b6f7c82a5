"""What `import bridge` does to the process, and the programs that `bridge.configure` keeps on disk."""

import os
import subprocess
import sys
import time

import pytest

from bridge import configuration

COMPILE = "import jax; print(jax.jit(lambda x: jax.numpy.sin(x) @ x.T)(jax.numpy.ones((3, 3)))[0, 0]);"
# The module alone, as importing bridge takes seconds; and how many programs were found on disk.
BEGIN = f"""
import importlib.util, jax
spec = importlib.util.spec_from_file_location("configuration", {configuration.__file__!r})
configuration = importlib.util.module_from_spec(spec)
spec.loader.exec_module(configuration)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("/cache_hits") else None)
"""


def python(code, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "JAXENVS_", "XDG_"))}
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**own, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return started


def output(started):
    out, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    return out, err


def test_programs_are_kept_in_the_users_cache_folder_and_found_again(tmp_path):
    code = f"{BEGIN}\nprint(configuration.configure(cache=True)); {COMPILE} print(len(hits))"
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


def test_a_damaged_program_is_compiled_again(tmp_path):
    code = f"{BEGIN}\nprint(configuration.configure(cache={str(tmp_path)!r})); {COMPILE} print(len(hits))"
    folder, result, _ = output(python(code))[0].split()
    for name in os.listdir(folder):
        (tmp_path / folder / name).write_bytes(b"damaged")
    assert output(python(code))[0].split() == [folder, result, "0"]


@pytest.fixture
def jax_without_cache(monkeypatch):
    """JAX as a process begins with it; whatever a test changes is undone."""
    values = {"jax_compilation_cache_dir": None}
    monkeypatch.setattr(configuration, "setting", values.get)
    monkeypatch.setattr(configuration.jax.config, "update", values.__setitem__)
    monkeypatch.setattr(configuration, "_ours", None)
    monkeypatch.setattr(configuration.compilation_cache, "reset_cache", lambda: None)
    for name in ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", configuration.CACHE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return values


def test_small_programs_are_kept_too(jax_without_cache, tmp_path):
    folder = configuration.configure(cache=tmp_path)
    assert jax_without_cache == {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    assert configuration.configure(cache=False) is None
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_the_environment_variable_turns_it_off_or_names_the_folder(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXENVS_CACHE", str(tmp_path / "named"))
    assert configuration.configure().parent == tmp_path / "named"
    monkeypatch.setenv("JAXENVS_CACHE", "0")
    assert configuration.configure(cache=tmp_path) is None
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_a_folder_may_be_in_the_users_home(jax_without_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in configuration.configure(cache="~/programs").parents


def test_something_else_than_a_folder_is_named():
    with pytest.raises(TypeError, match="cache must be True, False or a path, got float"):
        configuration.configure(cache=3.5)


def test_a_cache_of_the_users_stays(jax_without_cache, tmp_path):
    jax_without_cache["jax_compilation_cache_dir"] = "/of/the/user"
    assert str(configuration.configure(cache=tmp_path)) == "/of/the/user"
    assert jax_without_cache == {"jax_compilation_cache_dir": "/of/the/user"}
    assert not list(tmp_path.iterdir())


def test_each_kind_of_cpu_and_version_has_a_folder_of_its_own(jax_without_cache, tmp_path, monkeypatch):
    here = configuration.configure(cache=tmp_path)
    assert configuration._cpu()
    monkeypatch.setattr(configuration, "_cpu", lambda: "another")
    other = configuration.configure(cache=tmp_path)
    monkeypatch.setattr(configuration.jaxlib_version, "__version__", "0.0.1")
    assert len({here, other, configuration.configure(cache=tmp_path)}) == 3


def test_a_folder_that_cannot_be_written_or_is_full_is_not_used(jax_without_cache, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "inside", "/proc/jaxenvs"):
        assert configuration.configure(cache=place) is None
    assert configuration.configure(cache=tmp_path) is not None
    monkeypatch.setattr(configuration, "FREE_BYTES", 2**80)
    assert configuration.configure(cache=tmp_path) is None
    assert jax_without_cache["jax_compilation_cache_dir"] is None


def test_a_read_only_folder_is_not_used(jax_without_cache, tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError

    monkeypatch.setattr(configuration.Path, "write_bytes", refuse)
    assert configuration.configure(cache=tmp_path) is None


def test_the_folder_does_not_grow_for_ever(jax_without_cache, tmp_path, monkeypatch):
    folder = configuration.configure(cache=tmp_path)
    now = time.time()
    for age in range(6):
        (folder / f"{age}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{age}-cache", (now - age, now - age))
    (folder / "empty-cache").touch()
    configuration.configure(cache=tmp_path)
    assert sorted(os.listdir(folder)) == [f"{age}-cache" for age in range(6)]
    monkeypatch.setattr(configuration, "MOST_BYTES", 500)
    configuration.configure(cache=tmp_path)
    assert sorted(os.listdir(folder)) == ["0-cache", "1-cache"]


def test_jax_that_ran_before_the_import_is_told_of():
    out, err = output(
        python("import jax; jax.numpy.ones(1)\nimport jaxenvs, bridge; print(bridge.configure.__module__)")
    )
    assert out.strip() == "bridge.configuration"
    assert err.startswith("<string>:2: UserWarning: JAX ran before `import bridge`")


@pytest.mark.parametrize(
    ("ran", "dispatches", "chosen", "warns"),
    [(True, True, None, True), (True, False, None, False), (True, True, "1", False), (False, True, None, False)],
)
def test_of_jax_that_has_not_run_or_that_the_user_has_set_nothing_is_said(
    ran, dispatches, chosen, warns, jax_without_cache, monkeypatch, recwarn
):
    jax_without_cache["jax_cpu_enable_async_dispatch"] = dispatches
    monkeypatch.setattr(configuration, "has_run", lambda: ran)
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    if chosen is not None:
        monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", chosen)
    configuration.set_up_process()
    assert len(recwarn) == warns
    # Set where it has an effect, and where the user has not.
    assert jax_without_cache["jax_cpu_enable_async_dispatch"] == (dispatches and (ran or chosen is not None))


# The tests' own cache of compiled functions, which `python` leaves out.
COMPILED_BEFORE = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
# A model of each family, trained, saved, loaded and given parameters.
TRAIN = """
import sys, bridge, torch
def train(path):
    for cls, env, options in (bridge.PPO, "CartPole-v1", {"n_steps": 16, "batch_size": 16}), (
        bridge.SAC, "Pendulum-v1", {"learning_starts": 4, "policy_kwargs": {"net_arch": [8]}},
    ):
        model = cls("MlpPolicy", bridge.make_vec_env(env, 1), engine="xla", **options)
        model.learn(16)
        model.save(path)
        model.set_parameters(path)
        cls.load(path)
"""


def test_a_model_is_made_trained_saved_and_loaded_without_dynamo(tmp_path):
    code = f"{TRAIN}\ntrain({str(tmp_path / 'model')!r}); print('torch._dynamo' in sys.modules)"
    assert output(python(code, **COMPILED_BEFORE))[0].split() == ["False"]


def test_torch_compile_and_optimizers_of_the_user_work_as_before(tmp_path):
    code = f"""{TRAIN}
train({str(tmp_path / "model")!r})
print(torch.compile(lambda x: 2 * x + 1, backend="eager")(torch.ones(1)).item())
weights = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([weights])
optimizer.zero_grad()
weights.sum().backward()
torch.compile(optimizer.step, backend="eager")()
plain = torch.optim.Optimizer.zero_grad.__wrapped__
print(round(weights.item(), 3), vars(plain)["__dynamo_disable"] is not plain, "torch._dynamo" in sys.modules)
"""
    assert output(python(code, **COMPILED_BEFORE))[0].split() == ["3.0", "0.999", "True", "True"]


def test_another_thread_may_end_being_without_dynamo_first():
    code = (
        f"{BEGIN}\nimport torch\n"
        "plain = torch.optim.Optimizer.zero_grad.__wrapped__\n"
        "with configuration.without_dynamo():\n"
        "    del plain.__dynamo_disable\n"
        "print(hasattr(plain, '__dynamo_disable'))"
    )
    assert output(python(code))[0].split() == ["False"]
