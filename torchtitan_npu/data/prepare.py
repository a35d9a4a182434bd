"""`torchtitan-npu prepare`: documents, a held-out split and a tokenizer, made once and kept.

The same input gives the same files, byte for byte: documents are shuffled with a fixed seed (training reads them in
order the first time, and neighbours are alike), the split is by position and the tokenizer is trained by one thread.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torchtitan_npu.data import corpus
from torchtitan_npu.data import tokenizer as tokenizers_
from torchtitan_npu.data.layout import PreparedData
from torchtitan_npu.errors import UserError

_FORMAT = 2


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
    if data.complete() and _manifest(data).get("request") == request:
        say(f"prepare: {output} is up to date")
        return data
    _refuse_foreign(data)

    random.Random(0).shuffle(texts)
    every = round(1 / held_out) if held_out else 0
    validation = texts[every - 1 :: every] if every else []
    training = [text for number, text in enumerate(texts, start=1) if not every or number % every]
    if not training or (held_out and not validation):
        raise UserError(f"{len(texts)} documents are too few to hold out {held_out:.0%}", "give more text")

    data.manifest.unlink(missing_ok=True)
    _write(data.train, training)
    _write(data.held_out, validation)
    say(f"prepare: {len(training)} documents for training, {len(validation)} held out")
    size = _tokenizer(tokenizer, vocab_size, training, data, say)
    manifest = {"request": request, "documents": len(training), "held_out": len(validation), "vocabulary": size}
    data.manifest.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    say(f"prepare: wrote {output}")
    return data


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


def _manifest(data: PreparedData) -> dict[str, object]:
    return json.loads(data.manifest.read_text(encoding="utf-8"))


def _refuse_foreign(data: PreparedData) -> None:
    """Overwrite what prepare made, never a folder of something else."""
    known = {data.manifest.name, data.tokenizer.name, data.train.parent.name, data.held_out.parent.name, "cache"}
    if data.root.exists():
        others = sorted(entry.name for entry in data.root.iterdir() if entry.name not in known)
        if others:
            raise UserError(f"{data.root} holds other files ({', '.join(others[:3])})", "choose another --output")
    shutil.rmtree(data.root / "cache", ignore_errors=True)


def _write(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
