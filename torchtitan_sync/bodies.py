"""What code says apart from how it is written: comments, formatting, type hints and docstrings do not count."""

import ast
import difflib
import io
import keyword
import re
import tokenize
from collections import Counter
from functools import lru_cache

from torchtitan_sync.program import Program
from torchtitan_sync.tables import Symbol

_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
SMALL = 24
"""Words below which a body says too little to be recognised by."""


def normal(text: str) -> str:
    """The code in one fixed form; two texts that mean the same give the same form."""
    lines = text.split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    try:
        tree = ast.parse(("if 1:\n" if indent else "") + text)
    except (SyntaxError, ValueError):
        return text
    return ast.unparse(_Plain().visit(tree))


class _Plain(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        node.type_comment = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.body = _without_docstring(node.body)
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = _without_docstring(node.body)
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        # A field keeps that it is declared; what type it has is a hint.
        node.annotation = ast.Name("_", ast.Load())
        self.generic_visit(node)
        return node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    kept = [node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    return kept or [ast.Pass()]


def of(program: Program, module: str, symbol: Symbol) -> str:
    """A symbol's code in the fixed form, remembered."""
    key = ("body", module, symbol.name, symbol.line)
    if key not in program.memo:
        program.memo[key] = normal(program.segment(module, symbol))
    return program.memo[key]


@lru_cache(maxsize=8192)
def grams(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text)
    return Counter(zip(words, words[1:], words[2:], strict=False))


def similarity(first: str, second: str) -> float:
    """Share of what both say, 0 to 1: twice the common runs of three words over all of them."""
    a, b = grams(first), grams(second)
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


def size(text: str) -> int:
    return len(_WORD.findall(text))


def diff(old: str, new: str, limit: int = 24) -> str:
    """A short unified diff of two bodies in the fixed form."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))[2:]
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join([*lines[:limit], *more])


def names(text: str) -> set[str]:
    """Identifiers that occur."""
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {t.string for t in tokens if t.type == tokenize.NAME and not keyword.iskeyword(t.string)}
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return set(re.findall(r"[A-Za-z_]\w*", text))
