"""`torchtitan-npu prepare`: documents, a held-out split and a tokenizer, made once and kept.

The same input gives the same files, byte for byte: documents are shuffled with a fixed seed (training reads them in
order the first time, and neighbours are alike), the split is by position and the tokenizer is trained by one thread.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from torchtitan_npu.data import corpus
from torchtitan_npu.data import tokenizer as tokenizers_
from torchtitan_npu.data.layout import PreparedData
from torchtitan_npu.errors import UserError

_FORMAT = 2
_UNFINISHED = ".unfinished"
_CACHE = "cache"  # where `train` keeps the data as tables


def run(
    *,
    files: Sequence[str],
    output: str,
    tokenizer: str | None,
    vocab_size: int,
    field: str,
    held_out: float,
    say: Callable[[str], None],
) -> PreparedData:
    if not 0 <= held_out < 1:
        raise UserError(f"--held-out {held_out} is not a share", "give a number from 0 up to, not including, 1")
    if tokenizer is None:
        tokenizers_.check_size(vocab_size)
    data = PreparedData(Path(output))
    say(f"prepare: reading {', '.join(files) if files else 'the Python language reference (pydoc_data.topics)'}")
    texts = list(corpus.documents(files, field))
    if not texts:
        raise UserError("the input holds no text", "name files that hold text")
    request = _request(texts, tokenizer, vocab_size, held_out)
    fresh = not data.root.exists()
    with _alone(data.root, say):
        if data.complete() and _made_for(data) == request:
            say(f"prepare: {output} is up to date")
            return data
        _refuse_foreign(data)
        # Everything is made beside what is there, which is replaced when nothing can fail any more.
        made = PreparedData(data.root / _UNFINISHED)
        shutil.rmtree(made.root, ignore_errors=True)
        try:
            _make(made, texts, tokenizer, vocab_size, held_out, request, say)
            _replace(data, made)
        finally:
            shutil.rmtree(made.root, ignore_errors=True)
            if fresh:
                with contextlib.suppress(OSError):  # it holds what was made
                    data.root.rmdir()
    say(f"prepare: wrote {output}")
    return data


@contextlib.contextmanager
def _alone(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """The folder, made if it is not there, while no other run of prepare has it."""
    while True:
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"prepare: another run is writing {root}; waiting for it")
                fcntl.flock(folder, fcntl.LOCK_EX)
            if root.exists() and os.path.samestat(os.fstat(folder), root.stat()):
                yield
                return  # else the other run failed and has removed it
        finally:
            os.close(folder)


def _make(
    made: PreparedData,
    texts: list[str],
    tokenizer: str | None,
    vocab_size: int,
    held_out: float,
    request: dict[str, object],
    say: Callable[[str], None],
) -> None:
    random.Random(0).shuffle(texts)
    training, validation = _split(texts, held_out)
    _write(made.train, training)
    _write(made.held_out, validation)
    say(f"prepare: {len(training)} documents for training, {len(validation)} held out")
    size = _tokenizer(tokenizer, vocab_size, training, made, say)
    manifest = {"request": request, "documents": len(training), "held_out": len(validation), "vocabulary": size}
    made.manifest.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _split(texts: Sequence[str], held_out: float) -> tuple[list[str], list[str]]:
    """Training and validation documents. The share is exact, and what is held out occurs in training nowhere."""
    share = Fraction(str(held_out))
    validation = [text for n, text in enumerate(texts) if int(share * (n + 1)) > int(share * n)]
    held = set(validation)
    training = [text for text in texts if text not in held]
    if not training or (held_out and not validation):
        fix = "give more text, or another share with --held-out (0: none)"
        raise UserError(f"{len(texts)} documents are too few to hold out {100 * held_out:g}%", fix)
    return training, validation


def _tokenizer(source: str | None, vocab_size: int, texts: Sequence[str], data: PreparedData, say: Callable) -> int:
    if source is not None:
        size = tokenizers_.take(Path(source), data.tokenizer)
        say(f"prepare: tokenizer from {source}, {size} tokens")
        return size
    # Threads would merge their counts in any order; one thread makes ties fall the same way each time.
    os.environ["RAYON_NUM_THREADS"] = "1"
    size = tokenizers_.train(texts, vocab_size, data.tokenizer)
    say(f"prepare: trained a BPE tokenizer, {size} tokens")
    return size


def _request(texts: Iterable[str], tokenizer: str | None, vocab_size: int, held_out: float) -> dict[str, object]:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    source = hashlib.sha256(_read_tokenizer(tokenizer)).hexdigest() if tokenizer else None
    return {
        "format": _FORMAT,
        "text": digest.hexdigest(),
        "tokenizer": source,
        "vocab_size": None if tokenizer else vocab_size,
        "held_out": held_out,
    }


def _read_tokenizer(folder: str) -> bytes:
    path = Path(folder) / "tokenizer.json"
    if not path.exists():
        raise UserError(f"--tokenizer {folder}: no tokenizer.json there", "name a Hugging Face tokenizer's folder")
    return path.read_bytes()


def _made_for(data: PreparedData) -> object:
    """The request that the folder answers; None where its manifest is damaged."""
    try:
        return json.loads(data.manifest.read_text(encoding="utf-8"))["request"]
    except (ValueError, KeyError, TypeError):
        return None


def _refuse_foreign(data: PreparedData) -> None:
    """Overwrite what prepare made, never a folder of something else."""
    if not data.root.exists():
        return
    found = {entry.name for entry in data.root.iterdir()}
    ours = {_UNFINISHED, data.manifest.name, _CACHE, *(part.name for part in _parts(data))}
    # A folder may hold a `train` of its own: without one of these two files it is not of this making.
    others = found if not found & {_UNFINISHED, data.manifest.name} else found - ours
    if others:
        raise UserError(f"{data.root} holds other files ({', '.join(sorted(others)[:3])})", "choose another --output")


def _parts(data: PreparedData) -> list[Path]:
    return [data.train.parent, data.held_out.parent, data.tokenizer]


def _replace(data: PreparedData, made: PreparedData) -> None:
    """The manifest goes first and comes last, so that a folder with one is whole."""
    data.manifest.unlink(missing_ok=True)
    shutil.rmtree(data.root / _CACHE, ignore_errors=True)
    for old, new in zip(_parts(data), _parts(made), strict=True):
        shutil.rmtree(old, ignore_errors=True)
        new.rename(old)
    made.manifest.rename(data.manifest)


def _write(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
