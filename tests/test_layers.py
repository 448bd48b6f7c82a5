"""Imports go one way: a package imports packages below it, never above. No file, function or folder is too large."""

import ast
import graphlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom up. Modules in one line may import each other.
FLOORS = [
    ["jaxenvs.jax_names", "jaxenvs.picture_size", "jaxenvs.transformations"],
    [
        "jaxenvs.environment",
        "jaxenvs.spaces",
        "jaxenvs.compilation",
        "jaxenvs.arguments",
        "jaxenvs.arrays",
        "jaxenvs.drawing",
        "jaxenvs.physics2d",
        "jaxenvs.files",
    ],
    ["jaxenvs.checks"],
    ["jaxenvs.vector"],
    ["jaxenvs.parameters"],
    ["jaxenvs.wrappers"],
    ["jaxenvs.registry", "jaxenvs.rollout"],
    ["jaxenvs.envs", "jaxenvs.gym", "jaxenvs.third_party"],
    ["jaxenvs"],
    ["jaxenvs.cli.user_errors"],
    ["jaxenvs.learn"],
    [
        "bridge.errors",
        "bridge.contrib",
        "bridge.observations",
        "bridge.sb3",
        "bridge.dlpack",
        "bridge.randomness",
        "bridge.configuration",
        "bridge.environment_ids",
        "bridge.libraries",
        "bridge.originals",
        "bridge.stock",
    ],
    ["bridge.vec_env", "bridge.translate"],
    ["bridge.replay"],
    ["bridge.host_env", "bridge.wrappers"],
    ["bridge.self_play"],
    ["bridge.factory"],
    ["bridge.atari"],
    ["bridge.engine"],
    ["bridge.algorithms"],
    [
        "bridge.evaluation",
        "bridge.checkpoint",
        "bridge.imitation",
        "bridge.results",
    ],
    ["bridge.seeds"],
    ["bridge"],
    ["jaxenvs.sb3"],  # another name of `bridge`, and the one module of jaxenvs that imports it
    ["bridge.app"],
    ["jaxenvs.cli"],  # its commands are those of `jaxenvs` and of `bridge.app`
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Sizes that can be read in one sitting. `__init__.py` counts as a file of its folder.
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE, MOST_FILES_OF_A_FOLDER = 70, 400, 14
PRODUCT = ("jaxenvs", "bridge", "benchmarks", "docs", "examples")
# File names that exist twice, except for algorithms: their settings are in `learn`, and their class is in `bridge`.
SHARED_NAMES = {
    "compiled_training": "one for each family of algorithms",
    "host_loop": "one for each family of algorithms",
    "loop": "one for each family of algorithms, around that of all trainings",
    "settings": "one for each family of algorithms, on top of those of all",
    "sb3": "jaxenvs.sb3 is public",
    "files": "the core's, and those of a replay buffer",
    "hindsight": "of a store on the device, and of SB3's",
    "episode_index": "of a store on the device, and of SB3's arrays",
}


def room_of(module):
    """The longest name of a room that a module is in."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next(name for name in names if name in FLOOR)


def modules():
    for package in ("jaxenvs", "bridge"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path):
    """What a file imports of this project, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from bridge import engine` imports a module, `from jaxenvs import VectorEnv` what the package shows.
            base = ROOT / Path(*node.module.split("."))
            is_module = [(base / f"{alias.name}.py").exists() or (base / alias.name).is_dir() for alias in node.names]
            names = [f"{node.module}.{a.name}" if is_sub else node.module for a, is_sub in zip(node.names, is_module)]
        yield from (name for name in names if name.split(".")[0] in ("jaxenvs", "bridge"))


@pytest.mark.parametrize(("path", "module"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_module_imports_no_room_above_its_own(path, module):
    own = room_of(module)
    above = [name for name in imports(path) if FLOOR[room_of(name)] > FLOOR[own]]
    assert not above, f"{module}, in {own}, imports {above}"


def test_every_module_is_in_a_room():
    assert {room_of(module) for _, module in modules()} <= set(FLOOR)
    # None may be a room only because its package is one: a new file of the core is put on a floor of its own.
    stray = [m for _, m in modules() if room_of(m) in ("jaxenvs", "bridge") and m not in ("jaxenvs", "bridge")]
    assert not stray


@pytest.mark.parametrize(
    "path",
    [
        *(ROOT / "bridge/app").glob("*.py"),
        *(ROOT / "bridge/app/training").glob("*.py"),
        ROOT / "jaxenvs/cli/__init__.py",
    ],
    ids=lambda path: path.stem,
)
def test_the_command_uses_no_private_name(path):
    used = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    others = [node for node in used if ast.unparse(node.value) not in ("self", "cls", "super()")]
    assert not [ast.unparse(node) for node in others if node.attr.startswith("_") and not node.attr.startswith("__")]


def files(*folders):
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def lines_of(function):
    return function.end_lineno - min(each.lineno for each in [function, *function.decorator_list]) + 1


def test_no_function_is_too_long():
    functions = [
        (file, node)
        for file, text in files(*PRODUCT).items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {(file, node.name): lines_of(node) for file, node in functions if lines_of(node) > MOST_LINES_OF_A_FUNCTION}
    assert not long


def test_no_file_is_too_long():
    lines = {file: len(text.splitlines()) for file, text in files(*PRODUCT, "tests").items()}
    assert not {file: number for file, number in lines.items() if number > MOST_LINES_OF_A_FILE}


def test_no_folder_is_too_full():
    numbers = Counter(file.rpartition("/")[0] for file in files(*PRODUCT, "tests"))
    assert not {folder: number for folder, number in numbers.items() if number > MOST_FILES_OF_A_FOLDER}


def test_no_name_of_a_file_stands_twice():
    folders = defaultdict(list)
    for path, _ in modules():
        if path.name not in ("__init__.py", "__main__.py"):
            folders[path.stem].append(path.parent.relative_to(ROOT).as_posix())
    twice = {name: where for name, where in folders.items() if len(where) > 1 and name not in SHARED_NAMES}

    def is_of_an_algorithm(where):
        ours, theirs = sorted(where) if len(where) == 2 else ("", "")
        return ours == "bridge/algorithms" and theirs.startswith("jaxenvs/learn/o")

    assert not {name: where for name, where in twice.items() if not is_of_an_algorithm(where)}


def test_no_files_import_each_other():
    """Neither when they run, in functions either, nor for type checkers alone."""
    known = {module for _, module in modules()}
    graph = {}
    for path, module in modules():
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= inner & known or {node.module}
        graph[module] = names & known - {module}
    assert sum(map(len, graph.values())) > 1000  # it sees what files import
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"Files import each other: {' <- '.join(error.args[1])}")
