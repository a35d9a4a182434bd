"""Documents from files, and the corpus that every Python carries."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchtitan_npu.errors import UserError

# A document of about this length fills a few rows of a small model: long enough for context, short enough to mix.
_TARGET_CHARACTERS = 4000


def documents(files: Sequence[str], field: str) -> Iterator[str]:
    """Every document of the given files, or of the language reference when there are none."""
    if not files:
        yield from language_reference()
        return
    for name in files:
        path = Path(name)
        if not path.is_file():
            raise UserError(f"input file {name} does not exist", "name text, JSONL (.jsonl, .json) or Parquet files")
        yield from _READERS.get(path.suffix.lower(), _text)(path, field)


def language_reference() -> Iterator[str]:
    """Python's language reference as plain text, which pydoc shows as help topics."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield from split(topics[name])


def split(text: str, target: int = _TARGET_CHARACTERS) -> Iterator[str]:
    """Cut a text at blank lines into documents of about `target` characters."""
    part: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        part.append(paragraph)
        size += len(paragraph) + 2
        if size >= target:
            yield "\n\n".join(part).strip("\n") + "\n"
            part, size = [], 0
    if "".join(part).strip():
        yield "\n\n".join(part).strip("\n") + "\n"


def _text(path: Path, field: str) -> Iterator[str]:
    try:
        yield from split(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", "convert it first"
        ) from error


def _json_lines(path: Path, field: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text = record[field]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path} line {number} is not a JSON object with a field {field!r}", "name the field with --field"
                ) from error
            yield str(text)


def _parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(path)
    if field not in table.schema_arrow.names:
        raise UserError(
            f"{path} has no column {field!r}; it has {', '.join(table.schema_arrow.names)}", "name it with --field"
        )
    for batch in table.iter_batches(columns=[field]):
        yield from (str(value) for value in batch.column(0).to_pylist() if value)


_READERS = {".jsonl": _json_lines, ".json": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
