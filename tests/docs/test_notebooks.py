"""The stored outputs of notebooks match their code, and the notebooks run with only the wheel installed."""

import base64
import json
import os
import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from docs import notebooks
from tests.packaging.installed import CHECKOUT, CONSTRAINTS, Installed

# A notebook that needs more than jaxenvs[sb3] looks for each package: jaxenvs may have been installed without them.
INSTALLS = re.compile(
    r'from importlib.util import find_spec\n\nif (find_spec\("jaxenvs"\) is None'
    r'|not all\(find_spec\(name\) for name in \("jaxenvs"(, "\w+")+\)\)):\n    %pip install -q "jaxenvs\[[\w,]+\]"'
)
MOST_BYTES = 450_000
MOST_SECONDS = 60  # on two cores
# In the environment of the tests alone.
OF_TESTS = ("JAX_COMPILATION_CACHE_DIR", "OMP_NUM_THREADS", "PYTHONPATH", "XLA_FLAGS")

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


@of_each
def test_there_are_plots_and_a_film_in_a_small_file(path):
    content = notebooks.read(path)
    assert outputs(content, "image/png")
    films = outputs(content, "image/gif")
    assert films
    assert all(base64.b64decode(film).startswith(b"GIF89a") for film in films)
    assert path.stat().st_size <= MOST_BYTES


@of_each
def test_the_first_cell_installs_and_links_lead_somewhere(path):
    content = notebooks.read(path)
    assert INSTALLS.fullmatch(code_cells(content)[0].source)
    text = "\n".join(cell.source for cell in content.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^):]*)\)", text):
        assert (path.parent / target).exists(), target


@pytest.fixture(scope="module")
def kernel(wheel, tmp_path_factory):
    """The name of a kernel in an environment with nothing in it but what runs notebooks."""
    folder = tmp_path_factory.mktemp("empty")
    installed = Installed(folder, "ipykernel")
    spec = folder / "jupyter" / "kernels" / "empty"
    spec.mkdir(parents=True)
    argv = [str(installed.bin / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "empty", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        # What the first cell's pip sees: our wheel under the name that it asks for, and versions that we know.
        patch.setenv("PIP_FIND_LINKS", f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip())
        patch.setenv("PIP_CONSTRAINT", str(CONSTRAINTS))
        for name in OF_TESTS:
            patch.delenv(name, raising=False)
        yield "empty"


@pytest.mark.slow
@pytest.mark.thorough
@of_each
def test_a_notebook_runs_where_only_the_wheel_is(path, kernel, tmp_path):
    content = notebooks.read(path)
    where = "import bridge, jaxenvs, time\nprint(jaxenvs.__file__, bridge.__file__, time.process_time())"
    content.cells.append(new_code_cell(where))
    notebooks.execute(content, tmp_path, kernel)
    jaxenvs_file, bridge_file, seconds = content.cells[-1].outputs[0].text.split()
    assert not any(Path(file).is_relative_to(CHECKOUT) for file in (jaxenvs_file, bridge_file))
    # The seconds of both cores, of which the installation, in another process, is not one.
    assert float(seconds) <= 2 * MOST_SECONDS
    assert outputs(content, "image/gif")
