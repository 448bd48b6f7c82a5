"""The stored outputs of notebooks match their code, and the notebooks run where only a runner is installed."""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell

from docs import notebooks, repository
from tests.packaging.installed import CHECKOUT, CONSTRAINTS, Installed, run

MOST_BYTES = 450_000
MOST_SECONDS = 180  # on two cores
# In the environment of the tests alone.
OF_TESTS = ("JAX_COMPILATION_CACHE_DIR", "JAXENVS_GUARD", "OMP_NUM_THREADS", "PYTHONPATH", "XLA_FLAGS")

of_each = pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(content):
    return [cell for cell in content.cells if cell.cell_type == "code"]


def outputs(content, kind):
    return [
        output["data"][kind]
        for cell in code_cells(content)
        for output in cell.outputs
        if kind in output.get("data", ())
    ]


@of_each
def test_what_is_stored_is_of_this_code(path):
    """If not: python docs/notebooks.py"""
    content = notebooks.read(path)
    cells = code_cells(content)
    assert content.metadata["outputs_of"] == notebooks.digest(content)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    # Nothing went wrong, and nobody was warned.
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    assert not re.search(r"\bbridge\b", "".join([*(cell.source for cell in content.cells), *map(str, shown)]))


@of_each
def test_there_are_plots_and_a_film_in_a_small_file(path):
    content = notebooks.read(path)
    assert outputs(content, "image/png")
    films = outputs(content, "image/gif")
    assert films
    assert all(base64.b64decode(film).startswith(b"GIF89a") for film in films)
    assert path.stat().st_size <= MOST_BYTES


@of_each
def test_the_first_cells_are_those_of_all_and_links_lead_somewhere(path):
    """If not: python docs/notebooks.py --first-cells"""
    content = notebooks.read(path)
    written = notebooks.begin(notebooks.read(path), path.stem, repository.repository())
    assert [cell.source for cell in content.cells] == [cell.source for cell in written.cells]
    text = "\n".join(cell.source for cell in content.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^):]*)\)", text):
        assert (path.parent / target).exists(), target


# --- the first cell ---------------------------------------------------------------------------------------------


ADDRESS = "https://host/owner/name"


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Run the first cell with a pip that knows some sources, in an empty folder. Return what pip was asked for."""
    monkeypatch.delenv("JAXENVS_SOURCE", raising=False)
    monkeypatch.chdir(tmp_path)

    def run_cell(available="", present=(), address=None):
        asked = []

        def pip(command):
            asked.append(command[-1])
            return SimpleNamespace(returncode=0 if available in asked[-1] else 1)

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in present else None)
        monkeypatch.setattr(subprocess, "run", pip)
        content = notebooks.begin(notebooks.read(notebooks.NOTEBOOKS[0]), "any", address)
        exec(code_cells(content)[0].source, {})
        return asked

    return run_cell


def test_the_first_cell_installs_nothing_where_all_is_installed(install):
    assert install(present=notebooks.OTHERS_NEED[1]) == []
    assert install(present=notebooks.OTHERS_NEED[1][:-1]) == ["jaxenvs[sb3]"]


def test_the_first_cell_installs_from_the_checkout_then_a_source_then_the_index(install, monkeypatch, tmp_path):
    (tmp_path / "jaxenvs").mkdir()
    (tmp_path / "jaxenvs" / "environment.py").touch()
    (tmp_path / "a.whl").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    checkout, index = f"jaxenvs[sb3] @ {tmp_path.as_uri()}", "jaxenvs[sb3]"
    assert install() == [checkout]
    monkeypatch.setenv("JAXENVS_SOURCE", "../a.whl")
    assert install(".whl") == [checkout, f"{checkout}/a.whl"]
    monkeypatch.setenv("JAXENVS_SOURCE", "git+https://host/a")
    with pytest.raises(ImportError) as raised:
        install("nowhere")
    tried = f"{checkout} or {index} @ git+https://host/a or {index}"
    assert str(raised.value) == f"pip cannot install {tried}: set JAXENVS_SOURCE, and run this cell again."


def test_an_address_of_the_repository_is_what_badges_and_first_cells_are_made_from(install):
    assert install(address=ADDRESS) == [f"jaxenvs[sb3] @ git+{ADDRESS}"]
    content = notebooks.read(notebooks.NOTEBOOKS[0])
    before = content.cells[0].source
    after = notebooks.begin(content, "any", ADDRESS).cells[0].source
    assert "research.google.com/github/owner/name/blob/main/examples/notebooks/any.ipynb)" in after.splitlines()[2]
    assert notebooks.begin(content, "any", None).cells[0].source == before
    assert f"({ADDRESS}/actions/" in repository.readme(ADDRESS).splitlines()[2]
    assert repository.readme(repository.repository()) == repository.README.read_text()


# --- the notebooks where only a runner is -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout, without what git does not know."""
    folder = tmp_path_factory.mktemp("checkout") / "jaxenvs"
    names = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=CHECKOUT).splitlines()
    for source in (CHECKOUT / name for name in names):
        if source.is_file():
            target = folder / source.relative_to(CHECKOUT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return folder


def without_cuda(constraints, folder):
    """Constraints that take PyTorch's build for the CPU, and no other."""
    path = folder / "constraints.txt"
    path.write_text(re.sub(r"^(torch==[\d.]+)$", r"\1+cpu", constraints.read_text(), flags=re.MULTILINE))
    return path


def has_torch(python, constraints):
    torch = re.search(r"^torch==.*$", constraints.read_text(), re.MULTILINE)[0]
    command = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", torch]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module", params=["python", "python3.12"])
