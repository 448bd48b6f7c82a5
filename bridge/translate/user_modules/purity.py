"""Purity: a function is pure, or Python runs it.

A pure function only calculates: it may run at another time, more often, or as a compiled function instead. Functions
are read, not run, and what is not listed is impure:

* All that a function can get at is checked where it is read: numbers, parameters, modules of the same network, pure
  functions, and containers of these. So it makes no difference what the function does with it.
* Methods of anything else, such as `x.view`, are those that tensors, numbers and containers have.
* Only a container that the function makes is changed, by its name. Tensors that are changed are left to tracing.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import os
import types
from collections.abc import Iterable, Sequence
from typing import Any

from stable_baselines3.common.policies import BaseModel
from torch import nn

from bridge.libraries import is_library, root_of
from bridge.translate.user_modules.reads import (
    ATTRIBUTES,
    CALCULATIONS,
    CONTAINERS,
    FILLING,
    IN_PLACE,
    LISTED,
    LOOKING,
    MAKING,
    METHODS,
    MISSING,
    MODULE_METHODS,
    MOST,
    NUMBERS,
    OF_MODULES,
    OPERATORS,
    PASSIVE,
    READING,
    SOURCES,
    Impure,
    Known,
    Reads,
    changes_by_itself,
    hidden_names,
    require_no_module,
    users_names,
)
from bridge.translate.user_modules.source import assigned, definition_of, is_super, stored


class Purity:
    """Result of reading functions: whether they are pure, and what they read.

    Attributes:
      reads: what they read besides their arguments, up to the first line that is not known to be pure.
      reason: what this line does, as a sentence; None if they are pure.
    """

    def __init__(self, *functions: object, modules: Iterable[nn.Module] = ()) -> None:
        """Read functions of numbers, such as schedules, and the forwards of modules, which may call each other."""
        self.reads = Reads()
        self.reason: str | None = None
        self._modules = {id(each): each for each in modules}
        self._was_read: set[object] = set()
        try:
            for each in functions:
                self.require_pure(Known(each))
            for module in self._modules.values():
                self._require_pure_module(module)
        except Exception as error:  # whatever happens, it is not known to be pure
            self.reason = f"The code is not known to be pure: {error}."

    def _require_pure_module(self, module: nn.Module) -> None:
        cls = type(module)
        self.reads.classes(cls.__mro__)
        # SB3's policies are translated by hand.
        if not is_library(root_of(cls)) and not isinstance(module, BaseModel):
            names = users_names(cls) - PASSIVE
            special = {name for name in names if name[:2] == name[-2:] == "__"}
            if own := special | MODULE_METHODS & (names | {*vars(module)}):
                raise Impure(f"{cls.__name__} has its own {min(own)}")
            self.require(self.attribute(module, "forward") or Known(None))

    # --- Objects

    def require(self, known: Known, is_looked_at: bool = False) -> None:
        """Refuse an object unless a function may get at it, or may look at it and forget it."""
        it, cls = known.it, type(known.it)
        if cls in CONTAINERS:
            if cls not in (tuple, frozenset) and not is_looked_at:
                raise Impure(f"passes on a {cls.__name__}, in which something might be changed")
            if len(it) > MOST:
                raise Impure(f"reads a {cls.__name__} of more than {MOST} items, too many to compare each time")
            self.reads.content(it)
            for each in [*it, *it.values()] if isinstance(it, dict) else it:
                self.require(Known(each))
        elif isinstance(it, nn.Module | types.FunctionType | types.MethodType | functools.partial):
            self.require_pure(known)
        elif cls not in NUMBERS and id(it) not in CALCULATIONS:
            raise Impure(f"reads a {cls.__name__}, which is not listed")

    def require_pure(self, known: Known, args: Sequence[Known | None] = ()) -> None:
        """Refuse to call an object unless it is known to be pure.

        Args:
          args: the first arguments; None for those that are not known before the call.
        """
        it, args = known.it, args if known.owner is None else (Known(known.owner), *args)
        if isinstance(it, nn.Module):
            if id(it) not in self._modules or isinstance(it, BaseModel):  # the latter is translated by hand, not read
                raise Impure(f"uses a {type(it).__name__} that is not a submodule")
        elif id(it) in CALCULATIONS or it is None:  # the latter in a branch that runs where there is a layer
            for each in args:
                self.require(each or Known(None))
        elif isinstance(it, types.FunctionType):
            self._require_pure_function(it, args)
        elif isinstance(it, types.MethodType):
            self.require_pure(Known(it.__func__), (Known(it.__self__), *args))
        elif type(it) is functools.partial:
            require_no_module((it.func, it.args, it.keywords))
            for each in it.keywords.values():
                self.require(Known(each))
            self.require_pure(Known(it.func), (*map(Known, it.args), *args))
        else:
            method = next((vars(cls)["__call__"] for cls in type(it).__mro__ if "__call__" in vars(cls)), None)
            if not isinstance(method, types.FunctionType):
                raise Impure("calls a function that is not listed")
            self.reads.class_of(it)
            self._require_pure_function(method, (known, *args))

    def _require_pure_function(self, function: types.FunctionType, args: Sequence[Known | None]) -> None:
        owner: Any = args[0].it if args and args[0] is not None else None
        base = next((each for each in type(owner).__mro__ if vars(each).get("forward") is function), None)
        root = str(function.__globals__.get("__name__")).partition(".")[0]
        key = id(function), *(each and id(each.it) for each in args)
        if base is not None and is_library(root_of(base)):
            overridden = users_names(type(owner)) & {*dir(base)} - PASSIVE - {"forward", "extra_repr"}
            if own := overridden | hidden_names(owner, base):
                raise Impure(f"{type(owner).__name__} overrides {min(own)} of {base.__name__}, and not forward")
        elif is_library(root) and root not in SOURCES:
            raise Impure("calls a function that is not listed")
        elif key not in self._was_read:
            self._was_read.add(key)
            _Reading(self, function, args)

    def require_method(self, name: str) -> None:
        """Refuse modules with an impure method of a name, because a tensor with such a method may be a module."""
        for module in self._modules.values() if name not in self._was_read else ():
            self._was_read.add(name)
            if name in users_names(type(module)) | vars(module).keys():
                self.require(self.attribute(module, name) or Known(None))

    def attribute(self, it: Any, name: str, bases: Sequence[type] = ()) -> Known | None:
        """Return an attribute of an object, or MISSING; None for a parameter, and for what a property returns.

        Args:
          bases: where `super()` finds it.
        """
        if isinstance(it, types.ModuleType):
            return Known(self.reads.item(vars(it), name))
        is_class, is_module = isinstance(it, type), isinstance(it, nn.Module)
        own = {} if is_class or bases else getattr(it, "__dict__", {})
        bases = bases or (it.__mro__ if is_class else type(it).__mro__)
        self.reads.classes(bases)
        for each in type(it).__mro__:
            if is_class and not is_library(root_of(each)):
                raise Impure(f"reads an attribute of a class of a {each.__name__}")
            access = [vars(each).get(special) for special in ("__getattribute__", "__getattr__")]
            if each is not nn.Module and any(isinstance(special, types.FunctionType) for special in access):
                raise Impure(f"reads an attribute by code of {each.__name__}")
        if is_module:
            self.require(Known(it))
        elif not is_class:
            if changes_by_itself(it):
                raise Impure(f"reads an attribute of a {type(it).__name__}, which may change in a compiled function")
            self.reads.attributes(it, "__class__", "__dict__")
        found = next((vars(each)[name] for each in bases if name in vars(each)), MISSING)
        if not is_class:
            if type(found) is property:
                self.require_pure(Known(found.fget), [Known(it)])
                return None
            if type(found) is types.MemberDescriptorType:
                return Known(self.reads.attribute(it, name))
            if hasattr(type(found), "__set__"):
                raise Impure(f"reads an attribute that is a {type(found).__name__}")
        if is_module and own and found is MISSING and type(own["_parameters"].get(name)) is nn.Parameter:
            return None
        for names in (own, own["_modules"], own["_buffers"]) if is_module and own and found is MISSING else (own,):
            # Modules are compared as a whole, but `==` takes 1 and True for the same.
            is_compared = is_module and type(names.get(name)) not in NUMBERS
            found_there = names.get(name, MISSING) if is_compared else self.reads.item(names, name)
            if found_there is not MISSING:
                return Known(found_there)
        if isinstance(found, types.FunctionType) and not is_class:
            if not is_module:
                raise Impure(f"calls a method of a {type(it).__name__}")
            return Known(found, it)
        if isinstance(found, staticmethod):
            found = found.__func__
        elif hasattr(type(found), "__get__") and not isinstance(found, types.FunctionType):
            raise Impure(f"reads an attribute that is a {type(found).__name__}")
        return Known(found)


class _Reading(ast.NodeVisitor):
    """Reading of one function. `visit` returns the object that an expression is; None for a value of the call."""

    def __init__(self, purity: Purity, function: types.FunctionType, args: Sequence[Known | None]) -> None:
        self._purity, self._function = purity, function
        definition = definition_of(function)
        if definition is None:
            raise Impure(f"calls {function.__qualname__}, whose source is not found, or is not what runs")
        purity.reads.attributes(function, "__code__", "__defaults__", "__kwdefaults__")
        if function.__kwdefaults__:
            purity.reads.content(function.__kwdefaults__)
        node, self._class = definition
        body = node.body if isinstance(node, ast.FunctionDef) else [ast.Return(node.body, lineno=node.lineno)]
        parameters = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        counts = collections.Counter(stored(body))
        made = collections.Counter(name for name, value in assigned(body) if type(value).__name__ in MAKING)
        self._made = {name for name, count in made.items() if count == counts[name]}.difference(parameters)
        self._first = parameters[0] if parameters else ""
        self._known = {name: arg for name, arg in zip(parameters, args) if arg is not None and name not in counts}
        for name, arg in zip([*parameters, *map(str, range(len(args)))], args):
            if name not in self._known:
                purity.require(arg or Known(None))
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            purity.require(Known(default))
        further = (*node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        names = {*parameters, *(each.arg for each in further if each is not None)}
        self._locals = {*names, *counts} - self._known.keys()
        for each in body:
            self.visit(each)

    def visit(self, node: ast.AST) -> Known | None:
        """Visit an expression or a statement, and add the line to the reason for which it is impure."""
        try:
            found: Known | None = super().visit(node)
            if found is not None and found.it is MISSING:
                raise Impure("reads something that is not set")
        except Impure as impure:
            if not impure.has_line and hasattr(node, "lineno"):
                file, text = os.path.basename(self._function.__code__.co_filename), ast.unparse(node).partition("\n")[0]
                impure = Impure(f"line {node.lineno} of {file}, `{text:.80}`, {impure}")
                impure.has_line = True
            raise impure from None
        return found

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the parts of a statement or an expression, if it is listed."""
        if type(node).__name__ not in LISTED and not isinstance(node, OPERATORS):
            raise Impure(f"is {type(node).__name__}, which is not listed")
        if isinstance(node, ast.FormattedValue | ast.Mod):
            self._purity.require_method("extra_repr")
            self._purity.require_method("_get_name")
        for part in ast.iter_child_nodes(node):
            self._value(part, type(node).__name__ in LOOKING)

    def _value(self, node: ast.AST, is_looked_at: bool = False) -> None:
        """Visit an expression whose value goes anywhere, or is looked at and then forgotten."""
        found = self.visit(node)
        if found is not None:
            self._purity.require(found, is_looked_at)

    # --- Variables and attributes

    def visit_Name(self, node: ast.Name) -> Known | None:
        return None if node.id in self._locals else self._known.get(node.id) or self._outside(self._mangled(node.id))

    def _mangled(self, name: str) -> str:
        """Return a private name as Python reads it in a class, though not in `getattr(self, "__x")`."""
        is_private = name.startswith("__") and not name.endswith("__") and self._class
        return f"_{self._class.lstrip('_')}{name}" if is_private else name

    def _outside(self, name: str) -> Known:
        """Return a variable of the closure, a global or a builtin."""
        code, reads = self._function.__code__, self._purity.reads
        if name in code.co_freevars:
            cell = (self._function.__closure__ or ())[code.co_freevars.index(name)]
            return Known(reads.attribute(cell, "cell_contents"))
        value = reads.item(self._function.__globals__, name)
        return Known(reads.item(vars(builtins), name) if value is MISSING else value)

    def visit_Attribute(self, node: ast.Attribute) -> Known | None:
        if not isinstance(node.ctx, ast.Load):
            raise Impure("sets an attribute")
        return self._attribute(node.value, self._mangled(node.attr))

    def _attribute(self, node: ast.expr, name: str) -> Known | None:
        if is_super(node) and self._outside("super").it is super:
            it, base = self._known[self._first].it, self._outside("__class__").it
            return self._purity.attribute(it, name, type(it).__mro__[type(it).__mro__.index(base) + 1 :])
        owner = self.visit(node)
        if owner is not None and owner.owner is None and type(owner.it) not in NUMBERS:
            return self._purity.attribute(owner.it, name)
        if name not in ATTRIBUTES:
            raise Impure("reads an attribute that is not listed")
        self._purity.require_method(name)
        return None

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") not in self._made:
            raise Impure("stores into something that the function did not make")
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._value(node.generators[0].iter, is_looked_at=True)
        own, before = {*stored(each.target for each in node.generators)}, (self._locals, self._made)
        self._locals, self._made = before[0] | own, before[1] - own
        self.generic_visit(node)
        self._locals, self._made = before

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    # --- Calls

    def visit_Call(self, node: ast.Call) -> Known | None:
        if isinstance(node.func, ast.Attribute) and not is_super(node.func.value):
            owner, name = self.visit(node.func.value), node.func.attr
            kind = None if owner is None else type(owner.it)
            if kind is None or kind in NUMBERS | CONTAINERS or (kind in OF_MODULES and name in READING):
                self._method(node, name, READING if kind in CONTAINERS | OF_MODULES else METHODS)
                return None
        function = self.visit(node.func)
        it = None if function is None else function.it
        if it is getattr or it is hasattr:
            return self._getattr(node, *node.args)
        if it is isinstance:
            self._isinstance(*node.args)
            return None
        if {"out", None} & {each.arg for each in node.keywords}:  # None for `**`, in which `out` may be
            raise Impure("may overwrite something")
        # Arguments of a function that is read are known there.
        is_read = not (function is None or id(it) in CALCULATIONS or isinstance(it, nn.Module))
        looks = id(it) in CALCULATIONS and not node.keywords and len(node.args) == 1
        args: list[Known | None] = []
        for each in (*node.args, *node.keywords):
            is_read = is_read and not isinstance(each, ast.Starred | ast.keyword)
            args.append(self.visit(each) if is_read else None)
            if args[-1] is None:
                self._value(each, looks)
        if function is not None:
            self._purity.require_pure(function, args[: len(node.args)])
        return None

    def _method(self, node: ast.Call, name: str, listed: set[str]) -> None:
        """Read a call of a method of a tensor, a number or a container."""
        function: Any = node.func
        if name not in listed and not (name in FILLING and getattr(function.value, "id", "") in self._made):
            raise Impure(f"calls {name}(), which is not listed or changes something")
        self._purity.require_method(name)
        self._value(function.value, is_looked_at=True)
        for each in (*node.args, *node.keywords):
            self._value(each)

    def _getattr(self, node: ast.Call, owner: ast.expr, name: ast.expr, *default: ast.expr) -> Known | None:
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            raise Impure("computes the name of an attribute")
        found = self._attribute(owner, name.value)
        if found is None or found.it is not MISSING:
            return found
        return self.visit(default[0]) if default else Known(False)

    def _isinstance(self, value: ast.expr, classes: ast.expr) -> None:
        if (found := self.visit(value)) is not None:
            self._purity.require(found, is_looked_at=True)
        for cls in map(self.visit, classes.elts if isinstance(classes, ast.Tuple) else [classes]):
            it = None if cls is None else cls.it
            # Tracing takes other objects for tensors. Other classes may ask users' code.
            if not (it in CONTAINERS if found is None else type(it) is type or is_library(root_of(it))):
                raise Impure("asks for a class that is not known")

    # --- Statements

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        has_none = any(isinstance(each, ast.Constant) and each.value is None for each in sides)
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops) and not (has_none and len(sides) == 2):
            raise Impure("asks whether two objects are the same")  # in tracing, others stand for tensors
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Nothing, because an error is raised in Python too."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self._value(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.op, IN_PLACE):
            raise Impure("changes something in place")
        self.visit(node.target)
        self._value(node.value)
