"""The part of `verify` that runs where the plugin and the target upstream can be imported: `python probe.py TASK`.

Started as a file in an environment that need not have this package: it imports the standard library only. TASK is JSON
with the plugin's `root`, its `modules` (file by name) and the names of the plugin's and upstream's packages.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


class Probe:
    def __init__(self, root: Path, package: str, upstream: str) -> None:
        self.root = root
        self.package = package
        self.upstream = upstream
        self.results: list[dict[str, str]] = []

    def note(self, check: str, name: str, where: str, state: str = OK, why: str = "") -> None:
        self.results.append({"check": check, "name": name, "where": where, "state": state, "why": why})

    def ours(self, dotted: str) -> bool:
        return dotted.split(".")[0] == self.upstream

    def module(self, name: str, file: str) -> None:
        """Import a module of the plugin, then look at what it declares and uses."""
        loaded = None
        try:
            loaded = importlib.import_module(name)
            found = getattr(loaded, "__file__", None)
            if found and not Path(found).resolve().is_relative_to(self.root):
                self.note("import", name, file, FAILED, f"another copy was imported: {found}")
            else:
                self.note("import", name, file)
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            third_party = missing not in (self.upstream, self.package.split(".")[0], "")
            self.note("import", name, file, SKIPPED if third_party else FAILED, self.reason(error))
        except (Exception, SystemExit) as error:
            self.note("import", name, file, FAILED, self.reason(error))
        if loaded is not None:
            self.declarations(loaded, file)
            self.subclasses(loaded, file)
        self.references(file)

    def reason(self, error: BaseException) -> str:
        """What went wrong, and the plugin's line where it did."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if str(self.root) in os.path.realpath(frame.filename)]
        place = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
        return f"{type(error).__name__}: {error}{place}"

    def declarations(self, module: Any, file: str) -> None:
        """Data that names upstream's objects, such as tables of overrides and patches."""
        for name, value in list(vars(module).items()):
            entries = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            )
            for entry in entries:
                if not dataclasses.is_dataclass(entry) or isinstance(entry, type):
                    continue
                if type(entry).__module__.split(".")[0] != self.package.split(".")[0]:
                    continue
                for field in dataclasses.fields(entry):
                    text = getattr(entry, field.name, None)
                    if isinstance(text, str) and self.dotted(text):
                        self.check("declared", text, f"{file} ({name})")

    def dotted(self, text: str) -> bool:
        return self.ours(text) and "." in text and all(part.isidentifier() for part in text.split("."))

    def subclasses(self, module: Any, file: str) -> None:
        """Classes of the plugin that extend upstream's: every method that replaces one takes what it is called with."""
        for cls in [value for value in list(vars(module).values()) if inspect.isclass(value)]:
            if cls.__module__ != module.__name__:
                continue
            bases = [base for base in cls.__mro__[1:] if self.ours(base.__module__)]
            for base in bases[:1]:
                self.note("subclass", f"{cls.__qualname__}({base.__module__}.{base.__qualname__})", file)
            for name, method in list(vars(cls).items()):
                original = next((vars(base)[name] for base in bases if name in vars(base)), None)
                if name != "__init__" and inspect.isfunction(method) and inspect.isfunction(original):
                    where = f"{file}:{method.__code__.co_firstlineno}"
                    why = lacking(original, method)
                    self.note("signature", f"{cls.__qualname__}.{name}", where, FAILED if why else OK, why)

    def references(self, file: str) -> None:
        """Everything of upstream that the file imports, reads, names in a string or calls."""
        tree = ast.parse((self.root / file).read_bytes())
        names = dict(imported(tree, self.upstream))
        guarded = {id(node) for statement in ast.walk(tree) if soft(statement) for node in ast.walk(statement)}
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if id(node) in guarded:
                continue
            where = f"{file}:{getattr(node, 'end_lineno', 0)}"
            if isinstance(node, ast.ImportFrom) and not node.level and self.ours(node.module or ""):
                for alias in node.names:
                    path = node.module or ""
                    place = f"{file}:{alias.lineno}"
                    self.check("attribute", path if alias.name == "*" else f"{path}.{alias.name}", place)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if self.ours(alias.name):
                        self.check("attribute", alias.name, where)
            elif isinstance(node, ast.Attribute) and id(node) not in inner and (path := chain(node, names)):
                self.check("attribute", path, where)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and self.dotted(node.value):
                self.check("attribute", node.value, where)
            if isinstance(node, ast.Call) and (path := chain(node.func, names)):
                self.call(path, node, where)

    def check(self, check: str, dotted: str, where: str) -> None:
        state, why, _ = self.resolve(dotted)
        self.note(check, dotted, where, state, why)

    def resolve(self, dotted: str) -> tuple[str, str, Any]:
        """What a dotted name means: by attributes first, as `mock.patch` reads it, else by its longest module.

        The two differ where a package has a function and a module of the same name.
        """
        result = self.walk(None, dotted.split("."), 0)
        if result[0] == FAILED:
            parts = dotted.split(".")
            for length in range(len(parts), 1, -1):
                module = sys.modules.get(".".join(parts[:length]))
                if module is not None and (found := self.walk(module, parts, length))[0] != FAILED:
                    return found
        return result

    def walk(self, value: Any, parts: list[str], start: int) -> tuple[str, str, Any]:
        """Import as much of a dotted name as is modules, and look the rest up."""
        for index, part in enumerate(parts[start:], start):
            path = ".".join(parts[: index + 1])
            if value is not None and hasattr(value, part):
                value = getattr(value, part)
                continue
            if value is None or inspect.ismodule(value):
                try:
                    value = importlib.import_module(path)
                    continue
                except ModuleNotFoundError as error:
                    if not self.ours(error.name or ""):
                        return SKIPPED, self.reason(error), None
                except Exception as error:
                    return FAILED, self.reason(error), None
                return FAILED, f"{'.'.join(parts[:index]) or path} has no {part}", None
            if inspect.isclass(value) and instance_attribute(value, part):
                return OK, "", None
            if inspect.isclass(value) or inspect.isfunction(value):
                return FAILED, f"{'.'.join(parts[:index])} has no {part}", None
            return OK, "", None  # of a value: what it has is not known before it is made
        return OK, "", value

    def call(self, dotted: str, node: ast.Call, where: str) -> None:
        """Whether a call's arguments fit. Methods through a class and what has no signature are left out."""
        state, _, value = self.resolve(dotted)
        stars = [a for a in node.args if isinstance(a, ast.Starred)] + [k for k in node.keywords if k.arg is None]
        if state != OK or not (inspect.isfunction(value) or inspect.isclass(value)):
            return
        try:
            signature = inspect.signature(value)
            bind = signature.bind_partial if stars else signature.bind
            bind(
                *[a for a in node.args if not isinstance(a, ast.Starred)],
                **{k.arg: k.value for k in node.keywords if k.arg},
            )
        except ValueError:
            return
        except TypeError as error:
            self.note("signature", f"{dotted}(...)", where, FAILED, f"{error}; it is {value.__name__}{signature}")
            return
        self.note("signature", f"{dotted}(...)", where)


