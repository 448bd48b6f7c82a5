"""Extension of mkdocstrings for the classes and docstrings of this project. mkdocs.yml calls it."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from griffe import (
    AliasResolutionError,
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
    ModulesCollection,
    Object,
    ParameterKind,
)

DECORATORS = ("jaxenvs.environment.struct", "jaxenvs.environment.environment")
STATIC = "jaxenvs.environment.static"
COMPILED = "bridge.algorithms.common.compiled_algorithm.compiled"
OURS, SB3 = ("bridge", "jaxenvs"), ("stable_baselines3", "sb3_contrib")
PUBLIC = ("jaxenvs", "jaxenvs.learn", "jaxenvs.wrappers", "jaxenvs.third_party", "bridge")
SHARED_ARGUMENTS = {
    "policy": 'name or class of the policy, such as "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".',
    "env": "a VecEnv, an environment of Gymnasium or jaxenvs, or an id.",
    "engine": '"auto" compiles what it can, "xla" raises an error if something cannot be compiled, "torch" compiles '
    "nothing.",
}
AS_A_DATACLASS = ExprName("dataclasses.dataclass")
TOGETHER = re.compile(r"^  ([a-z]\w*(?:, \w+)+):", re.MULTILINE)  # "  actor, critic: ..."
PAGE = re.compile(r"docs/([\w/-]+\.md)")
NUMBER = re.compile(r"[\d_.e-]+")
NO_BREAK = "\N{NO-BREAK SPACE}"  # what stands behind a space is taken for a type


class HouseStyle(Extension):
    """Add signatures that are made at runtime, public bases, attributes described together, and links to pages."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:  # which is shown on a page in docs/reference/
            obj.docstring.value = PAGE.sub(titled_link, obj.docstring.value)

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        for parameter in func.parameters:
            if isinstance(parameter.default, ExprName):  # N_TRIALS says less than 20
                number = func.module.members.get(parameter.default.name)
                if isinstance(number, Attribute) and NUMBER.fullmatch(str(number.value)):
                    parameter.default = number.value

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: Any) -> None:
        public = set(public_paths(pkg.modules_collection))
        for cls in classes(pkg):
            cls.extra["house_style"]["bases"] = public_bases(cls, public)
            if not cls.is_alias and any(each.callable_path == COMPILED for each in cls.decorators):
                expand(cls.members["__init__"], path(cls.bases[-1]))

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = TOGETHER.sub(lambda names: typed(cls, names[1].split(", ")), cls.docstring.value)
        if any(path(decorator.value) in DECORATORS for decorator in cls.decorators):
            cls.decorators.append(Decorator(AS_A_DATACLASS, lineno=None, endlineno=None))
            for member in cls.members.values():
                if isinstance(member, Attribute) and path(member.value) == STATIC:
                    member.value = default(member.value)


def titled_link(page: re.Match[str]) -> str:
    """Return a link to a page of docs/, from a page in docs/reference/, with the page's heading as its text."""
    heading = re.search("^# (.+)$", (Path(__file__).parent / page[1]).read_text(), re.MULTILINE)
    return f"[{heading[1]}](../{page[1]})"


def classes(module: Module) -> Iterator[Class]:
    """Yield the classes of a package."""
    yield from module.classes.values()
    for each in module.modules.values():
        if not each.is_alias:
            yield from classes(each)


def public_paths(loaded: ModulesCollection) -> Iterator[str]:
    """Yield the paths at which the objects with public names are defined."""
    for package in PUBLIC:
        if package.partition(".")[0] in loaded:
            yield from (defined_at(loaded, f"{package}.{name}") for name in loaded[package].members)


def defined_at(loaded: ModulesCollection, path: str) -> str:
    """Return the path of what another path imports; that path itself, if it is in a library that is not read."""
    try:
        return loaded[path].final_target.path if loaded[path].is_alias else loaded[path].path
    except (AliasResolutionError, KeyError):
        return path


def public_bases(cls: Class, public: set[str]) -> list[Any]:
    """Return the bases of a class without private ones of the project; if no other is left, their public bases."""
    bases = {defined_at(cls.modules_collection, path(base)): base for base in cls.bases}
    private = [each for each in bases if each.partition(".")[0] in OURS and each not in public]
    if len(private) < len(bases) or not bases:
        return [shown(base) for each, base in bases.items() if each not in private]
    return [base for each in private for base in public_bases(cls.modules_collection[each], public)]


def shown(base: Any) -> Any:
    """Return the base of a class as it is shown: SB3's PPO with its package, as the class has the same name."""
    return base if path(base).partition(".")[0] not in SB3 else path(base)


def expand(init: Function, stock: str) -> None:
    """Replace `*args` and `**kwargs: Unpack[...]` by the arguments of an algorithm of SB3 or sb3-contrib.

    The TypedDict in `Unpack` has their types and descriptions.

    Args:
      init: the constructor.
      stock: the path of the algorithm, whose source has the defaults.
    """
    unpacked = next(each.annotation for each in init.parameters if each.kind is ParameterKind.var_keyword)
    described, engine = keys(init.modules_collection[unpacked.slice.canonical_path]), init.parameters["engine"]
    for name in ("args", "kwargs", "engine"):
        del init.parameters[name]
    texts = dict(SHARED_ARGUMENTS)
    for parameter in init.modules_collection[f"{stock}.__init__"].parameters:
        if parameter.name in described and not parameter.name.startswith("_"):
            attribute = described[parameter.name]
            parameter.annotation, texts[parameter.name] = attribute.annotation, attribute.docstring.value
            init.parameters.add(parameter)
    init.parameters.add(engine)
    library = stock.partition(".")[0].replace("_", "-")
    lines = [f"{name}: {texts[name]}" for name in (each.name for each in init.parameters) if name in texts]
    defaults = "" if library in OURS else f", with the defaults of {library} {version(library)}"
    first = f"Create a model of {stock.rpartition('.')[2]}{defaults}."
    init.docstring = Docstring("\n  ".join([f"{first}\n\nArgs:", *lines]), parent=init, parser="google")


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
