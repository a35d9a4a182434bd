"""Words that upstream code knows: names of models in a registry, dimensions of a mesh, values of a choice.

A string that the plugin passes is only as good as the code that looks it up. Which strings that code names can be read.
"""

import ast
from collections.abc import Iterator

from torchtitan_sync.findings import Findings
from torchtitan_sync.inference import function_node, parse_expression
from torchtitan_sync.moves import Mover
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import CallRef, Place, Record
from torchtitan_sync.values import Class


def compare(findings: Findings, mover: Mover, old: Record, new: Record) -> None:
    """Constant strings in calls and subscripts that upstream's code knew and does not know any more, or knows as
    something else."""
    after = {(call.place.file, call.place.line, call.place.column): call for call in new.calls}
    for call in old.calls:
        now = after.get((call.place.file, call.place.line, call.place.column))
        if now is not None and call.texts:
            _call(findings, mover, call, now)
    indices = {(ref.place.file, ref.place.line, ref.place.column): ref for ref in new.refs if ref.kind == "index"}
    for ref in old.refs:
        found = indices.get((ref.place.file, ref.place.line, ref.place.column)) if ref.kind == "index" else None
        if found is not None and isinstance(ref.result, Found) and isinstance(found.result, Found):
            _class_word(findings, ref.result, found.result, ref.name, ref.place)
    for ref in old.refs:
        if ref.kind == "key" and isinstance(ref.result, Found):
            _entry(findings, mover, ref.result.path, ref.name, ref.place)


def _call(findings: Findings, mover: Mover, call: CallRef, now: CallRef) -> None:
    if call.signature is None or now.signature is None:
        return
    before, after = call.signature.home, now.signature.home
    registries = _registries(findings.new, after)
    for parameter, word in call.texts.items():
        if not word.isidentifier() and not word.replace("-", "").replace(".", "").isalnum():
            continue
        place = call.words.get(parameter, call.place)
        known = [path for path, words in _registries(findings.old, before).items() if word in words]
        if known and registries and not any(word in words for words in registries.values()):
            what = f"{word!r} is gone from {known[0]}, in which `{before.name}` looks it up"
            findings.add(
                "key-removed", f"{known[0]}.{word}", what, place, suggestion="use a name that is left, or register it"
            )
        elif known:
            _entry(findings, mover, known[0], word, place)
        else:
            _class_word(findings, before, after, word, place)


def _entry(findings: Findings, mover: Mover, registry: str, key: str, place: Place) -> None:
    """A key that is there at both ends and under which a registry has another class or function."""
    before, after = (_registered(program, registry, key) for program in (findings.old, findings.new))
    if before is None or after is None or before.path == after.path:
        return
    move = mover.find(before.path)
    if move is None or move.new != after.path:
        what = f"{key!r} is `{after.path}` now, it was `{before.path}`"
        note = "whether one does what the other did cannot be decided from the source"
        findings.add("meaning", f"{registry}.{key}", what, place, note=note, file=findings.file_of(registry))


def _registered(program: Program, registry: str, key: str) -> Found | None:
    """What a dict of upstream's has under a key, where that is the name of a class or function."""
    found = program.resolve_plainly(registry)
    value = found.symbol.value if isinstance(found, Found) and found.symbol is not None else ""
    node = parse_expression(value) if value else None
    for name, entry in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if isinstance(name, ast.Constant) and name.value == key and isinstance(found, Found):
            result = program.dotted(found.module, "", ast.unparse(entry))
            return result if isinstance(result, Found) and result.symbol is not None else None
    return None


def _class_word(findings: Findings, before: Found, after: Found, word: str, place: Place) -> None:
    owners = []
    for found in (before, after):
        owner = found.name.rpartition(".")[0] if found.symbol is None or found.symbol.kind != "class" else found.name
        owners.append(Class(found.module, owner) if owner else None)
    old, new = owners
    if old is None or new is None:
        return
    if word in _class_words(findings.old, old) and word not in _class_words(findings.new, new):
        what = f"`{old.name}` no longer names {word!r}"
        note = "a dimension, key or choice of that name may be gone: which strings it takes cannot be decided here"
        findings.add("meaning", f"{old.path}[{word!r}]", what, place, note=note, file=findings.file_of(old.path))


def _class_words(program: Program, cls: Class) -> frozenset[str]:
    key = ("words", cls)
    if key not in program.memo:
        words: set[str] = set()
        for owner in program.mro(cls)[0]:
            symbol = program.class_symbol(owner)
            for member in symbol.members.values() if symbol is not None else ():
                if member.kind == "function":
                    node = function_node(program, owner.module, f"{owner.name}.{member.name}")
                    words |= _strings(node) if node is not None else set()
                else:
                    value = parse_expression(member.value) if member.value else None
                    words |= _strings(value) if value is not None else set()
        program.memo[key] = frozenset(words)
    return program.memo[key]


def _registries(program: Program, home: Found) -> dict[str, frozenset[str]]:
    """Collections of strings that a function looks into, by dotted name."""
    key = ("registries", home.module, home.name)
    if key not in program.memo:
        program.memo[key] = {}
        node = function_node(program, home.module, home.name)
        program.memo[key] = dict(_looked_into(program, home.module, node)) if node is not None else {}
    return program.memo[key]


def _looked_into(program: Program, module: str, function: ast.AST) -> Iterator[tuple[str, frozenset[str]]]:
    local: dict[str, tuple[str, str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom):
            source = program.absolute(module, "." * node.level + (node.module or ""))
            local |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    for name in sorted(names):
        source, target = local.get(name, (module, name))
        found = program.lookup(source, target)
        if (
            isinstance(found, Found)
            and found.symbol is not None
            and found.symbol.kind == "value"
            and found.symbol.value
        ):
            words = _collection(found.symbol.value)
            if words:
                table = program.table(found.module)
                added = table.keys.get(found.name, []) if table is not None else []
                yield found.path, words | set(added)


def _collection(text: str) -> frozenset[str]:
    """Strings of a set, list, tuple or dict (its keys); empty for anything else."""
    node = parse_expression(text)
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, ast.Name):
        node = node.args[0] if node.func.id in ("frozenset", "set", "list", "tuple", "dict") else node
    if isinstance(node, ast.Dict):
        parts: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, ast.Set | ast.List | ast.Tuple):
        parts = list(node.elts)
    else:
        return frozenset()
    return frozenset(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))


def _strings(node: ast.AST) -> set[str]:
    """Constants, docstrings and parts of messages left out."""
    skipped = {id(part) for joined in ast.walk(node) if isinstance(joined, ast.JoinedStr) for part in joined.values}
    skipped |= {id(line.value) for line in ast.walk(node) if isinstance(line, ast.Expr)}
    return {
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in skipped and len(n.value) < 60
    }
