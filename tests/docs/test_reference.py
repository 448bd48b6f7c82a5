"""Every public name has a docstring that names its arguments, an entry in docs/reference, and an example there.

That the examples run is shown by tests/docs/test_readme.py, as of every page.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bridge
import jaxenvs

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"
OURS = ("bridge", "jaxenvs")
PACKAGES = ("jaxenvs", "jaxenvs.learn", "jaxenvs.wrappers", "jaxenvs.third_party", "bridge")
LATER = {"bridge": bridge.CONTRIB}  # public too, but imported when they are asked for
SECTIONS = ("Args:", "Attributes:")


@cache
def public_names() -> dict[str, Any]:
    """What each public name stands for, by the name with its package."""
    modules = {package: importlib.import_module(package) for package in PACKAGES}
    return {
        f"{package}.{name}": getattr(module, name)
        for package, module in modules.items()
        for name in (*module.__all__, *LATER.get(package, ()))
    }


def is_ours(value: Any) -> bool:
    return getattr(value, "__module__", "").partition(".")[0] in OURS


def described(docstring: str | None) -> set[str]:
    """The names in those sections of a docstring that describe arguments."""
    names, inside = set(), False
    for line in inspect.cleandoc(docstring or "").splitlines():
        if line and not line.startswith(" "):
            inside = line in SECTIONS
        elif inside and (entry := re.match(r"  (\w[\w, ]*):", line)):
            names.update(entry[1].split(", "))
    return names


def arguments(value: Any) -> list[str]:
    """Those that somebody passes: neither `self`, nor the rest that a class passes on to its base."""
    if isinstance(value, ModuleType) or (isinstance(value, type) and issubclass(value, Exception)):
        return []
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(value).parameters.values()
    return [each.name for each in parameters if not (isinstance(value, type) and each.kind in rest)]


def undescribed(value: Any) -> list[str]:
    """Arguments that no docstring describes: of a class, its own, its constructor's, or that of a class it is made of.

    What a class takes over from another library, which its docstring names, is described there.
    """
    if not isinstance(value, type):
        names = described(value.__doc__)
    else:
        bases = [base for base in value.__mro__ if is_ours(base)]
        names = set().union(*(described(base.__doc__) | described(base.__init__.__doc__) for base in bases))
        for base in value.__mro__:
            if not is_ours(base) and f"`{base.__module__.partition('.')[0]}.{base.__name__}`" in value.__doc__:
                names.update(inspect.signature(base.__init__).parameters)
    return [name for name in arguments(value) if name not in names]


@cache
def pages() -> dict[Path, tuple[tuple[Any, ...], frozenset[str]]]:
    """Of each page, what it has entries of, and the names that its examples use."""
    return {page: (tuple(map(lookup, entries(page))), used(page)) for page in sorted(REFERENCE.glob("*.md"))}


def entries(page: Path) -> list[str]:
    """Of mkdocstrings, and headings of what another library's documentation describes."""
    return re.findall(r"^(?:::: |#.* { #)(\S+)(?: })?$", page.read_text(), re.MULTILINE)


def lookup(path: str) -> Any:
    """What a dotted path stands for: that of a package, module, class, function or method."""
    owner, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(owner)
    except ImportError:
        return getattr(lookup(owner), name)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def used(page: Path) -> frozenset[str]:
    """The names in the code of a page, without its comments and texts."""
    names = set()
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Name):
                names.add(node.id)
    return frozenset(names)


def is_documented(value: Any) -> bool:
    """Whether a docstring was written; Python makes one of the fields of a dataclass that has none."""
    return bool(value.__doc__) and not value.__doc__.startswith(f"{getattr(value, '__name__', '')}(")


def test_every_public_name_has_a_docstring():
    assert [name for name, value in public_names().items() if not is_documented(value)] == []


def test_every_argument_is_described():
    missing = {name: undescribed(value) for name, value in public_names().items() if is_ours(value)}
    assert {name: names for name, names in missing.items() if names} == {}


def test_every_public_name_has_one_entry():
    found = [value for values, _ in pages().values() for value in values]
    count = {name: sum(value is each for each in found) for name, value in public_names().items()}
    assert {name: number for name, number in count.items() if number != 1} == {}


def test_every_public_name_has_an_example():
    """On the page of its entry."""
    examples = {
        name: any(
            name.rpartition(".")[2] in names
            for values, names in pages().values()
            if any(value is each for each in values)
        )
        for name, value in public_names().items()
    }
    assert [name for name, has_one in examples.items() if not has_one] == []


def documented(first: int, second: int = 0) -> None:
    """With one argument described.

    Args:
      first: described.
    """


class Sub(bridge.PPO):
    """With arguments of a class that this docstring does not name."""


@jaxenvs.struct
class Bare:
    first: float


@pytest.mark.parametrize(
    ("value", "missing"), [(Bare, ["first"]), (documented, ["second"]), (Sub, ["learning_rate", "n_steps"])]
)
def test_what_is_not_described_is_found(value, missing):
    assert undescribed(value)[:2] == missing
    assert is_documented(value) is (value is not Bare)
