"""Extension of mkdocstrings for the classes and docstrings of this project. mkdocs.yml calls it."""

import re
from typing import Any

from griffe import (
    Attribute,
    Class,
    Decorator,
    Docstring,
    Expr,
    ExprCall,
    ExprKeyword,
    ExprName,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Object,
    Parameter,
    ParameterKind,
)

DECORATORS = ("jaxenvs.environment.struct", "jaxenvs.environment.environment")
STATIC = "jaxenvs.environment.static"
CONSTRUCTOR = "bridge.algorithms.common.compiled_algorithm.constructor_like"
UNPACK = "typing.Unpack"
SHARED_ARGUMENTS = """Create the model.

Args:
  policy: name or class of the policy, such as "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
  env: a VecEnv, an environment of Gymnasium or jaxenvs, or an id.
  engine: "auto" compiles what it can, "xla" raises an error if something cannot be compiled, "torch" compiles nothing.
"""
AS_A_DATACLASS = ExprName("dataclasses.dataclass")
TOGETHER = re.compile(r"^  ([a-z]\w*(?:, \w+)+):", re.MULTILINE)  # "  actor, critic: ..."
PAGE = re.compile(r"docs/([\w/-]+\.md)")
NUMBER = re.compile(r"[\d_.e-]+")
NO_BREAK = "\N{NO-BREAK SPACE}"  # what stands behind a space is taken for a type


class HouseStyle(Extension):
    """Add signatures that are made at runtime, attributes that are described together, and links to pages."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:  # which is shown on a page in docs/reference/
            obj.docstring.value = PAGE.sub(r"[\g<0>](../\1)", obj.docstring.value)

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        for parameter in func.parameters:
            if isinstance(parameter.default, ExprName):  # N_TRIALS says less than 20
                number = func.module.members.get(parameter.default.name)
                if isinstance(number, Attribute) and NUMBER.fullmatch(str(number.value)):
                    parameter.default = number.value

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: Any) -> None:
        if "algorithms" in pkg.members:
            for module in pkg["algorithms"].modules.values():
                for cls in module.classes.values():
                    if isinstance(init := cls.members.get("__init__"), Function) and is_constructor(init):
                        expand(init)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = TOGETHER.sub(lambda names: typed(cls, names[1].split(", ")), cls.docstring.value)
        if any(path(decorator.value) in DECORATORS for decorator in cls.decorators):
            cls.decorators.append(Decorator(AS_A_DATACLASS, lineno=None, endlineno=None))
            for member in cls.members.values():
                if isinstance(member, Attribute) and path(member.value) == STATIC:
                    member.value = default(member.value)


def is_constructor(function: Function) -> bool:
    return any(decorator.callable_path == CONSTRUCTOR for decorator in function.decorators)


def expand(init: Function) -> None:
    """Replace `*args` and `**kwargs: Unpack[...]` by the keys of the TypedDict, each described by its docstring."""
    unpacked = next(each.annotation for each in init.parameters if each.kind is ParameterKind.var_keyword)
    for name in ("args", "kwargs"):
        del init.parameters[name]
    lines, engine = [SHARED_ARGUMENTS], init.parameters["engine"]
    del init.parameters["engine"]
    for name, attribute in keys(init.modules_collection[unpacked.slice.canonical_path]).items():
        if not name.startswith("_"):
            init.parameters.add(
                Parameter(name, annotation=attribute.annotation, kind=ParameterKind.keyword_only, default="...")
            )
            lines.append(f"  {name}: {attribute.docstring.value}\n")
    init.parameters.add(engine)
    init.docstring = Docstring("".join(lines), parent=init, parser="google")


def keys(cls: Class) -> dict[str, Attribute]:
    """Return the keys of a TypedDict; keys of the classes that it extends come first."""
    found: dict[str, Attribute] = {}
    for base in cls.resolved_bases:
        found |= keys(base)
    return found | {name: member for name, member in cls.members.items() if isinstance(member, Attribute)}


def typed(cls: Class, names: list[str]) -> str:
    """Return the names in a list of attributes, with their types."""
    types = {str(cls.members[name].annotation): None for name in names if name in cls.members}
    return f"  {f',{NO_BREAK}'.join(names)} ({', '.join(types)}):"


def path(value: Any) -> str | None:
    return value.canonical_path if isinstance(value, Expr) else None


def default(value: ExprCall) -> Any:
    """Return the default of `static(default=...)`, or None."""
    return next((each.value for each in value.arguments if isinstance(each, ExprKeyword)), None)
