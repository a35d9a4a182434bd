"""What an object is that is annotated so."""

import ast
import copy

from torchtitan_sync import inference
from torchtitan_sync.noting import Noting
from torchtitan_sync.program import Found, Outside, Result
from torchtitan_sync.records import Scope
from torchtitan_sync.values import (
    Absent,
    External,
    Group,
    Instance,
    Value,
    any_of,
)

_DICTS = {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict", "ModuleDict"}
_TRANSPARENT = {"Annotated", "ClassVar", "Final", "Required", "NotRequired", "ReadOnly", "InitVar", "Awaitable"}


class Annotations(Noting):
    def annotated(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """What an object annotated so is."""
        if node is None:
            return None
        record, self.record = self.record, None
        try:
            return self._type(node, scope)
        finally:
            self.record = record

    def _expression_in_annotation(self, node: ast.expr, scope: Scope) -> None:
        """Notes the names in an annotation; a quoted or postponed one is for type checkers only."""
        if self.record is None:
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = copy.deepcopy(inference.parse_expression(node.value))
            if inner is None:
                return
            self._typing += 1
            for child in ast.walk(inner):
                if isinstance(child, ast.expr):
                    child.lineno, child.col_offset = node.lineno, node.col_offset
                    child.end_lineno, child.end_col_offset = node.end_lineno, node.end_col_offset
            self.value(inner, scope)
            self._typing -= 1
            return
        postponed = self._postponed()
        self._typing += postponed
        self._annotations += 1
        self.value(node, scope)
        self._annotations -= 1
        self._typing -= postponed

    def _postponed(self) -> bool:
        table = self.program.table(self.module)
        return table is not None and "annotations" in table.names and table.names["annotations"].module == "__future__"

    def _type(self, node: ast.expr, scope: Scope) -> Value | None:
        match node:
            case ast.Constant(value=None):
                return Absent()
            case ast.Constant(value=str(text)):
                inner = inference.parse_expression(text)
                return self._type(inner, scope) if inner is not None else None
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return any_of([self._type(left, scope), self._type(right, scope)])
            case ast.Subscript(value=head, slice=index):
                return self._generic(head, index, scope)
            case ast.Name(id="Self") | ast.Attribute(attr="Self"):
                return Instance(scope.cls) if scope.cls is not None else None
        return inference.instance_of(self.value(node, scope))

    def _generic(self, head: ast.expr, index: ast.expr, scope: Scope) -> Value | None:
        name = head.attr if isinstance(head, ast.Attribute) else head.id if isinstance(head, ast.Name) else ""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if name == "Optional":
            return any_of([self._type(parts[0], scope), Absent()])
        if name == "Union":
            return any_of([self._type(part, scope) for part in parts])
        if name in _TRANSPARENT:
            return self._type(parts[0], scope)
        if name in ("type", "Type"):
            value = self._type(parts[0], scope)
            return value.of if isinstance(value, Instance) else None
        if name == "Callable":
            return Group("callable", (self._type(parts[-1], scope),))
        if name in ("tuple", "Tuple"):
            if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is Ellipsis:
                return Group("list", (self._type(parts[0], scope),))
            return Group("tuple", tuple(self._type(part, scope) for part in parts))
        if name in inference.LISTS:
            return Group("list", (self._type(parts[0], scope),))
        if name in _DICTS and len(parts) == 2:
            return Group("dict", (self._type(parts[0], scope), self._type(parts[1], scope)))
        if name == "Literal":
            return External("builtins.str", instance=True)
        return inference.instance_of(self.value(head, scope))

    def found_value(self, result: Result, via: Value | None = None) -> Value | None:
        """What a name that was looked up stands for; `via` is the class or object it was taken from."""
        if isinstance(result, Outside):
            return External(result.path)
        if not isinstance(result, Found):
            return None
        return inference.symbol_value(self.program, result, via)
