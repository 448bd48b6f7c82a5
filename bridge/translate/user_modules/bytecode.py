"""Names in the bytecode of functions: globals, attributes and imports."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator

# Names that read attributes whose names need not be in the code.
COMPUTED_NAMES = {"getattr", "setattr", "delattr", "vars", "dir", "__dict__", "attrgetter", "methodcaller"}


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code and in functions inside it.

    Strings are included too, because of `getattr`.
    """
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str):
            yield from filter(str.isidentifier, constant.split("."))


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
    """Return the names of globals that code reads or writes, and its imports: names, and levels of relative ones."""
    used: set[str] = set()
    imported: set[tuple[str, int]] = set()
    level: object = 0
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"):
            used.add(each.argval)
        elif each.opname == "IMPORT_NAME":
            imported.add((each.argval, level if isinstance(level, int) else 0))
        elif each.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            level = each.argval if isinstance(each.argval, int) else level
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            further, imports = global_names(constant)
            used |= further
            imported |= imports
    return frozenset(used), frozenset(imported)


@functools.lru_cache(maxsize=1024)
def computes_names(code: types.CodeType) -> bool:
    """Return whether code may read attributes by names that are not in it, as `getattr(self, f"layer{i}")` does."""
    instructions = list(dis.get_instructions(code))
    for position, each in enumerate(instructions):
        is_named = each.argval in COMPUTED_NAMES and each.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR"))
        is_method = each.argval in COMPUTED_NAMES and each.opname.startswith("LOAD_METHOD")
        if is_method or (is_named and not (each.argval == "getattr" and _has_constant_name(instructions[position:]))):
            return True
    return any(computes_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


def _has_constant_name(instructions: list[dis.Instruction]) -> bool:
    """Return whether a call of `getattr`, which the first of these instructions loads, has a string as the name."""
    depth, arguments = 0, list[dis.Instruction]()
    for each in instructions:
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return False
        depth += dis.stack_effect(each.opcode, each.arg)
        if each.opname == "CALL" and depth == 1:
            given = arguments[-1:] if each.arg == 2 else arguments[-2:-1]
            default = arguments[-1:]
            is_simple = each.arg == 2 or (each.arg == 3 and all(one.opname.startswith("LOAD_") for one in default))
            is_simple &= all(one.opname not in ("LOAD_ATTR", "LOAD_METHOD") for one in default)
            return is_simple and all(one.opname == "LOAD_CONST" and isinstance(one.argval, str) for one in given)
        if each.opname not in ("PRECALL", "CACHE"):
            arguments.append(each)
    return False
