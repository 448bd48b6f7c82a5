"""The wheel is what users get: what is in it, and that it works where nothing else is, away from the checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PACKAGES = ("jaxenvs", "bridge")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the wheel and the sdist, of which the wheel was built."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT])
    return folder


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def test_the_wheel_holds_the_two_packages_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    sources = [path for package in PACKAGES for path in (CHECKOUT / package).rglob("*") if path.is_file()]
    expected = {str(path.relative_to(CHECKOUT)) for path in sources if path.suffix != ".pyc"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"jaxenvs/py.typed", "bridge/py.typed"} <= expected
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_sdist_is_what_the_wheel_is_built_of(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(name).parts[1] for name in archive.getnames()}
    files = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert names == {*PACKAGES, *files}
