"""Documents from files, and the corpus that every Python carries."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchtitan_npu.errors import UserError

# A document of about this length fills a few rows of a small model: long enough for context, short enough to mix.
_TARGET_CHARACTERS = 4000
_ENCODING = "utf-8-sig"  # UTF-8, with the mark that Windows programs put before it or without


def documents(files: Sequence[str], field: str) -> Iterator[str]:
    """Every document of the given files, or of the language reference when there are none.

    Raises:
        UserError: a file is not there, is given twice, or does not hold what its suffix says.
    """
    if not files:
        yield from language_reference()
        return
    seen: set[Path] = set()
    for name in files:
        path = Path(name)
        if not path.is_file():
            state = "is a folder" if path.is_dir() else "does not exist"
            raise UserError(f"input file {name} {state}", "name text, JSONL (.jsonl, .json) or Parquet files")
        if path.resolve() in seen:
            raise UserError(f"input file {name} is given twice: what is held out would be in the training text as well")
        seen.add(path.resolve())
        try:
            yield from _READERS.get(path.suffix.lower(), _text)(path, field)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 text: {error.reason} at byte {error.start}",
                "convert it first (iconv -t UTF-8), or unpack it if it is compressed",
            ) from error


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
    yield from split(path.read_text(encoding=_ENCODING))


def _json_lines(path: Path, field: str) -> Iterator[str]:
    with path.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where} is not JSON: {error}", "each line is to be one JSON object") from error
            if not isinstance(record, dict):
                raise UserError(f"{where} is not a JSON object", "each line is to be one JSON object")
            if field not in record:
                raise UserError(f"{where} has no field {field!r}; it has {_some(record)}", "name it with --field")
            yield from _value(record[field], field, where)


def _parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        names = table.schema_arrow.names
        if field not in names:
            raise UserError(f"{path} has no column {field!r}; it has {_some(names)}", "name it with --field")
        row = 0
        for batch in table.iter_batches(columns=[field]):
            for row, value in enumerate(batch.column(0).to_pylist(), start=row + 1):  # noqa: B020  rows count on
                yield from _value(value, field, f"{path} row {row}")
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _value(value: Any, field: str, where: str) -> Iterator[str]:
    """The text of one record; none where it is null or empty."""
    if not value and (value is None or isinstance(value, str)):
        return
    if not isinstance(value, str):
        raise UserError(f"{where}: {field!r} is {type(value).__name__}, not text", "name a field of text with --field")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a pair that JSON writes as \ud800
        raise UserError(f"{where}: {field!r} is not Unicode text: {error.reason}") from error
    yield value


def _some(names: Any, most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "") or "none"


_READERS = {".jsonl": _json_lines, ".json": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
