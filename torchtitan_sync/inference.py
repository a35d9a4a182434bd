"""What upstream's symbols stand for, worked out when it is asked for and remembered with the program.

Types come from annotations; where there are none, from the value that is assigned, or from what a function returns.
"""

import ast
import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from torchtitan_sync import evaluate
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import Scope
from torchtitan_sync.tables import Symbol
from torchtitan_sync.values import (
    Absent,
    AnyOf,
    Class,
    External,
    Function,
    Group,
    Instance,
    Module,
    Partial,
    Registry,
    Text,
    Value,
    any_of,
)

_DEEPEST = 12
"""Calls and attributes through which a type is followed."""

LISTS = {"list", "List", "Sequence", "Iterable", "Iterator", "Generator", "set", "frozenset", "deque", "Collection"}
LISTS |= {"MutableSequence", "Set", "AsyncIterator", "Reversible", "FrozenSet", "AbstractSet", "ModuleList"}


def symbol_value(program: Program, found: Found, via: Value | None = None) -> Value | None:
    symbol = found.symbol
    if not found.name:
        return Module(found.module)
    if symbol is None:
        return None
    if symbol.kind == "class":
        return Class(found.module, found.name)
    if symbol.kind == "function":
        if symbol.decorated("property", "cached_property") and isinstance(via, Instance):
            return returned(program, Function(found.module, found.name, via))
        bound = via if isinstance(via, Instance) or (via is not None and symbol.decorated("classmethod")) else None
        return Function(found.module, found.name, bound)
    with _deeper(program, (found.module, found.name, symbol.line)) as memo:
        if memo.known:
            return memo.value
        memo.value = _value_symbol(program, found, symbol)
        return memo.value


class _Memo:
    def __init__(self) -> None:
        self.known = False
        self.value: Value | None = None


@contextlib.contextmanager
def _deeper(program: Program, key: Any) -> Iterator[_Memo]:
    """What was worked out before; nothing, when it is being worked out just now or lies too deep."""
    memo = _Memo()
    memos = program.memo
    depth = memos.get("depth", 0)
    if key in memos:
        memo.known, memo.value = True, memos[key]
        yield memo
        return
    if depth > _DEEPEST:
        memo.known = True
        yield memo
        return
    memos[key] = None
    memos["depth"] = depth + 1
    try:
        yield memo
    finally:
        memos[key] = memo.value
        memos["depth"] = depth


def _value_symbol(program: Program, found: Found, symbol: Symbol) -> Value | None:
    owner = found.owner
    scope = owner.name if owner is not None else ""
    if symbol.annotation:
        if symbol.annotation.rpartition(".")[2] == "TypeAlias":
            return None
        value = annotation(program, found.module, scope, symbol.annotation)
        if value is not None and value != Absent():
            return value
    if not symbol.value:
        return None
    node = parse_expression(symbol.value)
    if node is None:
        return None
    evaluator = evaluate.Evaluator(program, found.module)
    if symbol.scope and owner is not None:
        names = _method_names(program, owner, symbol.scope)
        return evaluator.value(node, Scope(names, cls=owner))
    if owner is None and isinstance(node, ast.Dict):
        return _registry(evaluator, found, node)
    value = evaluator.value(node, Scope(cls=owner, body=scope))
    if isinstance(value, Class) and owner is None:
        return value
    return value


def _registry(evaluator: "evaluate.Evaluator", found: Found, node: ast.Dict) -> Value | None:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    values = [evaluator.value(value, Scope()) for value in node.values[:3]]
    item = any_of(values)
    if len(keys) != len(node.keys) or not keys:
        return Group("dict", (None, item))
    table = evaluator.program.table(found.module)
    added = table.keys.get(found.name, []) if table is not None else []
    return Registry(found.module, found.name, frozenset([*keys, *added]), item)


def _method_names(program: Program, cls: Class, method: str) -> dict[str, Value | None]:
    """What the names in a method stand for at its end."""
    key = ("names", cls, method)
    if key not in program.memo:
        program.memo[key] = {}
        node = function_node(program, cls.module, f"{cls.name}.{method}")
        if node is not None:
            evaluator = evaluate.Evaluator(program, cls.module)
            program.memo[key] = evaluator.function(node, cls, f"{cls.name}.{method}").names
    return program.memo[key]


