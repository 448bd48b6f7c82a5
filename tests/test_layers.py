"""Imports go one way: a room of the house imports rooms below it, never one above."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up. Modules that stand in one line may import each other.
FLOORS = [
    ["jaxenvs.jax_names"],
    [
        "jaxenvs.environment",
        "jaxenvs.spaces",
        "jaxenvs.compilation",
        "jaxenvs.arguments",
        "jaxenvs.arrays",
        "jaxenvs.drawing",
        "jaxenvs.physics2d",
        "jaxenvs.files",
        "jaxenvs.film",
    ],
    ["jaxenvs.checks"],
    ["jaxenvs.vector"],
    ["jaxenvs.parameters"],
    ["jaxenvs.wrappers"],
    ["jaxenvs.registry", "jaxenvs.rollout"],
    ["jaxenvs.envs", "jaxenvs.gym", "jaxenvs.foreign"],
    ["jaxenvs"],
    ["jaxenvs.cli"],
    ["jaxenvs.learn"],
    ["jaxenvs.doctor"],
    [
        "bridge.errors",
        "bridge.contrib",
        "bridge.observations",
        "bridge.sb3",
        "bridge.dlpack",
        "bridge.randomness",
        "bridge.configuration",
    ],
    ["bridge.vec_env", "bridge.translate"],
    ["bridge.replay.store"],
    ["bridge.replay.data"],
    ["bridge.replay"],
    ["bridge.host_env", "bridge.wrappers", "bridge.buffers"],
    ["bridge.factory"],
    ["bridge.atari"],
    ["bridge.engine"],
    ["bridge.algorithms"],
    [
        "bridge.evaluation",
        "bridge.evaluation_on_host",
        "bridge.evaluation_program",
        "bridge.checkpoint",
        "bridge.results",
    ],
    ["bridge.seeds"],
    ["bridge"],
    ["jaxenvs.sb3"],  # another name of `bridge`, and the one module of jaxenvs that imports it
    ["bridge.app"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


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
    "path", [*(ROOT / "bridge/app").glob("*.py"), ROOT / "jaxenvs/cli.py"], ids=lambda path: path.stem
)
def test_the_command_uses_no_private_name(path):
    used = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    others = [node for node in used if ast.unparse(node.value) not in ("self", "cls", "super()")]
    assert not [ast.unparse(node) for node in others if node.attr.startswith("_") and not node.attr.startswith("__")]
