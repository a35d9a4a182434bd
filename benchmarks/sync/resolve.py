"""Answers questions about an upstream by importing it: `python resolve.py CHECKOUT NAME ANSWERS < QUESTIONS` (JSON).

What upstream imports and this environment lacks is stood in for by names that can be called, subclassed and used as
decorators, so that its modules load. Nothing of upstream is ever called.
"""

import ast
import functools
import importlib
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

FOUND, GONE, UNKNOWN = "found", "gone", "unknown"


class _Anything(type):
    """A class whose attributes, items and calls are as permissive as itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_stands_in"):
            return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else cls
        return super().__call__(*args, **kwargs)

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


def _anything(name: str) -> Any:
    return _Anything(name, (), {"_stands_in": True})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _stand_in(name: str) -> None:
    """Make a module importable that is not there."""
    module = _Module(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)


def load(name: str, upstream: str) -> types.ModuleType | None:
    """Import a module, standing in for names that its dependencies lack. None: there is no such module."""
    for _ in range(60):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == upstream:
                if name == error.name or name.startswith(f"{error.name}."):
                    return None
                raise Broken(str(error)) from error
            if error.name is None:
                raise Broken(str(error)) from error
            _stand_in(error.name)
        except ImportError as error:
            lacking = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
            if not lacking or lacking[2].split(".")[0] == upstream:
                raise Broken(str(error)) from error
            setattr(sys.modules[lacking[2]], lacking[1], _anything(lacking[1]))
        except AttributeError as error:
            lacking = re.match(r"module '([\w.]+)' has no attribute '(\w+)'", str(error))
            if not lacking or lacking[1] not in sys.modules or lacking[1].split(".")[0] == upstream:
                raise Broken(str(error)) from error
            setattr(sys.modules[lacking[1]], lacking[2], _anything(lacking[2]))
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
    raise Broken("too many names to stand in for")


class Broken(Exception):
    """Upstream's own module cannot be imported here: nothing can be said about it."""


@functools.cache
def exists(checkout: Path, name: str) -> bool:
    path = checkout.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or any(path.glob("*.py")) or any(path.glob("*/*.py"))


