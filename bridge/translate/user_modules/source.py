"""The syntax tree of a function, from its source file, and what stands in it."""

from __future__ import annotations
import __future__

import ast
import collections
import functools
import linecache
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


class Definition(NamedTuple):
    """Syntax tree of a function, and the name of the class around it, which is part of names such as `__scale`."""

    node: ast.FunctionDef | ast.Lambda
    owner: str


def definition_of(function: types.FunctionType) -> Definition | None:
    """Return the definition of a function; None if its source is not found, or is not the code that runs."""
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    codes, definitions = _parsed(source, code.co_flags & _FUTURE)
    found = definitions[code.co_name, code.co_firstlineno] if code in codes else []
    if len(found) > 1:  # lambdas in one line: the innermost that has all positions of the code
        positions = [each for each in code.co_positions() if each[3]]
        found = [each for each in found if positions and all(_is_inside(at, each.node) for at in positions)][-1:]
    return found[0] if len(found) == 1 else None


def _is_inside(at: tuple[Any, ...], node: ast.FunctionDef | ast.Lambda) -> bool:
    body: Any = node.body
    line, end_line, column, end_column = at
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return start <= (line, column) and (end_line, end_column) <= end


@functools.lru_cache(maxsize=16)
def _parsed(source: str, flags: int) -> tuple[set[types.CodeType], dict[tuple[str, int], list[Definition]]]:
    """Return all code objects of a file as it is compiled now, and its functions by their names and first lines."""
    codes: set[types.CodeType] = set()
    definitions: dict[tuple[str, int], list[Definition]] = collections.defaultdict(list)
    try:
        tree = ast.parse(source)
        todo = [compile(tree, "<source>", "exec", flags, dont_inherit=True)]
    except (SyntaxError, ValueError):
        return codes, definitions
    for code in todo:
        codes.add(code)
        todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]

    def search(node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            definitions[getattr(node, "name", "<lambda>"), first].append(Definition(node, owner))
        for child in ast.iter_child_nodes(node):
            search(child, node.name if isinstance(node, ast.ClassDef) else owner)

    search(tree, "")
    return codes, definitions


def stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of variables that are set, but not of the variables of comprehensions."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not hasattr(node, "generators"):
            yield from stored(ast.iter_child_nodes(node))


def assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names of variables that statements set to one expression, and the expression."""
    for each in (each for node in nodes for each in ast.walk(node)):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from ((target.id, each.value) for target in targets if isinstance(target, ast.Name))


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args
