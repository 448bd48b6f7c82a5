"""The code of other libraries in docs/coming-from/ runs with these libraries. test_readme.py runs our code there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent.parent / "docs" / "coming-from").glob("*.md"))
PACKAGES = {"Stable-Baselines3": "stable_baselines3", "gymnax": "gymnax", "EnvPool": "envpool"}
NOT_RUN = ("Brax", "PureJaxRL", "CleanRL")  # of which the pages say so, and why
THEIRS = {
    title: code
    for page in PAGES
    for title, code in re.findall(r'```\w+ title="(.*?)"\n(.*?)```', page.read_text(), re.DOTALL)
    if title != "jaxenvs"
}


def test_each_library_is_run_or_said_not_to_be():
    assert set(THEIRS) == {*PACKAGES, *NOT_RUN}
    for title in NOT_RUN:
        (page,) = (page for page in PAGES if page.stem == title.lower())
        assert "The tests do not run the" in " ".join(page.read_text().split())


@pytest.mark.slow
@pytest.mark.thorough  # it is theirs, and shows no behaviour of ours
@pytest.mark.parametrize("title", PACKAGES)
def test_their_lines_run(title, tmp_path):
    if importlib.util.find_spec(PACKAGES[title]) is None:
        pytest.skip(f"{title} is not installed: make test-third-party")
    command = [sys.executable, "-c", THEIRS[title]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
