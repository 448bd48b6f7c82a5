"""Extension of mkdocstrings for the classes and docstrings of this project. mkdocs.yml calls it."""

import re
from typing import Any

from griffe import Attribute, Class, Decorator, Expr, ExprCall, ExprKeyword, ExprName, Extension, Function, Object

DECORATORS = ("jaxenvs.environment.struct", "jaxenvs.environment.environment")
STATIC = "jaxenvs.environment.static"
CONSTRUCTOR = "bridge.algorithms.common.compiled_algorithm.constructor_like"
AS_A_DATACLASS = ExprName("dataclasses.dataclass")
TOGETHER = re.compile(r"^  ([a-z]\w*(?:, \w+)+):", re.MULTILINE)  # "  actor, critic: ..."
PAGE = re.compile(r"docs/([\w/-]+\.md)")
NUMBER = re.compile(r"[\d_.e-]+")
NO_BREAK = "\N{NO-BREAK SPACE}"  # what stands behind a space is taken for a type


class HouseStyle(Extension):
    """Add signatures of classes made at runtime, attributes that are described together, and links to pages."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:  # which is shown on a page in docs/reference/
            obj.docstring.value = PAGE.sub(r"[\g<0>](../\1)", obj.docstring.value)

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        for parameter in func.parameters:
            if isinstance(parameter.default, ExprName):  # N_TRIALS says less than 20
                number = func.module.members.get(parameter.default.name)
                if isinstance(number, Attribute) and NUMBER.fullmatch(str(number.value)):
                    parameter.default = number.value

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = TOGETHER.sub(lambda names: typed(cls, names[1].split(", ")), cls.docstring.value)
        if isinstance(made := cls.members.get("__init__"), Attribute) and path(made.value) == CONSTRUCTOR:
            del cls.members["__init__"]  # that of the class it stands on shows what it adds to Stable-Baselines3's
        if any(path(decorator.value) in DECORATORS for decorator in cls.decorators):
            cls.decorators.append(Decorator(AS_A_DATACLASS, lineno=None, endlineno=None))
            for member in cls.members.values():
                if isinstance(member, Attribute) and path(member.value) == STATIC:
                    member.value = default(member.value)


def typed(cls: Class, names: list[str]) -> str:
    """Return the names in a list of attributes, with their types."""
    types = {str(cls.members[name].annotation): None for name in names if name in cls.members}
    return f"  {f',{NO_BREAK}'.join(names)} ({', '.join(types)}):"


def path(value: Any) -> str | None:
    return value.canonical_path if isinstance(value, Expr) else None


def default(value: ExprCall) -> Any:
    """Return the default of `static(default=...)`, or None."""
    return next((each.value for each in value.arguments if isinstance(each, ExprKeyword)), None)
