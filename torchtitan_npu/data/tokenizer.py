"""Train a byte-level BPE tokenizer, or take one that exists."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtitan_npu.errors import UserError

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")  # of a Hugging Face tokenizer
SMALLEST = 256 + 2  # every byte, and the two marks


def check_size(vocab_size: int) -> None:
    if vocab_size < SMALLEST:
        raise UserError(
            f"a byte-level tokenizer cannot have {vocab_size} tokens: every byte is one, and two mark a text's ends",
            f"--vocab-size {SMALLEST} at least",
        )


def train(texts: Sequence[str], vocab_size: int, folder: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json; return the number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            # The library reserves memory for all of them; more than one a byte cannot be learned.
            vocab_size=min(vocab_size, SMALLEST + sum(len(text.encode()) for text in texts)),
            special_tokens=[BEGIN, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": BEGIN, "eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return tokenizer.get_vocab_size()


def take(source: Path, folder: Path) -> int:
    """Copy an existing tokenizer's files; return the number of tokens."""
    size = vocabulary_size(source)
    folder.mkdir(parents=True, exist_ok=True)
    copy(source, folder)
    return size


def copy(source: Path, folder: Path) -> None:
    """Copy the files of a tokenizer that are there."""
    for name in _FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def vocabulary_size(folder: Path) -> int:
    """One more than the largest token id: what a model's embedding must hold at least."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(f"no tokenizer in {folder}: {path.name} is missing", "name a folder that holds tokenizer.json")
    return max(read(folder).get_vocab(with_added_tokens=True).values()) + 1


def read(folder: Path) -> Any:
    """The `tokenizers.Tokenizer` of a folder."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for any malformed file
        raise UserError(f"{path} cannot be read: {error}", "make it again with torchtitan-npu prepare") from error
