"""Start the ranks: torchrun as a library, with errors that fit a screen."""

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterable

from torchtitan_npu.config import catalogue
from torchtitan_npu.errors import USAGE_EXIT_CODE, UserError

# torchrun's own options that are passed on when given.
_PASSED_ON = ("node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")

# A file that the rank makes which says why the run is refused, so that it is said once.
SAID = "TORCHTITAN_NPU_SAID"


def train(options: argparse.Namespace, flags: list[str]) -> int:
    print(f"torchtitan-npu: starting {options.nproc} process{'es' if options.nproc > 1 else ''}", flush=True)
    # Ranks import torch_npu themselves, once the process is ready for it; this process needs no device at all.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.nproc)))
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    # The agent's log of a failure is a page of stack; what is needed of it is said below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    arguments = ["--nproc-per-node", str(options.nproc), "--nnodes", options.nnodes]
    arguments += ["--max-restarts", str(options.max_restarts)]
    for name in _PASSED_ON:
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[SAID] = f"{folder}/said"
            torchrun.run(torchrun.parse_args([*arguments, "--module", "torchtitan_npu.entry", options.data, *flags]))
    except ChildFailedError as error:
        return _explain(error.failures.items())
    except SignalException as error:  # Ctrl-C among them: the ranks were ended before this was raised
        print(f"torchtitan-npu: stopped by {error.sigval.name}", file=sys.stderr, flush=True)
        return 128 + error.sigval
    except (ValueError, AssertionError, RendezvousError, DistError) as error:  # torchrun's own; a rank's comes as above
        raise UserError(
            f"torchrun cannot start the processes: {str(error).splitlines()[0]}",
            "see --nnodes, --node-rank, --master-addr, --master-port and --rdzv-* in torchtitan-npu train --help",
        ) from error
    return 0


def _explain(failures: Iterable) -> int:
    codes = {rank: failure.exitcode for rank, failure in failures}
    if USAGE_EXIT_CODE in codes.values():
        return USAGE_EXIT_CODE  # the rank has said why
    # All are named: where one rank is killed, its peers fail too, and may be noticed first.
    how = [f"rank {rank} stopped with {_ending(code)}" for rank, code in sorted(codes.items())]
    print(f"torchtitan-npu: error: {', '.join(how)}; the output is above", file=sys.stderr, flush=True)
    return 1


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def check_config_name(flags: list[str]) -> None:
    """Refuse an unknown module or config at once; names outside upstream's models are left to upstream."""
    module, config = value(flags, "--module"), value(flags, "--config")
    if module is None or config is None:
        raise UserError("--module and --config are needed", "--module llama3 --config llama3_debugmodel, for example")
    known = catalogue.models()
    if module not in known:
        if "." not in module and not catalogue.is_upstream_module(module):
            raise UserError(f"unknown module {module!r}", f"one of {', '.join(known)}")
        return
    if config not in known[module]:
        raise UserError(f"module {module} has no config {config!r}", f"one of {', '.join(known[module])}")


def value(flags: list[str], name: str) -> str | None:
    """What a flag is given on the command line, as `--name value` or `--name=value`; None where it is not."""
    for index, flag in enumerate(flags):
        if flag.startswith(f"{name}="):
            return flag.split("=", 1)[1]
        if flag == name and index + 1 < len(flags):
            return flags[index + 1]
    return None


def upstream_help(flags: list[str]) -> int:
    """Upstream's flags for a config; needs no device."""
    check_config_name([flag for flag in flags if flag not in ("--help", "-h")])
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ.setdefault("COLUMNS", "80")
    from pathlib import Path

    from torchtitan_npu.config.manager import NPUConfigManager
    from torchtitan_npu.data.layout import PreparedData

    NPUConfigManager(PreparedData(Path(os.devnull))).parse_args(flags)
    return 0
