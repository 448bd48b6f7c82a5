"""The site is built strictly: a page that is not in the navigation, or a link that leads nowhere, is an error."""

import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from docs import hooks

CHECKOUT = Path(__file__).parent.parent


def built(site, **changes):
    """The site without the reference's docstrings, which take most of the time to read."""
    config = load_config(str(CHECKOUT / "mkdocs.yml"), site_dir=str(site), plugins=["search"], strict=True, **changes)
    build(config)
    return site


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere(tmp_path):
    assert (built(tmp_path) / "index.html").exists()


@pytest.mark.parametrize("text", ["[nowhere](nowhere.md)", "[no heading](index.md#no-heading)"])
def test_a_dead_link_is_an_error(tmp_path, text):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# A page\n\n{text}\n")
    with pytest.raises(Abort):
        built(tmp_path / "site", docs_dir=str(docs), nav=[{"A page": "index.md"}], hooks=[])


def test_links_to_files_outside_lead_to_pages_of_the_site():
    assert hooks.site_page("CHANGELOG.md") == "changelog.md"
    assert hooks.site_page("examples/sweep.py") == "examples/sweep.md"
    assert hooks.site_page("examples/native_c/cartpole.c") == "examples/native_c.md"
    assert hooks.site_page("jaxenvs/vector.py") is None


@pytest.mark.thorough
def test_the_whole_site_is_built_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "reference" / "index.html").exists()
