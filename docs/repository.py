"""The address of the repository, which only pyproject.toml has, and the badges that are made from it.

    python docs/repository.py

It writes the badges into README.md. `python docs/notebooks.py --first-cells` writes those of the notebooks. Without an
address there are no badges.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
BADGES = re.compile(r"^\[!\[.*\n\n", re.MULTILINE)  # a line of them, and the empty line below it


def repository() -> str | None:
    """Return the address of the repository, without a slash at its end, or None."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository")


def colab(notebook: str, address: str) -> str:
    """Return a badge that opens a notebook of examples/notebooks in Colab."""
    owner_and_name = address.split("://")[-1].partition("/")[2]
    opens = f"https://colab.research.google.com/github/{owner_and_name}/blob/main/examples/notebooks/{notebook}.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({opens})"


def badges(address: str) -> str:
    """Return the badges of README.md."""
    workflow = f"{address}/actions/workflows/tests.yml"
    return f"[![tests]({workflow}/badge.svg)]({workflow}) {colab('quickstart', address)}"


def with_badges(text: str, line: str | None) -> str:
    """Return a page with this line of badges below its heading instead of the line that it has."""
    heading, _, rest = BADGES.sub("", text).partition("\n\n")
    return "\n\n".join([heading, line, rest] if line else [heading, rest])


def readme(address: str | None) -> str:
    """Return README.md with its badges."""
    return with_badges(README.read_text(), badges(address) if address else None)


if __name__ == "__main__":
    README.write_text(readme(repository()))
