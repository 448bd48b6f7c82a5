"""Names of JAX that nobody promises: which of them this version still has, and what happens without."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxenvs import jax_names

ROOT = Path(jax_names.__file__).parent.parent


def test_no_other_file_of_the_core_or_of_bridge_uses_them():
    own = Path(jax_names.__file__)
    texts = {path: path.read_text() for name in ("jaxenvs", "bridge") for path in (ROOT / name).rglob("*.py")}
    names = ("jax._src", "jax.core.Tracer", "/jax/core/compile", "jax.config.values")
    assert [path.name for path, text in texts.items() if path != own and any(name in text for name in names)] == []


def test_compiling_is_told_under_the_name_that_is_listened_for():
    heard = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: heard.append(event))
    number = len(heard)
    jax.jit(lambda x: x * number + 0.123)(jnp.arange(3.0))
    assert any(event.startswith(jax_names.COMPILE_EVENTS) for event in heard)


def test_it_is_known_whether_jax_has_run():
    jnp.zeros(1).block_until_ready()
    assert jax_names.has_run() is True


@pytest.mark.thorough
def test_without_the_private_names_everything_can_be_imported():
    code = (
        "import jax._src.xla_bridge as private; del private.backends_are_initialized\n"
        "import jaxenvs.gym, jaxenvs.learn.sweep, jaxenvs.jax_names\n"
        "print(jaxenvs.jax_names.has_run(), jaxenvs.learn.sweep.reserve_threads())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["None", "False"], result.stderr
