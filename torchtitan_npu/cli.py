"""The command `torchtitan-npu`. Starts without importing torch, so that its first line appears at once."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from torchtitan_npu import devices
from torchtitan_npu.errors import USAGE_EXIT_CODE, UserError, report

# Set for the command started again under the emulator: it is started again once, not for ever.
_RESTARTED = "TORCHTITAN_NPU_RESTARTED"

_TRAIN_NOTES = """\
Every other flag goes to torchtitan unchanged, for example:
  torchtitan-npu train --module llama3 --config llama3_debugmodel \\
      --training.steps 20 --training.seq_len 256 --training.local_batch_size 2

  torchtitan-npu train --module M --config C --help   lists them for that config
  torchtitan-npu configs                              lists modules and configs

Flags of this project among them: --npu.converters npu|reference|none,
--npu.hf32, --npu.memory_fraction, --npu.hccl.*.
With no data flags, train uses what `torchtitan-npu prepare` made."""


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, width=80, max_help_position=26)


def _at_least(smallest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {smallest}")
        return int(text)

    return parse


def _nodes(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", text):
        raise argparse.ArgumentTypeError(f"{text} is neither a number of nodes nor MIN:MAX")
    return text


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=devices.CHOICES,
        default="auto",
        help="auto (default): the NPU if there is one, else the CANN emulator",
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchtitan-npu",
        description="Train with torchtitan on Ascend NPUs, or on an emulated one where there is none.",
        formatter_class=_formatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str, epilog: str | None = None) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=help, description=help, epilog=epilog, formatter_class=_formatter, allow_abbrev=False
        )
        added.set_defaults(refuse=added.error)  # shows this command's usage
        return added

    train = command("train", "train a model", _TRAIN_NOTES)
    _add_device(train)
    train.add_argument(
        "--nproc", type=_at_least(1), default=1, metavar="N", help="processes (devices) on this node (1)"
    )
    train.add_argument("--data", default="outputs/data", metavar="DIR", help="what prepare made (outputs/data)")
    train.add_argument("--nnodes", type=_nodes, default="1", metavar="N", help="number of nodes, or MIN:MAX (1)")
    train.add_argument("--node-rank", type=_at_least(0), default=None, metavar="R", help="rank of this node")
    train.add_argument("--master-addr", default=None, metavar="HOST", help="address of node 0")
    train.add_argument("--master-port", type=_at_least(0), default=None, metavar="PORT", help="port on node 0")
    train.add_argument("--rdzv-backend", default=None, metavar="NAME", help="rendezvous backend, as torchrun's")
    train.add_argument("--rdzv-endpoint", default=None, metavar="H:P", help="rendezvous endpoint, as torchrun's")
    train.add_argument("--rdzv-id", default=None, metavar="ID", help="rendezvous id, as torchrun's")
    train.add_argument("--max-restarts", type=_at_least(0), default=0, metavar="N", help="restarts after a failure (0)")

    prepare = command("prepare", "make a dataset and a tokenizer from text, JSONL or Parquet files")
    prepare.add_argument("files", nargs="*", metavar="FILE", help="input files; none: Python's own language reference")
    prepare.add_argument("--output", default="outputs/data", metavar="DIR", help="where to write (outputs/data)")
    prepare.add_argument("--tokenizer", metavar="DIR", help="use this tokenizer instead of training one")
    prepare.add_argument("--vocab-size", type=int, default=2048, metavar="N", help="size of a trained one (2048)")
    prepare.add_argument("--field", default="text", metavar="NAME", help="column holding the text (text)")
    prepare.add_argument("--held-out", type=float, default=0.05, metavar="F", help="share for validation (0.05)")

    export = command("export", "write a trained checkpoint as a Hugging Face folder")
    export.add_argument("--module", required=True, metavar="M", help="as in train")
    export.add_argument("--config", required=True, metavar="C", help="as in train")
    export.add_argument("--checkpoint", required=True, metavar="DIR", help="a folder step-N that train wrote")
    export.add_argument("--tokenizer", default="outputs/data/tokenizer", metavar="DIR", help="copied into the result")
    export.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    export.add_argument("--output", required=True, metavar="DIR", help="folder to write; must not exist")

    doctor = command("doctor", "check versions, CANN, devices, converters and patches")
    _add_device(doctor)
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")

    configs = command("configs", "list modules and their configs")
    configs.add_argument("module", nargs="?", help="only this module")
    configs.add_argument("--json", action="store_true", help="print as JSON")
    return parser


def _say(line: str) -> None:
    print(line, flush=True)


def _restart_on_emulator(arguments: Sequence[str]) -> NoReturn:
    if os.environ.get(_RESTARTED):
        raise UserError(
            f"cann-emulator run did not set up the emulated CANN (ASCEND_HOME_PATH is {devices.cann_home()})",
            "install the emulator's native part again, and unset CANN_EMULATOR_HOME",
        )
    os.environ[_RESTARTED] = "1"
    command = [*devices.emulator_command(), sys.executable, "-m", "torchtitan_npu.cli", *arguments]
    os.execv(command[0], command)


def _enter_device(requested: str, arguments: Sequence[str]) -> None:
    """Go on in this process when CANN is at hand; else start the same command again under the emulator."""
    if devices.choose(requested) == "npu":
        _say(f"torchtitan-npu: Ascend devices: {', '.join(node.name for node in devices.ascend_devices())}")
    elif devices.on_emulator():
        return
    else:
        found = "no Ascend device found" if not devices.ascend_devices() else "--device emulator"
        _say(f"torchtitan-npu: {found}; running on the CANN emulator")
        _restart_on_emulator(arguments)


def _train(options: argparse.Namespace, upstream: list[str], arguments: Sequence[str]) -> int:
    from torchtitan_npu import launch

    if "--help" in upstream or "-h" in upstream:
        return launch.upstream_help(upstream)
    launch.check_config_name(upstream)
    _enter_device(options.device, arguments)
    return launch.train(options, upstream)


def _prepare(options: argparse.Namespace, upstream: list[str], arguments: Sequence[str]) -> int:
    from torchtitan_npu.data import prepare

    prepare.run(
        files=options.files,
        output=options.output,
        tokenizer=options.tokenizer,
        vocab_size=options.vocab_size,
        field=options.field,
        held_out=options.held_out,
        say=_say,
    )
    return 0


def _export(options: argparse.Namespace, upstream: list[str], arguments: Sequence[str]) -> int:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # weights are converted on the CPU: no device is needed
    from torchtitan_npu import export

    export.run(
        module=options.module,
        config=options.config,
        checkpoint=options.checkpoint,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        output=options.output,
        say=_say,
    )
    return 0


def _doctor(options: argparse.Namespace, upstream: list[str], arguments: Sequence[str]) -> int:
    from torchtitan_npu import doctor

    if options.device != "npu" and not devices.on_emulator() and not devices.ascend_devices():
        _restart_on_emulator(arguments)
    return doctor.run(as_json=options.json, say=_say)


def _configs(options: argparse.Namespace, upstream: list[str], arguments: Sequence[str]) -> int:
    from torchtitan_npu.config import catalogue

    return catalogue.run(options.module, as_json=options.json, say=_say)


_COMMANDS: dict[str, Callable[[argparse.Namespace, list[str], Sequence[str]], int]] = {
    "train": _train,
    "prepare": _prepare,
    "export": _export,
    "doctor": _doctor,
    "configs": _configs,
}


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = build_parser()
    upstream_help = (
        arguments[:1] == ["train"] and {"--help", "-h"} & set(arguments) and "--config" in " ".join(arguments)
    )
    if upstream_help:
        without = [argument for argument in arguments if argument not in ("--help", "-h")]
        options, rest = parser.parse_known_args(without)
        return options, [*rest, "--help"]
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "train":
        options.refuse(f"unrecognized arguments: {' '.join(rest)}")
    return options, rest


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options, upstream = _parse(arguments)
    try:
        return _COMMANDS[options.command](options, upstream, arguments)
    except UserError as error:
        print(report(error), file=sys.stderr, flush=True)
        return USAGE_EXIT_CODE
    except BrokenPipeError:  # `torchtitan-npu configs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(report(UserError(f"{error.filename}: {error.strerror}")), file=sys.stderr, flush=True)
        return USAGE_EXIT_CODE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
