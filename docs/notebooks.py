"""Run the notebooks of examples/notebooks/ and store their outputs, so that readers see them without running.

    python docs/notebooks.py [quickstart ...]

It runs all of them, or only the named ones. All take five minutes on two cores. Look at the outputs before you commit
them. It needs nbclient and ipykernel.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main() -> None:
    """Run notebooks and store their outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of notebooks, without .ipynb")
    names = parser.parse_args().names
    if unknown := set(names) - {path.stem for path in NOTEBOOKS}:
        parser.error(f"no notebook is {', '.join(sorted(unknown))}")
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            content = read(path)
            with tempfile.TemporaryDirectory() as folder:
                execute(content, Path(folder))
            for cell in content.cells:
                cell.metadata = {}
            content.metadata = {**METADATA, "outputs_of": digest(content)}
            nbformat.write(content, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def read(path: Path) -> NotebookNode:
    """Read a notebook, and check its format."""
    content = nbformat.read(path, as_version=4)
    nbformat.validate(content)
    return content


def execute(content: NotebookNode, folder: Path, kernel: str = "python3") -> None:
    """Run all cells in a folder with a kernel, and store their outputs.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raised.
    """
    NotebookClient(content, timeout=1200, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}).execute()


def digest(content: NotebookNode) -> str:
    """Return a digest of the code of all cells, which shows whether the outputs are current."""
    code = [cell.source for cell in content.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


if __name__ == "__main__":
    main()