class Resolver:
    def __init__(self, checkout: Path, upstream: str) -> None:
        self._checkout = checkout
        self._upstream = upstream

    def start(self, dotted: str) -> tuple[str, Any, list[str]]:
        """(status, object, why): the object a dotted name means."""
        parts = dotted.split(".")
        length = max((n for n in range(1, len(parts) + 1) if exists(self._checkout, ".".join(parts[:n]))), default=0)
        if not length:
            return GONE, None, [f"no module {parts[0]}"]
        # A name that the package binds goes before a submodule of the same name that is not imported.
        try:
            module = load(".".join(parts[:length]), self._upstream)
            if module is None:
                return GONE, None, [f"no module {'.'.join(parts[:length])}"]
        except Broken as error:
            return self.start_statically(parts, length, str(error))
        value: Any = module
        for index, part in enumerate(parts[length:]):
            status, value = self.member(value, part)
            if status != FOUND:
                return status, None, [f"no {part} in {'.'.join(parts[: length + index])}"]
        return FOUND, value, []

    def start_statically(self, parts: list[str], length: int, why: str) -> tuple[str, Any, list[str]]:
        """For a module that does not import here: whether the name is bound in its source."""
        if len(parts) == length:
            return FOUND, None, []
        path = self._checkout.joinpath(*parts[:length])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        names = bound_names(source.read_text()) if source.exists() else set()
        if "*" in names:
            return UNKNOWN, None, [why]
        return (FOUND if parts[length] in names else GONE), None, [f"statically; {why}"]

    def member(self, value: Any, name: str) -> tuple[str, Any]:
        if value is None:
            return UNKNOWN, None
        try:
            return FOUND, inspect.getattr_static(value, name) if inspect.isclass(value) else getattr(value, name)
        except AttributeError:
            pass
        except Exception:
            return UNKNOWN, None
        if inspect.isclass(value):
            return self.of_instance(value, name)
        if inspect.ismodule(value) or inspect.isfunction(value):
            return GONE, None
        return UNKNOWN, None

    def of_instance(self, cls: Any, name: str) -> tuple[str, Any]:
        """An attribute of a class's instances: FOUND with its class where that is annotated."""
        if not inspect.isclass(cls):
            return UNKNOWN, None
        for base in cls.__mro__:
            annotations = inspect.get_annotations(base)
            if name in annotations:
                return FOUND, self.annotated(base, annotations[name])
            if name in base.__dict__:
                found = base.__dict__[name]
                if isinstance(found, property) and found.fget is not None:
                    return FOUND, self.annotated(base, getattr(found.fget, "__annotations__", {}).get("return"))
                if isinstance(found, functools.cached_property):
                    return FOUND, None
                return FOUND, found
            if name in assigned(base):
                return FOUND, None
            if "__getattr__" in base.__dict__ and base.__module__.split(".")[0] == self._upstream:
                return UNKNOWN, None
        if any(base.__dict__.get("_stands_in") for base in cls.__mro__):
            return UNKNOWN, None
        if "torch.nn.modules.module" in [base.__module__ for base in cls.__mro__] and name in _module_names():
            return FOUND, None
        return GONE, None

    def annotated(self, owner: type, annotation: Any) -> Any:
        if isinstance(annotation, str):
            try:
                names = vars(sys.modules[owner.__module__]) | vars(owner)
                annotation = eval(annotation, dict(names))
            except Exception:
                return None
        arguments = [a for a in typing.get_args(annotation) if inspect.isclass(a) and a is not type(None)]
        if not inspect.isclass(annotation):
            annotation = arguments[0] if len(arguments) == 1 else None
        return annotation if inspect.isclass(annotation) and annotation.__module__.startswith(self._upstream) else None

    def answer(self, question: dict[str, Any]) -> tuple[str, str]:
        status, value, why = self.start(question["start"])
        if status != FOUND:
            return status, " ".join(why)
        for index, name in enumerate(question["steps"]):
            if index == 0 and not inspect.isclass(value):
                return UNKNOWN, "not a class"
            status, value = self.of_instance(value, name) if inspect.isclass(value) else (UNKNOWN, None)
            if status != FOUND:
                return status, f"no {name}"
        if question["call"] is not None:
            return self.binds(value, question)
        if question["override"] and not inspect.isfunction(value):
            return (GONE if value is None else FOUND), "no method to override"
        return FOUND, ""

    def binds(self, value: Any, question: dict[str, Any]) -> tuple[str, str]:
        positional, words, star = question["call"]
        if isinstance(value, staticmethod | classmethod):
            value, bound = value.__func__, isinstance(value, classmethod)
        else:
            bound = question["instance"] and inspect.isfunction(value)
        if not callable(value) or getattr(value, "_stands_in", False):
            return UNKNOWN, "not callable"
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):
            return UNKNOWN, "no signature"
        if not star:
            # A keyword that is not taken is its own question: here it counts whether the others are enough.
            takes = signature.parameters.values()
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
                words = [word for word in words if word in signature.parameters]
        bind = signature.bind_partial if star else signature.bind
        try:
            bind(*[None] * (positional + bound), **dict.fromkeys(words))
        except TypeError as error:
            return GONE, f"{error}; signature {signature}"
        return FOUND, str(signature)


@functools.cache
def assigned(cls: type) -> frozenset[str]:
    """Attributes that a class's own methods set on self."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "self.register_buffer"):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return frozenset(found)


def bound_names(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
    return found


@functools.cache
def _module_names() -> frozenset[str]:
    import torch

    return frozenset(dir(torch.nn.Module())) | frozenset(dir(torch.optim.Optimizer))


def main() -> None:
    checkout, upstream = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.path.insert(0, str(checkout))
    resolver = Resolver(checkout, upstream)
    answers = [resolver.answer(question) for question in json.load(sys.stdin)]
    Path(sys.argv[3]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
