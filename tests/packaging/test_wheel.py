"""The wheel is what users get: what is in it, and that it works where nothing else is, away from the checkout."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.installed import CHECKOUT, Installed

PACKAGES = ("jaxenvs", "bridge")
README = (CHECKOUT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^jaxenvs .*", README.partition("```sh\n")[2].partition("```")[0], re.MULTILINE)
# Of these the ones that are there, with the newest of everything; without PyTorch, which would come with CUDA.
OTHER_PYTHONS = ("python3.12", "python3.13", "python3.14")


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


@pytest.mark.thorough
@pytest.mark.parametrize("python", [sys.executable, *OTHER_PYTHONS])
def test_without_pytorch_the_wheel_trains_and_says_what_is_missing(python, wheel, tmp_path):
    if not (path := shutil.which(python)) or subprocess.run([path, "--version"], capture_output=True).returncode:
        pytest.skip(f"{python} is not installed")
    installed = Installed(tmp_path, wheel, python=path, **({"options": ()} if python in OTHER_PYTHONS else {}))
    pure = [block for block in BLOCKS if "sb3" not in block]
    assert pure
    installed.runs_readme(pure)
    where, _ = installed("python", "-c", "import jaxenvs; print(jaxenvs.__file__)")
    assert Path(where.strip()).is_relative_to(installed.bin.parent)
    assert "CartPole-v1" in installed("jaxenvs", "list")[0]
    for name in ("bridge", "jaxenvs.sb3"):
        assert 'pip install "jaxenvs[sb3]"' in installed("python", "-c", f"import {name}", code=1)[1]


@pytest.mark.thorough
def test_with_stable_baselines3_the_wheel_runs_readme(wheel, tmp_path):
    installed = Installed(tmp_path, wheel, "sb3")
    installed.runs_readme(BLOCKS)
    assert [command.split()[1] for command in COMMANDS] == ["train", "record"]
    for command in COMMANDS:
        installed(*command.partition("#")[0].split())
    assert list(installed.folder.rglob("*.gif"))
    assert list(installed.folder.rglob("model.zip"))


def test_the_extra_of_sb3_contrib_adds_it_to_that_of_sb3(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        needs = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist")
    of_extra = {
        extra: {re.split(r"[<>=;\[ ]", each)[0] for each in needs if re.search(rf"extra == .{extra}.", each)}
        for extra in ("sb3", "contrib")
    }
    assert of_extra["contrib"] == of_extra["sb3"] | {"sb3-contrib"}