def function_node(program: Program, module: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The syntax tree of one function, parsed from its lines; line numbers are the file's."""
    symbol = program.symbol(module, name)
    if symbol is None or symbol.kind != "function":
        return None
    lines = program.lines(module)[symbol.line - 1 : symbol.end]
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    # A block around it makes the indentation right whatever it is.
    text = ("if 1:\n" if indent else "\n") + "\n".join(lines)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    ast.increment_lineno(tree, symbol.line - 2)
    body = tree.body[0].body if isinstance(tree.body[0], ast.If) else tree.body
    node = body[0] if body else None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def annotation(program: Program, module: str, scope: str, text: str) -> Value | None:
    """What an object is that is annotated so in a class (`scope`) or at the top of a module."""
    key = ("annotation", module, scope, text)
    with _deeper(program, key) as memo:
        if not memo.known:
            node = parse_expression(text)
            cls = Class(module, scope) if scope else None
            if node is not None:
                memo.value = evaluate.Evaluator(program, module).annotated(node, Scope(cls=cls, body=scope))
        return memo.value


def returned(program: Program, function: Value | None) -> Value | None:
    """What calling gives."""
    match function:
        case Class():
            return Instance(function)
        case Partial(function=inner):
            return returned(program, inner)
        case Group(kind="callable", items=(item,)):
            return item
        case Function():
            pass
        case _:
            return None
    symbol = program.symbol(function.module, function.name)
    if symbol is None:
        return None
    scope = function.name.rpartition(".")[0]
    if symbol.returns:
        bound = function.bound
        if symbol.returns.strip("\"'").rpartition(".")[2] == "Self" and bound is not None:
            return bound if isinstance(bound, Instance) else Instance(bound) if isinstance(bound, Class) else None
        value = annotation(program, function.module, scope, symbol.returns)
        if symbol.decorated("contextmanager"):
            return value
        return value
    with _deeper(program, ("returned", function.module, function.name)) as memo:
        if not memo.known:
            node = function_node(program, function.module, function.name)
            if node is not None:
                cls = Class(function.module, scope) if program.class_symbol(Class(function.module, scope)) else None
                evaluator = evaluate.Evaluator(program, function.module)
                evaluator.function(node, cls, function.name)
                memo.value = any_of(evaluator.returned)
        return memo.value


def built_class(program: Program, function: Function | Class) -> Class | None:
    """`X.Config(...).build(...)` constructs X: torchtitan's convention, wired at run time."""
    match function:
        case Function(bound=Instance(of=config)) if function.name.rpartition(".")[2] == "build":
            owner = Class(config.module, config.name.rpartition(".")[0])
            symbol = program.symbol(function.module, function.name)
            if owner.name and program.class_symbol(owner) and symbol is not None and not symbol.returns:
                # A `build` of a Config's own that says what it returns is taken at its word.
                return owner
    return None


def special_result(program: Program, function: Function | Class, result: Value | None) -> Value | None:
    built = built_class(program, function)
    return Instance(built) if built is not None else result


def instance_of(value: Value | None) -> Value | None:
    match value:
        case Class():
            return Instance(value)
        case External(path=path, instance=False):
            last = path.rpartition(".")[2]
            if last in LISTS:
                return Group("list", (None,))
            return External(path, instance=True)
        case AnyOf(options=options):
            return any_of([instance_of(option) for option in options])
        case Absent():
            return value
        case Group():  # an alias of a generic type
            return value
    return None


def external_result(path: str, values: list[Value | None]) -> Value | None:
    """What some functions of other packages give."""
    last = path.rpartition(".")[2]
    match last, values:
        case (
            ("deepcopy" | "copy" | "replace" | "no_grad" | "compile" | "fully_shard" | "lru_cache" | "wraps"),
            [value, *_],
        ):
            return value
        case (("partial" | "partialmethod"), [function, *_]):
            return Partial(function) if function is not None else None
        case "cast", [kind, *_]:
            return instance_of(kind)
        case "import_module", [Text(value=name), *_]:
            return Module(name)
    return External(path, instance=True) if last[:1].isupper() else None


@lru_cache(maxsize=16384)
def parse_expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        return None
