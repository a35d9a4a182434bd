"""Make prepared data known to torchtitan's dataset table, which is upstream's way to add a dataset."""

from pathlib import Path
from typing import Any

NAME = "prepared"


def register() -> None:
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS

    DATASETS[NAME] = DatasetConfig(path="", loader=_load, sample_processor=_text)


def _load(path: str) -> Any:
    from datasets import load_dataset

    # The cache lies beside the data: `make clean` removes both, and the user's own cache is left alone.
    cache = Path(path).parent.parent / "cache"
    return load_dataset("json", data_files=path, split="train", cache_dir=str(cache))


def _text(sample: dict[str, Any]) -> str:
    return sample["text"]
