"""Every example runs to its end: a new file in examples/ is tested without a line here."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def process_environment(monkeypatch):
    """The compilation cache of the tests, and one thread: the workers of a test run share few cores."""
    cache = os.environ.get("JAX_CACHE", str(EXAMPLES.parent / ".jax_cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", cache)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("process_environment")
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.usefixtures("process_environment")
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_and_has_no_outputs_stored(notebook, tmp_path):
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    assert not any(cell.get("outputs") for cell in content.cells)
    NotebookClient(content, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
