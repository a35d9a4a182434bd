"""How uses of upstream are noted: with their place, and whether their failure is caught."""

import ast
from typing import Any

from torchtitan_sync.program import Found, Missing, Program, Result
from torchtitan_sync.records import HandlerRef, Hints, Place, Record, Ref, Scope
from torchtitan_sync.values import (
    Class,
    Value,
)


class Noting:
    """State of a walk, and its notes. `value` and `bind` are those of the layers above."""

    def __init__(self, program: Program, module: str, record: Record | None = None, hints: Hints | None = None) -> None:
        self.program = program
        self.module = module
        self.record = record
        self.hints = hints or {}
        self._guards = 0
        self._typing = 0
        self._annotations = 0
        self._asked: list[str] = []
        self._deferred: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope, str]] = []
        self._handlers: list[HandlerRef] = []
        self.returned: list[Value | None] = []
        self._narrowed: dict[str, Value] = {}
        self._constructor = False
        """In a function that stands in for the constructor of an upstream class."""

    def value(self, node: ast.expr, scope: Scope) -> Value | None:
        """What an expression stands for."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Value | None, scope: Scope) -> None:
        """Gives a name, attribute or each of several what was assigned."""
        raise NotImplementedError

    def _upstream(self, module: str) -> bool:
        return self.record is not None and module.partition(".")[0] == self.record.upstream

    def _inherits(self, cls: Class) -> bool:
        return any(self._upstream(base.module) for base in self.program.mro(cls)[0])

    def _note(self, node: ast.expr, kind: str, name: str, result: Result, owner: str) -> None:
        if self.record is None:
            return
        asked = bool(self._asked) and isinstance(node, ast.Attribute) and ast.unparse(node) in self._asked
        place = self._name_place(node)
        self._append(Ref(place, kind, name, result, owner, self._guards > 0 or asked, self._typing > 0))

    def _note_at(self, node: Any, kind: str, name: str, result: Result, owner: str, column: int) -> None:
        if self.record is None:
            return
        place = Place(self.record.file, node.lineno, column, column + len(name))
        self._append(Ref(place, kind, name, result, owner, self._guards > 0, self._typing > 0))

    def _append(self, ref: Ref) -> None:
        assert self.record is not None
        # What is missing from a class of the plugin may have come from upstream: the comparison knows.
        target = ref.result.path if isinstance(ref.result, Found) else ""
        if self._upstream(target) or self._upstream(ref.owner) or isinstance(ref.result, Missing):
            self.record.refs.append(ref)

    def _place(self, node: Any) -> Place:
        file = self.record.file if self.record is not None else ""
        end = node.end_col_offset if node.end_lineno == node.lineno else node.col_offset
        return Place(file, node.lineno, node.col_offset, end or node.col_offset)

    def _name_place(self, node: ast.expr) -> Place:
        if isinstance(node, ast.Attribute):
            file = self.record.file if self.record is not None else ""
            end = node.end_col_offset or 0
            return Place(file, node.end_lineno or node.lineno, end - len(node.attr.encode()), end)
        return self._place(node)

    def _word_place(self, word: ast.keyword) -> Place:
        file = self.record.file if self.record is not None else ""
        return Place(file, word.lineno, word.col_offset, word.col_offset + len((word.arg or "").encode()))
