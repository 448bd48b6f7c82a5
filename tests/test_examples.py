"""Every example runs to its end: a new file in examples/ is tested without a line here."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    if list(script.parent.glob("*.c")) and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_and_has_no_outputs_stored(notebook, tmp_path):
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    assert not any(cell.get("outputs") for cell in content.cells)
    NotebookClient(content, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
