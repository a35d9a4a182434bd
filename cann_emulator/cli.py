"""`cann-emulator`: start programs under the emulated CANN, and look at what it can do and what it counted.

Starts without torch: everything here reads files.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cann_emulator import settings
from cann_emulator.home import HomeNotFound, environment, find_home
from cann_emulator.settings import BadSetting

# Options of `run` and `env`: the option, the setting it is short for, its placeholder and what it means.
_OPTIONS = (
    ("--devices", "CANN_EMULATOR_DEVICES", "N", "number of NPUs (8)"),
    ("--soc", "CANN_EMULATOR_SOC", "NAME", "SoC name (Ascend910_9391, an Atlas A3)"),
    ("--hbm-gb", "CANN_EMULATOR_HBM_GB", "X", "memory of each device in GiB (64), enforced"),
    ("--stats", "CANN_EMULATOR_STATS", "DIR", "write each process's counters into DIR"),
    ("--trace", "CANN_EMULATOR_TRACE", "FILE", "write a Chrome/Perfetto trace"),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.action(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `cann-emulator ops | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (HomeNotFound, BadSetting, OSError, ValueError) as error:
        return _fail(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cann-emulator", description="CANN for machines without an NPU.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action, text: str, **extra) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **extra)
        sub.set_defaults(action=action)
        return sub

    run = command("run", _run, "start a command under the emulated CANN", usage="%(prog)s [OPTION...] -- COMMAND...")
    env = command("env", _env, 'print the environment, for `eval "$(cann-emulator env)"`')
    for sub in (run, env):
        for option, name, placeholder, text in _OPTIONS:
            sub.add_argument(option, dest=name, metavar=placeholder, help=text)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments")

    command("home", _home, "print the folder of the emulated CANN")
    info = command("info", _info, "print the emulated devices and the versions found")
    ops = command("ops", _ops, "list the operators and where each is implemented")
    ops.add_argument("--missing", action="store_true", help="only those that are not implemented")
    ops.add_argument("names", nargs="*", metavar="NAME", help="only these (a part of the name is enough)")
    stats = command("stats", _stats, "add up the counters that processes wrote")
    stats.add_argument("folder", nargs="?", metavar="DIR", help="default: $CANN_EMULATOR_STATS")
    stats.add_argument("--top", type=_count, default=20, metavar="N", help="operators to show, by time (20; 0: all)")
    for sub in (env, info, ops, stats):
        sub.add_argument("--json", action="store_true", help="machine-readable")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 0")
    return int(text)


def _fail(message: str, code: int = 2) -> int:
    print(f"cann-emulator: error: {message}", file=sys.stderr)
    return code


def _warn(message: str) -> None:
    print(f"cann-emulator: warning: {message}", file=sys.stderr)


# ---- run, env, home ------------------------------------------------------------------------------------------------
def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    options = {name: value for _, name, _, _ in _OPTIONS if (value := getattr(arguments, name)) is not None}
    try:
        chosen = settings.checked({**os.environ, **options})
    except BadSetting as error:  # in the words of the command line, where the value came from there
        given = {f"{name}=": f"{option} " for option, name, _, _ in _OPTIONS if name in options}
        raise BadSetting(
            re.sub("|".join(given) or "$^", lambda found: given[found.group()], str(error), count=1)
        ) from None
    for warning in settings.unknown(os.environ):
        _warn(warning)
    result = environment(find_home(), os.environ) | chosen
    if result["TASK_QUEUE_ENABLE"] != "0":
        _warn(
            f"TASK_QUEUE_ENABLE={result['TASK_QUEUE_ENABLE']} is kept, but torch_npu's dispatch thread can wait for "
            "ever for kernels that need the GIL (DTensor programs do); 0 is safe"
        )
    return result


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        return _fail("no command given: cann-emulator run -- python train.py")
    variables = _environment(arguments)
    if folder := variables.get("CANN_EMULATOR_STATS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except FileNotFoundError:
        beside = Path(sys.executable).parent / command[0]
        hint = f"; {beside} exists: give that path or activate the environment" if beside.exists() else ""
        return _fail(f"{command[0]}: command not found{hint}", 127)
    except PermissionError:
        return _fail(f"{command[0]}: not executable", 126)


def _env(arguments: argparse.Namespace) -> int:
    variables = _environment(arguments)
    if arguments.json:
        print(json.dumps(variables, indent=2))
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


def _home(arguments: argparse.Namespace) -> int:
    print(find_home())
    return 0


# ---- info, ops, stats ----------------------------------------------------------------------------------------------
def _info(arguments: argparse.Namespace) -> int:
    from cann_emulator.info import collect, render

    facts = collect()
    print(json.dumps(facts, indent=2) if arguments.json else render(facts))
    return 0


def _ops(arguments: argparse.Namespace) -> int:
    from cann_emulator.coverage import operators

    shown = everything = operators()
    if arguments.names:
        wanted = [name.lower() for name in arguments.names]
        shown = [op for op in shown if any(name in op.name.lower() for name in wanted)]
        if not shown:
            return _fail(f"no operator's name contains {' or '.join(arguments.names)}", 1)
    if arguments.missing:
        shown = [op for op in shown if not op.implemented]
    if arguments.json:
        print(json.dumps([asdict(op) for op in shown], indent=1))
        return 0
    for op in shown:
        print(f"{op.name:<46} {op.kernel_file.removeprefix('cann_emulator/') if op.kernel_file else '-'}")
    count = Counter(op.source for op in everything)
    print(
        f"\n{len(everything) - count[None]} of {len(everything)} operators are implemented: {count['row']} table rows, "
        f"{count['function']} Python functions, {count['native']} in C++"
    )
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from cann_emulator.stats import merge, render

    folder = arguments.folder or os.environ.get("CANN_EMULATOR_STATS")
    if not folder:
        return _fail("no folder given, and CANN_EMULATOR_STATS is not set (cann-emulator run --stats DIR writes one)")
    merged = merge(Path(folder))
    if not merged.processes:
        return _fail(f"{folder}: no counters there (cann-emulator run --stats {folder} -- COMMAND writes them)", 1)
    print(json.dumps(merged.as_json(), indent=1) if arguments.json else render(merged, arguments.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
