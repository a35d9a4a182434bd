"""Signatures of functions, methods and constructors, generated ones of dataclasses included."""

import ast
from dataclasses import dataclass
from functools import lru_cache

from torchtitan_sync.program import Found, Program
from torchtitan_sync.tables import Param, Symbol
from torchtitan_sync.values import Class, Function, Instance, Value


@dataclass(frozen=True)
class Signature:
    path: str
    """Dotted name of the function, or of the class whose construction it is."""
    params: tuple[Param, ...]
    """Without the one that is bound."""
    home: Found
    returns: Value | None = None


@dataclass(frozen=True)
class Field:
    name: str
    annotation: str
    default: str
    owner: Class
    keyword_only: bool


def of_function(program: Program, function: Function) -> Signature | None:
    symbol = program.symbol(function.module, function.name)
    if symbol is None or symbol.kind != "function":
        return None
    params = symbol.params
    if function.bound is not None and not symbol.decorated("staticmethod"):
        params = params[1:] if params and params[0].kind in "/a" else params
    return Signature(function.path, tuple(params), Found(function.module, function.name, symbol))


def of_class(program: Program, cls: Class) -> Signature | None:
    """Of the constructor; None where a base that is not read, or a metaclass, may define it."""
    classes, outside = program.mro(cls)
    for owner in classes:
        symbol = program.class_symbol(owner)
        if symbol is None:
            return None
        made = symbol.members.get("__init__")
        if made is not None and made.kind == "function":
            return Signature(
                cls.path, tuple(made.params[1:]), Found(owner.module, f"{owner.name}.__init__", made, owner)
            )
        if is_dataclass(symbol):
            params = [
                Param(f.name, "k" if f.keyword_only else "a", f.annotation, f.default) for f in fields(program, owner)
            ]
            params.sort(key=lambda param: param.kind == "k")
            return Signature(cls.path, tuple(params), Found(owner.module, owner.name, symbol))
        if "__new__" in symbol.members or any(base.endswith("NamedTuple") for base in symbol.bases):
            return None
    if outside and not all(base.rpartition(".")[2] in ("object", "ABC", "Generic", "Protocol") for base in outside):
        return None
    symbol = program.class_symbol(cls)
    return Signature(cls.path, (), Found(cls.module, cls.name, symbol)) if symbol is not None else None


def is_dataclass(symbol: Symbol) -> bool:
    return symbol.decorated("dataclass")


def fields(program: Program, cls: Class) -> list[Field]:
    """A dataclass's, inherited ones first, as its constructor takes them."""
    found: dict[str, Field] = {}
    for owner in reversed(program.mro(cls)[0]):
        symbol = program.class_symbol(owner)
        if symbol is None or not is_dataclass(symbol):
            continue
        whole = any("kw_only=True" in text.replace(" ", "") for text in symbol.decorators)
        after_marker = False
        for member in symbol.members.values():
            if member.annotation.endswith("KW_ONLY"):
                after_marker = True
            elif member.kind == "value" and member.annotation and "ClassVar" not in member.annotation:
                options = _field_options(member.value)
                if options.get("init") == "False":
                    found.pop(member.name, None)
                    continue
                keyword_only = options.get("kw_only") == "True" if "kw_only" in options else whole or after_marker
                found[member.name] = Field(member.name, member.annotation, options["default"], owner, keyword_only)
    return list(found.values())


@lru_cache(maxsize=4096)
def _field_options(value: str) -> dict[str, str]:
    """Of `field(...)`; `default` is empty where there is none."""
    if value.partition("(")[0].strip().rpartition(".")[2] != "field":
        return {"default": value}
    try:
        call = ast.parse(value.strip(), mode="eval").body
    except SyntaxError:
        return {"default": value}
    words = (
        {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg} if isinstance(call, ast.Call) else {}
    )
    default = words.get("default") or (f"{words['default_factory']}()" if "default_factory" in words else "")
    return {**words, "default": default}


def method(cls: Class, found: Found) -> Function:
    return Function(found.module, found.name, Instance(cls))
