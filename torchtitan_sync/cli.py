"""`torchtitan-sync COMMAND`: the commands and the options they share."""

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path

from torchtitan_sync.model import SyncError

ERROR_EXIT_CODE = 2

# Command: its module, with `arguments(parser)` and `run(args)`; what it does. Modules are imported on use.
COMMANDS = {
    "check": ("torchtitan_sync.check", "say what an upstream range breaks; writes nothing"),
    "report": ("torchtitan_sync.report", "write the changes to torchtitan_changes.md, JSON, SARIF"),
    "adapt": ("torchtitan_sync.adapt", "apply what is mechanical: moves and renames"),
    "verify": ("torchtitan_sync.verify", "import, resolve and test the plugin on the target upstream"),
    "record": ("torchtitan_sync.record", "write the new baseline into the versioning policy"),
}

_DESCRIPTION = "Keep a plugin in step with upstream torchtitan: check, report, adapt, verify, record."


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: done; 1: `check` found P0, `verify` failed; 2: cannot be done, the message says why; 130: Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    # A terminated run leaves through `finally` as an interrupted one does, so that temporary mirrors go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = _parser(words).parse_args(words)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough; Python flushes again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SyncError, OSError) as error:  # a file that cannot be read or written names itself
        print(f"torchtitan-sync {args.command}: {error}", file=sys.stderr)
        return ERROR_EXIT_CODE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchtitan-sync", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in words:  # help of all commands must not import all of them
            _shared(command)
            implementation = importlib.import_module(module)
            implementation.arguments(command)
            command.set_defaults(run=implementation.run)
    return parser


def _shared(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--repo", type=Path, default=Path("."), metavar="DIR", help="the plugin's repository (default: here)")
    add("--package", metavar="NAME", help="the plugin's package (default: pyproject's, else torchtitan_npu)")
    add(
        "--target",
        metavar="REF",
        help="commit, tag, branch or pypi:VERSION (default: head of the row's torchtitan_branch)",
    )
    add("--upstream", metavar="WHERE", help="URL, local clone, or pypi (default: the row's torchtitan_repo_url)")
    add("--cache", type=Path, metavar="DIR", help="keep the mirror of upstream here and use it again")
    add("--json", type=Path, metavar="FILE", help="write the result for scripts; - is standard output")


if __name__ == "__main__":
    sys.exit(main())
