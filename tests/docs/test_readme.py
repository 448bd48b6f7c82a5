"""The Python code in README.md and docs/ runs unchanged, and generated pages match the results."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import docs
from benchmarks.pages import plots, tables
from benchmarks.pages.behind import behind
from benchmarks.pages.text import filled_in, marks

CHECKOUT = Path(__file__).parent.parent.parent
README = CHECKOUT / "README.md"
PAGES = [README, *sorted((CHECKOUT / "docs").rglob("*.md"))]
# A block, and what it prints if that stands right behind it.
BLOCK = re.compile(r'```python(?: title="jaxenvs")?\n(.*?)```(?:\n\n```text\n(.*?)```)?', re.DOTALL)
# Not everybody who has the other libraries of a page has these; make test-third-party does. Their blocks import them.
APART = (
    "ale_py",
    "brax",
    "craftax",
    "gymnax",
    "jaxmarl",
    "mujoco_playground",
    "navix",
    "pettingzoo",
    "ray",
    "xminigrid",
)
ABSENT = [re.compile(rf"^(import|from) {name}\b", re.MULTILINE) for name in APART if find_spec(name) is None]
BLOCKS = {
    str(page.relative_to(CHECKOUT)): blocks
    for page in PAGES
    if (
        blocks := [
            (code, printed)
            for code, printed in BLOCK.findall(page.read_text())
            if not any(absent.search(code) for absent in ABSENT)
        ]
    )
}
MARK = "--- end of block"
NEEDS = {
    "docs/coming-from/brax.md": ("brax",),
    "docs/coming-from/envpool.md": ("envpool",),
    "docs/cluster-environments.md": ("ray",),
    "docs/environments/envpool.md": ("envpool",),
    "docs/environments/other-libraries.md": ("jumanji", "pgx"),
    "docs/reference/third-party.md": ("jumanji", "pgx"),
    "docs/self-play.md": ("pgx",),
    "docs/videos.md": ("moviepy",),
}
# What the other pages do, tests of its parts do.
ALWAYS = ("README.md", "docs/environments.md", "docs/reference/jaxenvs.md")


# Each block by itself, in one process: to import PyTorch and JAX takes longer than most of them.
RUN = f"""
import json, sys, warnings

def show(message, category, *where):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == "warnings":
        frame = frame.f_back
    module = frame.f_globals["__name__"]  # whose code warns, whatever line it points to
    if module.partition(".")[0] in ("bridge", "jaxenvs"):
        raise AssertionError(f"{{module}} warns: {{message}}")
    print(category.__name__, message, file=sys.stderr)

warnings.showwarning = show
for block in json.load(sys.stdin):
    exec(block, {{"__name__": "__main__"}})
    print({MARK!r})
"""
# What a block does before JAX runs, as `import bridge` and `reserve_threads()`, comes too late behind another block.
STARTED = {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "0", "PJRT_NPROC": str((os.cpu_count() or 1) + 2)}
# Most pages compile much, and run it once.
STARTED["XLA_FLAGS"] = "--xla_backend_optimization_level=0"


# With other flags, rounding differs, and one training in sixteen ends in a dip of its learning curve.
AS_USERS = {"XLA_FLAGS": "", "JAXENVS_GUARD": "1"}


def run(codes, folder, **environment):
    return subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(codes),
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("page", BLOCKS)
def test_the_code_of_a_page_runs(page, tmp_path):
    """And warns of nothing; README.md's not of what it imports either."""
    for library in NEEDS.get(page, ()):
        pytest.importorskip(library)
    result = run([code for code, _ in BLOCKS[page]], tmp_path, **(AS_USERS if page == "README.md" else STARTED))
    assert result.returncode == 0, result.stderr
    assert page != "README.md" or "warning" not in result.stderr.lower(), result.stderr
    for (code, shown), printed in zip(BLOCKS[page], result.stdout.split(MARK)):
        if shown:
            assert printed.strip() == shown.strip()
        elif "print(evaluate(" in code:
            assert float(printed.split("±")[0].split()[-1]) >= 475, printed
        elif page == "README.md" and "learn.train" in code:
            assert float(printed) >= 475, printed


@pytest.mark.thorough
def test_a_warning_of_ours_is_an_error(tmp_path):
    ours = "import warnings\nexec('warnings.warn(\"slow\")', {'__name__': 'bridge.slow', 'warnings': warnings})"
    result = run(["import warnings\nwarnings.warn('not of ours')", ours], tmp_path)
    assert result.returncode == 1
    assert "UserWarning not of ours" in result.stderr
    assert "bridge.slow warns: slow" in result.stderr


def test_there_are_blocks_for_each_kind_of_reader():
    """Who has an SB3 script, who has an environment, who steps in pure JAX, and who trains and sweeps there."""
    assert len(BLOCKS["README.md"]) >= 2
    assert len(BLOCKS["docs/pure-jax.md"]) >= 2


def test_the_first_screen_of_readme_has_code_and_figures_and_readme_is_short():
    lines = README.read_text().splitlines()
    assert lines.index("```diff") < 12
    assert [line for line in lines[:25] if "x faster in the median" in line]
    assert len(lines) <= 90


@pytest.mark.parametrize("page", [*PAGES, CHECKOUT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_tables_are_those_of_the_results():
    """If not: python -m benchmarks.docs"""
    results = docs.read()
    assert docs.TABLES.read_text() == tables.page(results)
    for path, parts in docs.parts_of_pages(results).items():
        page = path.read_text()
        assert page == filled_in(page, parts), path
        assert [page.count(mark) for name in parts for mark in marks(name)] == [1, 1] * len(parts)


def test_the_plots_are_those_of_the_results():
    """They carry what they show. If not: python -m benchmarks.docs"""
    for name, data in plots.shown_by(docs.read()).items():
        assert plots.shown(plots.FOLDER / f"{name}.svg") == json.loads(json.dumps(data)), name


@pytest.mark.thorough
def test_plots_are_drawn_twice_the_same(tmp_path):
    results = docs.read()
    for folder in ("once", "twice"):
        plots.write(results, tmp_path / folder)
    for drawn in sorted((tmp_path / "once").iterdir()):
        assert drawn.read_bytes() == (tmp_path / "twice" / drawn.name).read_bytes()


def test_the_page_says_where_another_is_ahead():
    """Whatever a new measurement puts before ours, nobody has to write it there."""
    results = docs.read()
    rows = results["training"]["tables"]["training"]
    rows.append({**rows[0], "side": "a newcomer", "steps_per_second": 3 * max(row["steps_per_second"] for row in rows)})
    assert "a newcomer" in [row["library that is ahead"] for row in behind(results)]
    assert "a newcomer" not in [row["library that is ahead"] for row in behind(docs.read())]


def test_the_citation_is_of_this_version():
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (CHECKOUT / "CITATION.cff").read_text()
