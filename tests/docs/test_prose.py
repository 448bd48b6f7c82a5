"""Prose that a reader has to read twice does not come back: docstrings, comments, error messages and pages."""

import ast
import re
import tokenize

import pytest

from tests.packaging.installed import CHECKOUT

PRODUCT = [path for folder in ("jaxenvs", "bridge") for path in sorted((CHECKOUT / folder).rglob("*.py"))]
PAGES = [
    *(path for path in sorted((CHECKOUT / "docs").rglob("*.md")) if path.name != "tables.md"),
    *(CHECKOUT / f"{name}.md" for name in ("README", "CONTRIBUTING")),
]
# A first sentence says what something does or is. These begin a part of a sentence, whose rest the reader has to guess.
UNPLAIN = re.compile(
    r"(Of|Those|That|As|What|Whether|Who|How|Where|The same|SB3's|Ours|Theirs|For|In|With|See|Like|So|And|Or)\b"
    r"|(Args|Raises|Returns|Attributes):"
)
# Words that stood for terms of SB3, Gymnasium and optax, or hid who acts; and what to write.
RETIRED = {
    r"lanes?": "environment or sub-environment",
    r"nobody|somebody|anybody|whoever": "name the agent: user code, a callback, JAX",
    r"in the place of": "instead of",
    r"but for": "except for",
    r"as ever|of then|of now": "as before, current",
    r"to be had": "available",
    r"hands? over|handed over": "sync to PyTorch",
    r"gives? back|given back": "return",
    r"goes on": "continue",
    r"so many": "this many",
    r"told": "reported",
    r"of (one's|their) own": "custom, separate",
}


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def messages(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def comments(path):
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def prose_of(path):
    """Return pairs of a line and its text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        without_code = re.sub(r"^ *```.*?^ *```", lambda code: "\n" * code[0].count("\n"), text, flags=re.S | re.M)
        return list(enumerate(without_code.splitlines(), 1))
    tree = ast.parse(text)
    return [*docstrings(tree), *messages(tree), *comments(path)]


def retired_in(path):
    for line, text in prose_of(path):
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|^ *[\w*, ]+:", "", text, flags=re.M)  # names in code stay
        for pattern, better in RETIRED.items():
            for found in re.finditer(rf"\b({pattern})\b", plain, re.IGNORECASE):
                yield f"{path.relative_to(CHECKOUT)}:{line}: {found[0]!r}: write {better}"


def test_every_docstring_begins_with_a_plain_sentence():
    found = [
        f"{path.relative_to(CHECKOUT)}:{line}: {text.splitlines()[0]}"
        for path in PRODUCT
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if UNPLAIN.match(text) or not text.split("\n\n")[0].endswith((".", ":", "!", "?"))
    ]
    assert not found, "\n".join(found)


# Names that stood for Gymnasium's terms, or hid what they are; and what to write.
RETIRED_NAMES = {r"lanes?": "env_states, env_indices, num_envs or env_keys", r"foreign": "third_party"}


def retired_names_in(path):
    """Yield the lines that have a retired name as a word of an identifier or a text, such as `lane` in `lane_key`."""
    file = path.relative_to(CHECKOUT).as_posix()
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for name, better in RETIRED_NAMES.items():
            for found in re.finditer(rf"(?<![a-z])({name})(?![a-z])", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text), re.I):
                yield f"{file}:{line}: {found[0]!r}: write {better}"


def test_retired_names_do_not_come_back():
    found = [each for path in PRODUCT if path.is_relative_to(CHECKOUT / "jaxenvs") for each in retired_names_in(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_retired"),
    [
        ("for lane in range(3)", True),
        ("state.lane_key", True),
        ("MOST_LANES", True),
        ("class ReplayLanes", True),
        ("from jaxenvs.foreign import ids", True),
        ("ForeignEnvironment", True),
        ("the plane of a canvas", False),
        ("airplanes", False),
        ("canvas.planes", False),
    ],
)
def test_retired_names_are_found_as_words(text, is_retired, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "CHECKOUT", tmp_path)
    (tmp_path / "module.py").write_text(text)
    assert bool([*retired_names_in(tmp_path / "module.py")]) == is_retired


def other_names_in(path):
    """Yield the lines that call `jaxenvs.sb3` by the name of its package, except in links."""
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        plain = re.sub(r"\]\([^)]*\)|^::: .*|^(#+ .*)\{ #.*", r"\1", text)
        if re.search(r"\bbridge\b", plain, re.IGNORECASE):
            yield f"{path.relative_to(CHECKOUT)}:{line}: {plain.strip()[:100]}"


def test_pages_plots_and_examples_have_one_name_for_the_package():
    files = [CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md"]
    files += [path for suffix in ("md", "svg") for path in (CHECKOUT / "docs").rglob(f"*.{suffix}")]
    files += [path for suffix in ("py", "c") for path in (CHECKOUT / "examples").rglob(f"*.{suffix}")]
    found = [each for path in sorted(files) for each in other_names_in(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("paths", [PRODUCT, PAGES], ids=["code", "pages"])
def test_retired_words_do_not_come_back(paths):
    found = [each for path in paths for each in retired_in(path)]
    assert not found, "\n".join(found)
