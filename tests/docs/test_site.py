"""The site builds strictly: a page outside the navigation and a dead link are errors."""

import html
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from docs import hooks

CHECKOUT = Path(__file__).parent.parent.parent


def built(site, **changes):
    """The site without the reference's docstrings, which take most of the time to read."""
    path = str(CHECKOUT / "mkdocs.yml")
    search = next(plugin for name, plugin in load_config(path).plugins.items() if name.endswith("search"))
    plugins = [{"search": {"separator": search.config.separator}}]
    config = load_config(path, site_dir=str(site), plugins=plugins, strict=True, **changes)
    build(config)
    return site


@pytest.mark.thorough
def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere(tmp_path):
    assert (built(tmp_path) / "index.html").exists()


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    ("address", "shown"),
    [(None, "`jaxenvs/vector.py`"), ("https://host/a/b", "https://host/a/b/blob/main/jaxenvs/vector.py")],
)
def test_what_has_no_page_is_linked_if_the_repository_has_an_address(monkeypatch, address, shown):
    monkeypatch.setattr(hooks, "repository", lambda: address)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guide/page.md"))
    code = "```python\nvalue[0](../../jaxenvs/vector.py)\n```\n"
    text = f"[it](../../jaxenvs/vector.py) and [replay.md](../replay.md)\n\n{code}"
    written = hooks.on_page_markdown(text, page, None, None)
    assert shown.replace("`jaxenvs/vector.py`", "`it`") in written
    assert "[Replay buffers](../replay.md)" in written
    assert code in written


def test_the_page_of_a_notebook_shows_its_code_and_what_that_showed():
    page = hooks.examples()["examples/notebooks/quickstart.md"]
    assert hooks.FENCED.sub("", page).count("\n# ") == 0  # its heading is the page's
    assert page.startswith("# Quickstart")
    assert "model.learn(" in page
    assert "return 500.0" in page
    assert 'src="data:image/gif;base64,R0lGOD' in page
    assert "](sb3_script.md)" in page


def test_no_address_of_a_repository_is_made_up():
    """Only pyproject.toml knows where the project is, or that it is nowhere yet."""
    pages = [CHECKOUT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml")]
    for page in [*pages, *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "examples").rglob("*.ipynb")]:
        for address in re.findall(r"https?://\S*jaxenvs[^\s)]*", page.read_text()):
            assert address.startswith(hooks.repository() or "nothing"), (page, address)


@pytest.mark.thorough
def test_the_whole_site_is_built_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    pages = {path.parent.relative_to(tmp_path).as_posix(): visible(path) for path in tmp_path.rglob("index.html")}
    # The reference shows defaults as they are in code, and the bases that readers can look up.
    assert not [page for page, text in pages.items() if page.startswith("reference/") and "= ..." in text]
    assert "learning_rate: float | Schedule = 0.0003," in pages["reference/bridge"]
    assert not re.findall(r"Bases:.*Compiled\w+", "".join(pages.values()))
    # jaxenvs.sb3 is the only name for its package, except on the page that says why it has another one.
    assert [page for page, text in pages.items() if "bridge" in text] == ["contributing"]


def visible(path):
    """Return the text that a page shows."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", text))
