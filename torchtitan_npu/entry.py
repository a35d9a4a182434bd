"""One rank of a training run: `python -m torchtitan_npu.entry DATA [torchtitan's flags]`, started by `launch.py`.

Everything that changes the process happens here, by explicit calls and in this order: start method, device, patches,
datasets, configuration with its converters. Importing the package does none of it.
"""

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtitan_npu import checkpoints, launch
from torchtitan_npu.errors import USAGE_EXIT_CODE, UserError, report

# What writing to a disk may give that is full, or not to be written to.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main(arguments: list[str]) -> int:
    data, *flags = arguments
    # What upstream's parser names where a flag is wrong: the command the user typed, not this file.
    model = (f"{name} {value}" for name in ("--module", "--config") if (value := launch.value(flags, name)))
    sys.argv[0] = " ".join(["torchtitan-npu train", *model])
    try:
        _prepare_process()
        config = _configure(data, flags)
        _run(config)
    except UserError as error:
        if _first_to_say():
            print(report(error), file=sys.stderr, flush=True)
        return USAGE_EXIT_CODE
    except KeyboardInterrupt:  # Ctrl-C reaches every process of the terminal: the launcher says so once
        return 128 + signal.SIGINT
    return 0


def _prepare_process() -> None:
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    # A log that cannot be written, such as upstream's structured one on a full disk, is not a page of stack each time.
    logging.raiseExceptions = False
    # A forked child inherits a device context it cannot use; data-loading workers are spawned instead.
    multiprocessing.set_start_method("spawn", force=True)
    try:
        import torch
        import torch_npu  # noqa: F401  registers the device
    except ImportError as error:
        raise UserError(f"torch_npu cannot be imported: {error}", "torchtitan-npu doctor explains") from error

    ranks, rank = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.npu.device_count()
    if ranks > count:
        raise UserError(
            f"{ranks} processes on this node but {count} NPU{'s are' if count != 1 else ' is'} visible",
            f"--nproc {count or 1} at most; ASCEND_RT_VISIBLE_DEVICES limits what is visible"
            f"{_visible_devices()}; on the emulator CANN_EMULATOR_DEVICES sets the number",
        )
    torch.npu.set_device(rank)


def _visible_devices() -> str:
    value = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    return f" (now {value!r}; ids must ascend)" if value is not None else ""


def _configure(data: str, flags: list[str]) -> Any:
    from torchtitan.tools.logging import init_logger, logger

    from torchtitan_npu import patches, preflight
    from torchtitan_npu.config.manager import NPUConfigManager
    from torchtitan_npu.data import dataset
    from torchtitan_npu.data.layout import PreparedData
    from torchtitan_npu.metrics import loss_rank

    init_logger()
    if not _speaks():
        logger.setLevel(logging.ERROR)
    patches.apply_all()
    dataset.register()
    with _only_first_of_node_speaks():
        try:
            config = NPUConfigManager(PreparedData(Path(data))).parse_args(flags)
        except (ValueError, AssertionError) as error:  # upstream's own checks of a configuration
            raise UserError(f"the configuration is refused: {error}") from error
    preflight.check(config)
    # With pipelines the loss is not on rank 0: who logs is known now.
    os.environ.setdefault("LOG_RANK", str(loss_rank(config.parallelism, int(os.environ.get("WORLD_SIZE", "1")))))
    logger.setLevel(logging.INFO if _speaks() else logging.ERROR)
    os.environ.update(config.npu.hccl.environment())
    return config


def _run(config: Any) -> None:
    import torch
    from torch.distributed.checkpoint import CheckpointException
    from torchtitan.observability import structured_logger
    from torchtitan.tools.logging import logger

    structured_logger.init_structured_logger(
        source="training", output_dir=config.dump_folder, enable=config.debug.enable_structured_logging
    )
    trainer = None
    try:
        trainer = config.build()
        if config.checkpoint.create_seed_checkpoint:
            trainer.checkpointer.save(curr_step=0, last_step=True)
            logger.info("Created seed checkpoint")
        else:
            trainer.train()
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(error) from error
    except CheckpointException as error:
        raise checkpoints.unusable(error, *_loaded_from(config)) from error
    except (ValueError, NotImplementedError, ImportError, OSError) as error:
        raise _refusal(error)  # noqa: B904  the same error, or a UserError in its place
    finally:
        if trainer is not None:
            trainer.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _refusal(error: Exception) -> Exception:
    """What the disk, upstream or an optimizer refuses is the user's to mend; anything else keeps its traceback."""
    import torch
    import torchtitan

    if isinstance(error, OSError) and error.errno in _DISK:
        return UserError(f"{error.filename or 'a file'}: {error.strerror}", "make room, or name another --dump_folder")
    *_, innermost = traceback.extract_tb(error.__traceback__)
    place = Path(innermost.filename)
    for name, package in (("torchtitan", torchtitan), ("torch", torch.optim)):
        if place.is_relative_to(Path(str(package.__file__)).parent):
            return UserError(f"{name} refuses this ({place.name}:{innermost.lineno}): {error}")
    return error


def _out_of_memory(error: Exception) -> UserError:
    import torch

    free, total = torch.npu.mem_get_info()
    first_line = str(error).splitlines()[0]
    where = f" on rank {os.environ.get('RANK')}" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    return UserError(
        f"the device's memory is not enough{where}: {first_line}\n"
        f"  free {free / 2**30:.2f} GiB of {total / 2**30:.2f} GiB",
        "a smaller --training.local_batch_size or --training.seq_len, more ranks (--nproc),"
        " or activation-checkpoint:full as the last word of the command",
    )


def _loaded_from(config: Any) -> tuple[Path, str]:
    """The folder a checkpoint was looked for in, and what to do when it cannot be read."""
    folder = Path(config.dump_folder) / config.checkpoint.folder
    if config.checkpoint.initial_load_path and not any(folder.glob("step-*")):
        return Path(config.checkpoint.initial_load_path), "name a folder step-N with --checkpoint.initial_load_path"
    return folder, "remove the damaged step-N folder, or name an earlier one with --checkpoint.load_step"


def _first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _first_to_say() -> bool:
    """Ranks may refuse the same, and any of them may be the only one: the first to come says why."""
    try:
        os.close(os.open(os.environ[launch.SAID], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except (KeyError, OSError):  # started without the launcher, or it has ended
        pass
    return True


def _speaks() -> bool:
    """Rank 0 logs, or those that upstream's LOG_RANK names."""
    return os.environ.get("RANK", "0") in os.environ.get("LOG_RANK", "0").split(",")


@contextlib.contextmanager
def _only_first_of_node_speaks() -> Iterator[None]:
    """Every rank refuses the same flags; one of them says so."""
    if _first_of_node():
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
    ):
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
