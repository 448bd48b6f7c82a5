"""Run the notebooks of examples/notebooks/ and store their outputs, so that readers see them without running.

    python docs/notebooks.py [--first-cells] [quickstart ...]

It runs all of them, or only the named ones. All take five minutes on two cores. Look at the outputs before you commit
them. It needs nbclient and ipykernel. With --first-cells it runs nothing, and only writes the badge and the first cell.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).parent.parent))
from docs.repository import colab, repository, with_badges

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What a notebook needs: extras of jaxenvs, and modules that these install.
NEEDS = {"self_play": ("contrib,pgx", ("jaxenvs", "optax", "sb3_contrib", "pgx"))}
OTHERS_NEED = ("sb3", ("jaxenvs", "optax", "stable_baselines3"))
FIRST_CELL = """
# If jaxenvs is missing, install it: from the checkout that this notebook lies in, from the environment variable
# JAXENVS_SOURCE (a wheel, or git+https://...), or from the package index.
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

extras, modules = {extras}, {modules}
if not all(find_spec(module) for module in modules):
    folders = [Path.cwd(), *Path.cwd().parents]
    sources = [folder.as_uri() for folder in folders if (folder / "jaxenvs" / "environment.py").exists()]
    if source := os.environ.get("JAXENVS_SOURCE", {source}):
        sources.append(Path(source).resolve().as_uri() if Path(source).exists() else source)
    wanted = [*(f"jaxenvs[{{extras}}] @ {{source}}" for source in sources), f"jaxenvs[{{extras}}]"]
    for each in wanted:
        print(f"pip install {{each}}")
        if subprocess.run([sys.executable, "-m", "pip", "install", "-q", each]).returncode == 0:
            break
    else:
        tried = " or ".join(wanted)
        raise ImportError(f"pip cannot install {{tried}}: set JAXENVS_SOURCE, and run this cell again.")
"""


def main() -> None:
    """Run notebooks and store their outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of notebooks, without .ipynb")
    parser.add_argument("--first-cells", action="store_true", help="run nothing: write the first cells")
    options = parser.parse_args()
    if unknown := set(options.names) - {path.stem for path in NOTEBOOKS}:
        parser.error(f"no notebook is {', '.join(sorted(unknown))}")
    for path in NOTEBOOKS:
        if not options.names or path.stem in options.names:
            content = begin(read(path), path.stem, repository())
            if not options.first_cells:
                with tempfile.TemporaryDirectory() as folder:
                    execute(content, Path(folder))
                for cell in content.cells:
                    cell.metadata = {}
                content.metadata = {**METADATA, "outputs_of": digest(content)}
            nbformat.write(content, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def read(path: Path) -> NotebookNode:
    """Read a notebook, and check its format."""
    content = nbformat.read(path, as_version=4)
    nbformat.validate(content)
    return content


def begin(content: NotebookNode, name: str, address: str | None) -> NotebookNode:
    """Write the badge and the cell that installs jaxenvs, which all notebooks have in common.

    Args:
      address: of the repository. Without one there is no badge, and the cell has no address to install from.
    """
    heading, first = content.cells[:2]
    heading.source = with_badges(heading.source, colab(name, address) if address else None)
    extras, modules = NEEDS.get(name, OTHERS_NEED)
    texts = {"extras": extras, "source": f"git+{address}" if address else ""}
    quoted = {key: f'"{text}"' for key, text in texts.items()}
    first.source = FIRST_CELL.strip().format(**quoted, modules=str(modules).replace("'", '"'))
    return content


def execute(content: NotebookNode, folder: Path, kernel: str = "python3") -> None:
    """Run all cells in a folder with a kernel, and store their outputs.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raised.
    """
    NotebookClient(content, timeout=1200, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}).execute()


def digest(content: NotebookNode) -> str:
    """Return a digest of the code of all cells except for the first, which shows whether the outputs are current."""
    code = [cell.source for cell in content.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code[1:]).encode()).hexdigest()


if __name__ == "__main__":
    main()
