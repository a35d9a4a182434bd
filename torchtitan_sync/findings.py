"""Collects findings: one item per root cause, with every place it reaches."""

from dataclasses import dataclass, field

from torchtitan_sync import grades
from torchtitan_sync.model import Item, Rename, Use
from torchtitan_sync.program import Found, Program
from torchtitan_sync.records import Place
from torchtitan_sync.sources import Sources


@dataclass
class Findings:
    sources: Sources
    old: Program
    new: Program
    items: dict[tuple[str, str], Item] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        symbol: str,
        what: str,
        place: Place | None = None,
        *,
        moved_to: str = "",
        confidence: float = 1.0,
        rename: Rename | None = None,
        suggestion: str = "",
        detail: str = "",
        note: str = "",
        follows: str = "",
        file: str = "",
        call: tuple[int, tuple[str, ...]] | None = None,
    ) -> Item:
        """Adds a place to the item of this kind and symbol, which is made when it is the first."""
        item = self.items.get((kind, symbol))
        if item is None:
            item = self.items[kind, symbol] = Item(
                kind=kind,
                upstream_symbol=symbol,
                upstream_file=file or self.file_of(symbol),
                what=what,
                grade=grades.grade(kind),
                detail=detail,
                moved_to=moved_to,
                confidence=confidence,
                suggestion=suggestion,
                rename=rename,
                follows=follows,
                call=call,
            )
        if place is not None:
            use = self.use(place)
            if use not in item.downstream:
                item.downstream.append(use)
        if note and note not in item.notes:
            item.notes.append(note)
        return item

    def use(self, place: Place) -> Use:
        text = self.sources.contents[place.file].decode("utf-8", "replace").splitlines()
        line = text[place.line - 1] if 0 < place.line <= len(text) else ""
        # Syntax trees count bytes.
        data = line.encode()
        start, end = (len(data[:column].decode("utf-8", "ignore")) for column in (place.column, place.end_column))
        return Use(place.file, place.line, start, end, line.strip())

    def changed(self, path: str) -> bool:
        """Whether an upstream file differs between the snapshots."""
        blobs = [
            {file.path: file.blob for file in program.files.values()}.get(path) for program in (self.old, self.new)
        ]
        return blobs[0] != blobs[1]

    def file_of(self, symbol: str) -> str:
        """The upstream file of a dotted name, in the old snapshot or else the new one."""
        for program in (self.old, self.new):
            name = symbol
            while name:
                if name in program.files:
                    return program.files[name].path
                name = name.rpartition(".")[0]
            found = program.resolve_plainly(symbol)
            if isinstance(found, Found) and found.module in program.files:
                return program.files[found.module].path
        return ""
