"""The command `xla-npu`. Starts without importing JAX."""

import argparse
import sys
from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="xla-npu", description="JAX on Ascend NPUs through PJRT and the Graph Engine.")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    text = "check versions, plugin, CANN and devices, and run small programs"
    doctor = commands.add_parser("doctor", help=text, description=text)
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    from xla_npu import doctor

    return doctor.run(as_json=options.json, say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
