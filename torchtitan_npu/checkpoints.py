"""What is wrong with a checkpoint: found before it is loaded, or read from the error that loading it gave."""

import re
import shutil
import traceback
from pathlib import Path

from torchtitan_npu.errors import UserError

_PLACE = "dataloader.dp_rank_"

# What torch's message on a missing entry means, by the entry's name: why it is missing, and what helps.
_MISSING = (
    (
        r"Missing key in checkpoint state_dict: dataloader\.dp_rank_",
        "fewer data-parallel ranks wrote it: each rank's place in the data is saved",
        "resume with as many ranks as wrote it, or start anew from its weights:"
        " --checkpoint.initial_load_path /the/whole/path/step-N and another --dump_folder",
    ),
    (
        r"Missing key in checkpoint state_dict|[Ss]ize mismatch",
        "another model wrote it",
        "name the config it was written with, or another --dump_folder",
    ),
)


def check_whole(folder: Path, fix: str) -> None:
    """
    Raises:
        UserError: a file that the checkpoint's metadata names is missing or cut off, or the metadata is damaged.
    """
    from torch.distributed.checkpoint import FileSystemReader

    try:
        metadata = FileSystemReader(folder).read_metadata()
        needed: dict[str, int] = {}
        for place in metadata.storage_data.values():
            needed[place.relative_path] = max(needed.get(place.relative_path, 0), place.offset + place.length)
    except Exception as error:  # any damage to a pickle shows as any exception
        raise UserError(f"checkpoint {folder} is corrupt: its .metadata cannot be read ({error})", fix) from error
    for name, size in needed.items():
        found = (folder / name).stat().st_size if (folder / name).exists() else None
        if found is None or found < size:
            state = "missing" if found is None else f"{found} bytes, {size} are needed"
            raise UserError(f"checkpoint {folder} is corrupt: {name} is {state}", fix)


def check_ranks(folder: Path, ranks: int) -> None:
    """
    Args:
        folder: a whole checkpoint.
        ranks: that read rows of their own in the run that is to resume from it.

    Raises:
        UserError: as many others wrote it. Each rank's place in the data is saved and cannot be shared out anew.
    """
    from torch.distributed.checkpoint import FileSystemReader

    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    wrote = sum(name.startswith(_PLACE) for name in entries)
    if wrote not in (0, ranks):
        raise UserError(
            f"checkpoint {folder} holds the places in the data of data-parallel ranks: {wrote} wrote it, this run has"
            f" {ranks}",
            f"resume with {wrote}, or add --checkpoint.exclude_from_loading dataloader: weights, optimizer and learning"
            " rate are resumed, the data starts anew",
        )


def unusable(error: Exception, folder: Path, fix: str) -> UserError:
    """The user's side of what saving or loading a checkpoint raised. `fix` is for one that is damaged."""
    causes = [cause for cause, _ in error.failures.values()] if hasattr(error, "failures") else [error]
    text = "; ".join(sorted({str(cause).splitlines()[0] if str(cause) else repr(cause) for cause in causes}))
    frames = traceback.extract_tb(error.__traceback__)
    if any(Path(frame.filename).name == "state_dict_saver.py" for frame in frames):
        # torch's zip writer does not pass on that the disk is full: what is free shows it.
        free = shutil.disk_usage(folder).free / 2**20
        return UserError(
            f"the checkpoint in {folder} cannot be written: {text}; {free:.0f} MiB are free there",
            "make room there, or name another --dump_folder; the steps saved before are whole",
        )
    for pattern, why, remedy in _MISSING:
        if re.search(pattern, text):
            return UserError(f"the checkpoint in {folder} does not fit this run: {why} ({text})", remedy)
    return UserError(f"the checkpoint in {folder} cannot be read: {text}", fix)
