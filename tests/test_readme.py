"""The Python in README.md and docs/ runs as it stands there, and what is written from figures is what they say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import docs

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
PAGES = [README, *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCKS = {
    f"{page.relative_to(CHECKOUT)} {number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_code_block_runs(name, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", BLOCKS[name]], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    if "evaluate(" in BLOCKS[name]:
        mean = float(result.stdout.split("±")[0].split()[-1])
        assert mean >= 475, result.stdout


def test_there_are_blocks_for_each_kind_of_reader():
    """Who has an SB3 script, who has an environment, who steps in pure JAX, and who trains and sweeps there."""
    assert {"README.md 1", "README.md 2", "docs/pure-jax.md 1", "docs/pure-jax.md 2"} <= BLOCKS.keys()


@pytest.mark.parametrize("page", [*PAGES, CHECKOUT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_tables_are_those_of_the_results():
    """If not: python -m benchmarks.docs"""
    results = docs.read()
    assert docs.PAGE.read_text() == docs.page(results)
    assert README.read_text() == docs.with_table(README.read_text(), results)
    assert README.read_text().count(docs.BEGIN) == README.read_text().count(docs.END) == 1


def test_the_citation_is_of_this_version():
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (CHECKOUT / "CITATION.cff").read_text()
