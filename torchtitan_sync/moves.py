"""Where an upstream symbol has gone, and how sure that is.

In this order: what the maintainer declared; the definition, where only a re-export went; git's renamed file; a single
new definition of the same name; for members the class that their own class became; likeness of the code. A nested
`Config` or a tiny body is only looked for where its owner went, never everywhere.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torchtitan_sync import bodies, signatures, surface
from torchtitan_sync.inference import symbol_value
from torchtitan_sync.model import FileRename
from torchtitan_sync.program import Found, Program
from torchtitan_sync.tables import Symbol
from torchtitan_sync.values import Class, Instance, Value

_ALIKE = 0.55
"""Likeness from which code under another name is taken for the same."""

FOLLOWED = "followed its class"
_COMMONPLACE = 12
"""A line that more definitions have says nothing about where a body went."""


@dataclass(frozen=True)
class Move:
    new: str
    """Dotted name in the new snapshot."""
    confidence: float
    how: str


@dataclass(frozen=True)
class _Definition:
    module: str
    name: str
    symbol: Symbol

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


class Mover:
    def __init__(
        self, old: Program, new: Program, upstream: str, renames: list[FileRename], declared: dict[str, str]
    ) -> None:
        self.old = old
        self.new = new
        self._upstream = upstream
        self._declared = declared
        self._moves: dict[str, Move | None] = {}
        self._origin: dict[str, list[str]] = {}
        """New dotted name to the old ones that went there."""
        self._successors: dict[str, Move | None] = {}
        self._by_name: dict[str, list[_Definition]] | None = None
        self._by_line: dict[str, list[_Definition]] | None = None
        self._fields: dict[str, list[tuple[Class, str]]] | None = None
        new_modules = {file.path: name for name, file in new.files.items()}
        old_modules = {file.path: name for name, file in old.files.items()}
        self.files = {
            old_modules[r.old]: (new_modules[r.new], r.similarity)
            for r in renames
            if r.old in old_modules and r.new in new_modules and self._says_something(old_modules[r.old])
        }

    def _says_something(self, module: str) -> bool:
        table = self.old.table(module)
        return table is not None and any(symbol.kind in ("function", "class") for symbol in table.names.values())

    # Asked by the new program

    def follow(self, owner: str, name: str) -> str | None:
        """For `Program.follow`: owner is a name of the new snapshot, or of the plugin."""
        for old_owner in (owner, *self._origin.get(owner, ())):
            path = f"{old_owner}.{name}"
            move = self.find(path)
            if move is not None and move.new != path:
                return move.new
        return None

    def formerly(self, owner: str, name: str) -> Value | None:
        """For `Program.formerly`: only objects of upstream's classes are of use, behind which moves can be found."""
        for old_owner in (owner, *self._origin.get(owner, ())):
            found = self.old.resolve(f"{old_owner}.{name}")
            if isinstance(found, Found) and found.owner is not None:
                value = symbol_value(self.old, found, Instance(found.owner))
                return value if isinstance(value, Instance) else None
        return None

    def find(self, path: str) -> Move | None:
        """Where an old dotted name went. None where it was not upstream's, or cannot be found."""
        if path not in self._moves:
            self._moves[path] = None  # what a cycle sees
            move = self._find(path)
            self._moves[path] = move
            if move is not None:
                self._origin.setdefault(move.new, []).append(path)
        return self._moves[path]

    def adopt(self, old: str, new: str, confidence: float, how: str) -> None:
        """A move that is known from elsewhere, unless the old name is still there."""
        if not isinstance(self.new.resolve_plainly(old), Found) and self._moves.get(old) is None:
            self._moves[old] = Move(self._declared.get(old, new), confidence, how)
            self._origin.setdefault(self._moves[old].new, []).append(old)  # type: ignore[union-attr]

    def known(self) -> dict[str, Move]:
        return {path: move for path, move in self._moves.items() if move is not None}

    def _find(self, path: str) -> Move | None:
        if path in self._declared:
            return Move(self._declared[path], 1.0, "declared")
        found = self.old.resolve(path)
        if not isinstance(found, Found) or found.module.partition(".")[0] != self._upstream:
            return None
        home = found.path
        if found.owner is not None:
            return self._member(found, self._accessed(path, found))
        if home != path:
            if home in self._declared:
                return Move(self._declared[home], 1.0, "declared")
            if isinstance(self.new.resolve_plainly(home), Found):
                return Move(home, 0.99, "defined there; the re-export went")
            return self.find(home)
        if not found.name:
            return self._module(found.module)
        return self._top(found)

    def _accessed(self, path: str, found: Found) -> Class:
        """The upstream class through which a member was asked for; its own where that is the plugin's."""
        assert found.owner is not None
        through = self.old.resolve(path.rpartition(".")[0])
        if isinstance(through, Found) and through.module.partition(".")[0] == self._upstream and through.name:
            return Class(through.module, through.name)
        return found.owner

    # Modules

    def _successor(self, module: str) -> Move | None:
        """What a module's file became, by git or by its name: `x/infra/parallelize.py` to `x/parallelize.py`."""
        if module in self.files:
            target, likeness = self.files[module]
            return Move(target, round(0.6 + 0.4 * likeness, 2), "git: file renamed")
        if isinstance(self.new.resolve_plainly(module), Found):
            return None
        if module not in self._successors:
            self._successors[module] = self._namesake(module)
        return self._successors[module]

    def _namesake(self, module: str) -> Move | None:
        table = self.old.table(module)
        names = (
            {s.name for s in table.names.values() if s.kind in ("function", "class")} if table is not None else set()
        )
        last = module.rpartition(".")[2]
        taken = {target for target, _ in self.files.values()}
        scored = []
        for other in self.new.files:
            fresh = other.rpartition(".")[2] == last and other not in self.old.files
            if not fresh or other in taken or (".experiments." in other and ".experiments." not in module):
                continue
            shared = len(names & set(self.new.table(other).names)) if names else 0  # type: ignore[union-attr]
            near = len(_common(other, module)) >= len(module.split(".")) - 2
            if shared or near:
                scored.append((near, shared, other))
        scored.sort(reverse=True)
        if not scored or (len(scored) > 1 and scored[0][:2] == scored[1][:2]):
            return None
        near, shared, other = scored[0]
        sure = 0.55 + 0.15 * near + 0.25 * shared / max(len(names), 1)
        return Move(other, round(sure, 2), "module of the same name" + (", near" if near else ""))

    def _module(self, module: str) -> Move | None:
        successor = self._successor(module)
        if successor is not None:
            return successor
        # Where most of its definitions, or of a folder's modules, went.
        table = self.old.table(module)
        parts = [f"{module}.{s.name}" for s in table.names.values() if s.kind in ("function", "class")] if table else []
        below = [
            name
            for name in self.old.files
            if name.startswith(f"{module}.") and name.count(".") == module.count(".") + 1
        ]
        votes: Counter[str] = Counter()
        for part in [*parts, *below]:
            move = self.find(part)
            if move is not None and move.new.rpartition(".")[2] == part.rpartition(".")[2]:
                votes[self._module_of(move.new) if part in parts else move.new.rpartition(".")[0]] += 1
        total = len(parts) + len(below)
        if not votes:
            return None
        target, count = votes.most_common(1)[0]
        if count < 2 * total / 5:
            return None
        return Move(target, round(0.4 + 0.5 * count / total, 2), f"{count} of its {total} parts are there")

    def _module_of(self, path: str) -> str:
        found = self.new.resolve_plainly(path)
        return found.module if isinstance(found, Found) else path.rpartition(".")[0]

    # Functions, classes and values of a module

    def _top(self, found: Found) -> Move | None:
        assert found.symbol is not None
        name, module = found.name, found.module
        if found.symbol.kind == "class":
            typed = self._type_of_same_field(found)
            if typed is not None:
                return typed
        successor = self._successor(module)
        if successor is not None:
            moved = self.new.lookup_plainly(successor.new, name)
            if isinstance(moved, Found) and moved.symbol is not None and self._same_kind(found.symbol, moved.symbol):
                return Move(moved.path, round(0.3 + 0.7 * successor.confidence, 2), successor.how)
        text = bodies.of(self.old, module, found.symbol)
        same = [d for d in self._named(name) if self._same_kind(found.symbol, d.symbol)]
        fresh = [d for d in same if not self._was_there(d)]
        best = self._best(text, fresh, module)
        longer = self._longer_name(found, text, successor) if successor is not None else None
        # In its own module's successor it is rather that than a rewritten namesake elsewhere.
        if longer is not None and (best is None or best[1] < 0.5 or longer[1] > best[1]):
            return Move(longer[0].path, round(0.4 + 0.5 * longer[1], 2), "alike under a longer name, same module")
        if best is not None and found.symbol.kind != "value":
            definition, likeness = best
            # One new definition of that name is it even when it was rewritten; among several, likeness decides.
            strayed = ".experiments." in definition.module and ".experiments." not in module
            if (len(fresh) == 1 and not strayed) or likeness >= 0.5:
                # Of a name that had several definitions, the new one can be another's successor, or a newcomer.
                sure = 0.8 if len(fresh) == 1 and self._defined_once(name) else 0.6
                return Move(definition.path, round(sure + (0.97 - sure) * likeness, 2), "same name")
        elif best is not None and (len(fresh) == 1 or best[1] >= 0.5):
            return Move(best[0].path, round(0.6 + 0.3 * best[1], 2), "same name")
        if found.symbol.kind == "value":
            return None
        old_too = self._best(text, [d for d in same if d not in fresh], module)
        elsewhere = self._as_method(found, text) or self._alike(found, text)
        if old_too is not None and old_too[1] >= _ALIKE and bodies.size(text) >= bodies.SMALL:
            merged = Move(old_too[0].path, round(0.5 + 0.4 * old_too[1], 2), "same name and alike, there before")
            if elsewhere is None or merged.confidence >= elsewhere.confidence:
                return merged
        return elsewhere

    def _defined_once(self, name: str) -> bool:
        mine = [module for module in self.old.files if module.partition(".")[0] == self._upstream]
        return sum(self.old.symbol(module, name) is not None for module in mine) == 1

    def _was_there(self, definition: _Definition) -> bool:
        """In its module, or in one that became this one: it then has a past of its own."""
        module, name = definition.module, definition.name
        if self.old.symbol(module, name) is not None:
            return True
        holders = (
            old for old in self.old.files if old not in self.new.files and self.old.symbol(old, name) is not None
        )
        return any((move := self._successor(old)) is not None and move.new == module for old in holders)

    def _longer_name(self, found: Found, text: str, successor: Move) -> tuple[_Definition, float] | None:
        """`TransformerBlock` that is `Llama3TransformerBlock` now, in what its module became."""
        assert found.symbol is not None
        table = self.new.table(successor.new)
        candidates = [
            _Definition(successor.new, s.name, s)
            for s in (table.names.values() if table is not None else ())
            if self._same_kind(found.symbol, s) and found.name in s.name and s.name != found.name
        ]
        best = self._best(text, candidates, found.module)
        return best if best is not None and best[1] >= 0.15 else None

    def _type_of_same_field(self, found: Found) -> Move | None:
        """For the class of a configuration section: the class that the section's field has now."""
        cls = Class(found.module, found.name)
        for owner, field in self._sections().get(found.name, ()):
            if surface.field_class(self.old, owner, self.old.attribute(owner, field, follow=False)) != cls:
                continue
            target = self._class_now(owner)
            if target is None or (target == owner and self.new.resolve_plainly(found.path) is None):
                continue
            there = self.new.attribute(target, field, follow=False)
            now = surface.field_class(self.new, target, there)
            if now is not None and now.module.partition(".")[0] == self._upstream and now != cls:
                return Move(now.path, 0.85, f"type of the field `{field}` of {target.path}")
        return None

    def _sections(self) -> dict[str, list[tuple[Class, str]]]:
        """Fields of upstream's dataclasses by the last name of their type."""
        if self._fields is None:
            self._fields = {}
            for module in self.old.files:
                table = self.old.table(module) if module.partition(".")[0] == self._upstream else None
                for symbol in table.names.values() if table is not None else ():
                    if symbol.kind == "class" and signatures.is_dataclass(symbol):
                        for member in symbol.members.values():
                            if member.kind == "value" and member.annotation:
                                last = member.annotation.rpartition(".")[2]
                                self._fields.setdefault(last, []).append((Class(module, symbol.name), member.name))
        return self._fields

    def _as_method(self, found: Found, text: str) -> Move | None:
        """A function that became a method, or a class attribute."""
        assert found.symbol is not None
        if found.symbol.kind != "function":
            return None
        name = found.name
        candidates = []
        for owner in self._classes():
            member = owner.symbol.members.get(name)
            if member is not None and member.kind == "function":
                old = self.old.symbol(owner.module, f"{owner.name}.{name}")
                if old is None:
                    candidates.append(_Definition(owner.module, f"{owner.name}.{name}", member))
        best = self._best(text, candidates, found.module)
        if best is not None and (best[1] >= _ALIKE or (len(candidates) == 1 and best[1] >= 0.3)):
            return Move(best[0].path, round(0.4 + 0.5 * best[1], 2), "function became a method")
        return None

    def _alike(self, found: Found, text: str) -> Move | None:
        """Another name: a new definition whose code is alike, in the same module first."""
        assert found.symbol is not None
        if bodies.size(text) < bodies.SMALL:
            return self._renamed_nearby(found, text)
        candidates = [d for d in self._sharing_lines(found) if self._same_kind(found.symbol, d.symbol)]
        best = self._best(text.replace(found.name, "_"), candidates, found.module, anonymous=True)
        if best is not None and best[1] >= _ALIKE:
            return Move(best[0].path, round(0.3 + 0.65 * best[1], 2), "alike under another name")
        return self._renamed_nearby(found, text)

    def _sharing_lines(self, found: Found) -> list[_Definition]:
        """The new definitions that have the most lines in common with an old one."""
        if self._by_line is None:
            self._by_line = {}
            for definitions in self._index().values():
                for definition in definitions:
                    if self.old.symbol(definition.module, definition.name) is None:
                        for line in _telling_lines(self.new.segment(definition.module, definition.symbol)):
                            self._by_line.setdefault(line, []).append(definition)
        assert found.symbol is not None
        shared: Counter[str] = Counter()
        by_path = {}
        for line in _telling_lines(self.old.segment(found.module, found.symbol)):
            holders = self._by_line.get(line, ())
            for definition in holders if len(holders) <= _COMMONPLACE else ():
                shared[definition.path] += 1
                by_path[definition.path] = definition
        return [by_path[path] for path, _ in shared.most_common(6)]

    def _renamed_nearby(self, found: Found, text: str) -> Move | None:
        """In the module itself, or the one it became, the one new definition whose parameters are the same."""
        assert found.symbol is not None
        modules = [found.module, *([self.files[found.module][0]] if found.module in self.files else [])]
        for module in modules:
            table = self.new.table(module)
            if table is None:
                continue
            fresh = [
                _Definition(module, s.name, s)
                for s in table.names.values()
                if self._same_kind(found.symbol, s) and self.old.symbol(found.module, s.name) is None
            ]
            best = self._best(text.replace(found.name, "_"), fresh, found.module, anonymous=True)
            if best is not None and best[1] >= 0.5:
                return Move(best[0].path, round(0.3 + 0.6 * best[1], 2), "alike under another name, same module")
        return None

    def _best(
        self, text: str, candidates: list[_Definition], module: str, *, anonymous: bool = False
    ) -> tuple[_Definition, float] | None:
        scored = []
        for definition in candidates:
            code = bodies.of(self.new, definition.module, definition.symbol)
            if anonymous:
                code = code.replace(definition.symbol.name, "_")
            likeness = bodies.similarity(text, code)
            # Ties: near to where it was, and not in an experiment.
            near = len(_common(definition.module, module))
            apart = ".experiments." in definition.module and ".experiments." not in module
            scored.append((round(likeness, 2) - 0.2 * apart, near, likeness, definition))
        if not scored:
            return None
        _, _, likeness, definition = max(scored, key=lambda entry: entry[:2])
        return definition, likeness

    # Members of classes

    def _member(self, found: Found, owner: Class) -> Move | None:
        assert found.symbol is not None
        name = found.name.rpartition(".")[2]
        target = self._class_now(owner)
        if target is not None:
            there = self.new.attribute(target, name, follow=False)
            if isinstance(there, Found) and target != owner:
                return Move(f"{target.path}.{name}", 0.95, FOLLOWED)
            renamed = self._renamed_member(found, owner, target)
            if renamed is not None:
                return renamed
        if found.symbol.kind == "class":
            return None
        if found.symbol.kind == "function":
            return self._method_elsewhere(found, owner)
        return self._field_elsewhere(found, owner)

    def _class_now(self, owner: Class) -> Class | None:
        """The same class, or the one it became."""
        if self.new.class_symbol(owner) is not None:
            return owner
        move = self.find(owner.path)
        now = self.new.resolve_plainly(move.new) if move is not None else None
        if isinstance(now, Found) and now.symbol is not None and now.symbol.kind == "class":
            return Class(now.module, now.name)
        return None

    def _renamed_member(self, found: Found, owner: Class, target: Class) -> Move | None:
        """A new member of the same class that says the same: code for methods, type and default for fields."""
        assert found.symbol is not None
        old_symbol, new_symbol = self.old.class_symbol(owner), self.new.class_symbol(target)
        if old_symbol is None or new_symbol is None:
            return None
        known = {**old_symbol.members, **old_symbol.attributes}
        fresh = [s for n, s in {**new_symbol.attributes, **new_symbol.members}.items() if n not in known]
        fresh = [s for s in fresh if s.kind == found.symbol.kind]
        gone = [s for n, s in known.items() if n not in {**new_symbol.attributes, **new_symbol.members}]
        only = len(fresh) == len([s for s in gone if s.kind == found.symbol.kind]) == 1
        scored = [(self._member_likeness(found, target.module, s, only=only), s) for s in fresh]
        scored = [entry for entry in scored if entry[0] >= _ALIKE]
        if not scored:
            return None
        scored.sort(key=lambda entry: -entry[0])
        likeness, symbol = scored[0]
        if len(scored) > 1 and scored[1][0] > likeness - 0.1:
            return None  # two are as good
        return Move(f"{target.path}.{symbol.name}", round(0.35 + 0.6 * likeness, 2), "renamed in its class")

    def _member_likeness(self, found: Found, module: str, other: Symbol, *, only: bool) -> float:
        """`only`: nothing else of its kind went, and nothing else came."""
        assert found.symbol is not None
        if found.symbol.kind != "value":
            old = bodies.of(self.old, found.module, found.symbol).replace(found.symbol.name, "_")
            return bodies.similarity(old, bodies.of(self.new, module, other).replace(other.name, "_"))
        names = _word_likeness(found.symbol.name, other.name)
        said = [(found.symbol.annotation, other.annotation), (found.symbol.value, other.value)]
        equal = [a == b for a, b in said if a or b]
        same = sum(equal) / len(equal) if equal else 0.0
        if only and equal and same == 1.0:
            return max(0.6, 0.5 * names + 0.5 * same)
        return 0.5 * names + 0.5 * same if names >= 0.4 else 0.0

    def _method_elsewhere(self, found: Found, owner: Class) -> Move | None:
        """A method that is now a function, or in another class (a split)."""
        assert found.symbol is not None
        name = found.symbol.name
        text = bodies.of(self.old, found.module, found.symbol)
        if bodies.size(text) < bodies.SMALL or name.startswith("__"):
            return None
        functions = [d for d in self._named(name) if d.symbol.kind == "function"]
        methods = [
            _Definition(c.module, f"{c.name}.{name}", c.symbol.members[name])
            for c in self._classes()
            if name in c.symbol.members and c.symbol.members[name].kind == "function"
        ]
        fresh = [d for d in [*functions, *methods] if self.old.symbol(d.module, d.name) is None]
        best = self._best(text, fresh, found.module)
        if best is not None and best[1] >= _ALIKE:
            return Move(best[0].path, round(0.3 + 0.6 * best[1], 2), "same name and alike in another place")
        return None

    def _field_elsewhere(self, found: Found, owner: Class) -> Move | None:
        """A configuration field that went to another section: the one dataclass that has gained a field of the name."""
        assert found.symbol is not None
        name = found.symbol.name
        symbol = self.old.class_symbol(owner)
        if symbol is None or not signatures.is_dataclass(symbol) or not found.symbol.annotation:
            return None
        gained = []
        for definition in self._classes():
            member = definition.symbol.members.get(name)
            if member is None or not member.annotation or not signatures.is_dataclass(definition.symbol):
                continue
            if ".experiments." in definition.module and ".experiments." not in found.module:
                continue
            if self.old.symbol(definition.module, f"{definition.name}.{name}") is None:
                alike = (member.annotation == found.symbol.annotation) + (member.value == found.symbol.value)
                gained.append((alike, definition))
        if not gained:
            return None
        gained.sort(key=lambda entry: -entry[0])
        if len(gained) > 1 and gained[0][0] == gained[1][0]:
            return None
        alike, definition = gained[0]
        if alike < 1:
            return None
        return Move(
            f"{definition.path}.{name}", round(0.6 + 0.15 * alike, 2), "field of the same name in another section"
        )

    # The new snapshot's definitions

    def _index(self) -> dict[str, list[_Definition]]:
        if self._by_name is None:
            self._by_name = {}
            for module in self.new.files:
                table = self.new.table(module) if module.partition(".")[0] == self._upstream else None
                for symbol in table.names.values() if table is not None else ():
                    if symbol.kind != "import":
                        self._by_name.setdefault(symbol.name, []).append(_Definition(module, symbol.name, symbol))
        return self._by_name

    def _named(self, name: str) -> list[_Definition]:
        return self._index().get(name, [])

    def _classes(self) -> Iterator[_Definition]:
        """Nested ones too."""

        def below(definition: _Definition) -> Iterator[_Definition]:
            yield definition
            for member in definition.symbol.members.values():
                if member.kind == "class":
                    yield from below(_Definition(definition.module, f"{definition.name}.{member.name}", member))

        for definitions in self._index().values():
            for definition in definitions:
                if definition.symbol.kind == "class":
                    yield from below(definition)

    @staticmethod
    def _same_kind(first: Symbol, second: Symbol) -> bool:
        return first.kind == second.kind


def _telling_lines(text: str) -> set[str]:
    return {line for part in text.split("\n") if len(line := part.strip()) > 10 and not line.startswith("#")}


def _common(first: str, second: str) -> list[str]:
    shared = []
    for a, b in zip(first.split("."), second.split("."), strict=False):
        if a != b:
            break
        shared.append(a)
    return shared


def _word_likeness(first: str, second: str) -> float:
    """Of two names, by their words; a word and its beginning (`len`, `length`) are the same."""
    a, b = (name.lower().strip("_").split("_") for name in (first, second))
    shared = sum(any(x.startswith(y) or y.startswith(x) for y in b if x and y) for x in a)
    return min(1.0, 2 * shared / (len(a) + len(b)))
