"""What the commands share of talking to people and to scripts."""

import json
import sys
from pathlib import Path
from typing import Any


def say(text: str) -> None:
    """Progress and remarks, on standard error, where they do not mix with results."""
    print(text, file=sys.stderr, flush=True)


def is_output(path: Path | None) -> bool:
    """Whether `--json` is standard output, which then has nothing else."""
    return str(path) == "-"


def write_json(path: Path | None, data: Any) -> None:
    """Of an option that was not given, nothing."""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    if is_output(path):
        sys.stdout.write(text)
    elif path is not None:
        path.write_text(text, encoding="utf-8")


def up_to_date(path: Path | None, label: str, empty: Any) -> int:
    """Baseline and target are the same: a script gets an empty result. Returns the exit code."""
    write_json(path, empty)
    print(f"already up to date: {label}", file=sys.stderr if is_output(path) else sys.stdout)
    return 0