def lacking(original: Any, replacement: Any) -> str:
    """What upstream's function must be given and a replacement cannot take; empty if there is nothing."""
    takes = inspect.signature(replacement).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in takes) and any(p.kind is p.VAR_POSITIONAL for p in takes):
        return ""
    names: list[str] = []
    keywords: dict[str, None] = {}
    for parameter in inspect.signature(original).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                keywords[parameter.name] = None
        elif parameter.default is parameter.empty:
            names.append(parameter.name)
    try:
        inspect.signature(replacement).bind_partial(*[None] * len(names), **keywords)
    except TypeError as error:
        return f"upstream calls it with {', '.join([*names, *keywords])}: {error}"
    return ""


def instance_attribute(cls: type, name: str) -> bool:
    """Whether a class's instances get an attribute that the class does not have: annotated, or set by its methods."""
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            return True
        try:
            tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        if any(
            isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and n.attr == name for n in ast.walk(tree)
        ):
            return True
    return False


def imported(tree: ast.Module, upstream: str) -> Iterator[tuple[str, str]]:
    """Names that mean something of upstream wherever they are in the file, and what they mean."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                found.setdefault(alias.asname or root, set()).add(alias.name if alias.asname else root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                found.setdefault(alias.asname or alias.name, set()).add(path)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.setdefault(node.id, set()).add("")
        elif isinstance(node, ast.arg):
            found.setdefault(node.arg, set()).add("")
    for name, meanings in found.items():
        (meaning, *others) = meanings
        if not others and meaning.split(".")[0] == upstream:
            yield name, meaning


def soft(node: ast.AST) -> bool:
    """Whether a statement expects that something of upstream is not there, or is for type checkers only."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test) or "hasattr" in ast.unparse(node.test)
    if not isinstance(node, ast.Try):
        return False
    caught = {ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers}
    return any(name in text for text in caught for name in ("ImportError", "ModuleNotFoundError", "AttributeError"))


def chain(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted upstream name that an expression spells; empty if it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in names:
        return ".".join([names[node.id], *reversed(parts)])
    return ""


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    sys.argv = ["probe"]
    probe = Probe(Path(task["root"]).resolve(), task["package"], task["upstream"])
    for name, file in task["modules"].items():
        probe.module(name, file)
    Path(task["result"]).write_text(json.dumps(probe.results))
    # Threads and exit handlers of what was imported have no say in the result.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
