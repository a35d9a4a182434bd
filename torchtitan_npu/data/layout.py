"""The folder that `prepare` writes and `train` reads. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PreparedData:
    root: Path

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    @property
    def train(self) -> Path:
        return self.root / "train" / "data.jsonl"

    @property
    def held_out(self) -> Path:
        return self.root / "held_out" / "data.jsonl"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    def complete(self) -> bool:
        # The manifest is written last, so an interrupted `prepare` leaves a folder that is not complete.
        return self.manifest.exists() and self.train.exists() and (self.tokenizer / "tokenizer.json").exists()