def kernel(request, tmp_path_factory):
    """A kernel in an environment with nothing in it but what runs notebooks.

    With Python 3.12, the notebooks get the versions of images for GPUs, and PyTorch for the CPU.
    """
    folder = tmp_path_factory.mktemp("empty")
    python = sys.executable if request.param == "python" else shutil.which(request.param)
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"{request.param} is not installed")
    of_image = CHECKOUT / "constraints-gpu-image.txt"
    constraints = without_cuda(CONSTRAINTS if python == sys.executable else of_image, folder)
    if not has_torch(python, constraints):
        pytest.skip("there is no PyTorch for the CPU of this version: set PIP_EXTRA_INDEX_URL, as CI does")
    installed = Installed(folder, "nbclient", python=python, options=("-c", constraints, "ipykernel"))
    spec = folder / "jupyter" / "kernels" / "empty"
    spec.mkdir(parents=True)
    argv = [str(installed.bin / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "empty", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("PIP_CONSTRAINT", str(constraints))
        for name in (*OF_TESTS, "JAXENVS_SOURCE"):
            patch.delenv(name, raising=False)
        yield SimpleNamespace(name="empty", python=installed.bin / "python")


def runs(path, kernel, folder):
    """Run a notebook, which must install jaxenvs in its environment and take no longer than it may."""
    content = notebooks.read(path)
    where = (
        "import bridge, jaxenvs, sys, time\nprint(sys.prefix, jaxenvs.__file__, bridge.__file__, time.process_time())"
    )
    content.cells.append(new_code_cell(where))
    notebooks.execute(content, folder, kernel.name)
    prefix, jaxenvs_file, bridge_file, seconds = content.cells[-1].outputs[0].text.split()
    assert all(Path(file).is_relative_to(prefix) for file in (jaxenvs_file, bridge_file))
    # The seconds of both cores, of which the installation, in another process, is not one.
    assert float(seconds) <= 2 * MOST_SECONDS
    assert outputs(content, "image/gif")


@pytest.mark.slow
@pytest.mark.thorough
@of_each
def test_a_notebook_runs_from_the_wheel(path, kernel, wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXENVS_SOURCE", str(wheel))
    runs(path, kernel, tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_notebook_runs_in_a_checkout(kernel, checkout):
    """Nothing but the source of the first cell's installation differs."""
    subprocess.run([kernel.python, "-m", "pip", "uninstall", "--quiet", "--yes", "jaxenvs"], check=True)
    runs(checkout / "examples" / "notebooks" / "quickstart.ipynb", kernel, checkout / "examples" / "notebooks")
