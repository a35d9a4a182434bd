"""How fast `torchtitan-sync check` is and how right: time, memory, recall and precision, as a table.

    python benchmarks/sync_check.py [--upstream DIR] [--cases DIR]

Without a clone of upstream the range is the pair of releases torchtitan 0.2.2 and 0.3.0, from PyPI. `--cases` takes the
folder that `benchmarks/sync_prepare.py` filled.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLICY = """\
## Branch sync table

| torchtitan_npu_branch | torchtitan_repo_url | torchtitan_branch | torchtitan_commit |
| --- | --- | --- | --- |
| main | {url} | main | {commit} |
"""
_DOCUMENT = "docs/community/versioning_policy.md"

# Breaks of names that are all there: only running upstream with the plugin shows them.
_BEYOND_IMPORTING = {
    *("silent", "patch-signature", "override-signature", "callback-signature"),
    *("parameter-order", "return-arity", "key-removed"),
}


@dataclass
class Case:
    name: str
    repository: Path
    upstream: str
    target: str
    truth: dict[str, list[dict]] | None


@dataclass
class Run:
    seconds: float
    processor_seconds: float
    """On a busy machine the truer number."""
    mebibytes: float
    items: list[dict]


def plugin_repository(source: Path, folders: list[str], folder: Path, url: str, commit: str) -> Path:
    """A git repository with the plugin's files and a policy that says it is synced to a commit."""
    package = folders[0].removeprefix("src/").replace("/", ".")
    for name in folders:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    policy = folder / _DOCUMENT
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text(POLICY.format(url=url, commit=commit))
    settings = f'[tool.torchtitan-sync]\npackage = "{package}"\nsources = {json.dumps(folders[1:])}\n'
    (folder / "pyproject.toml").write_text(settings)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    return folder


def check(repository: Path, cache: Path, upstream: str, target: str) -> Run:
    """Run the command as a person does, in a process of its own."""
    command = [sys.executable, "-m", "torchtitan_sync.cli", "check", "--repo", str(repository), "--json", "-"]
    command += ["--upstream", upstream, "--target", target]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, env=environment, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
        if os.waitstatus_to_exitcode(status) not in (0, 1) or not text:  # an exception ends with 1 as well
            raise SystemExit(f"{' '.join(command)} failed")
        return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.loads(text))


def agreement(items: list[dict], truth: dict[str, list[dict]]) -> dict[str, Any]:
    """How the tool's findings agree with what importing upstream says, by line of the plugin."""
    broken, follows, works = (
        {(entry["file"], entry["line"]) for entry in truth[kind]} for kind in ("broken", "follows", "works")
    )
    shown: set[tuple[str, int]] = set()
    found: set[tuple[str, int]] = set()
    direct: set[tuple[str, int]] = set()
    moved_to: dict[tuple[str, int], set[str]] = {}
    for item in items:
        if item["kind"] == "guarded-missing":  # the plugin catches the ImportError: reported, and no P0
            found |= {(use["file"], use["line"]) for use in item["downstream"]}
        if item["grade"] == "P0":
            for use in item["downstream"] + item["cascade"]:
                place = (use["file"], use["line"])
                found.add(place)
                moved_to.setdefault(place, set()).add(item["moved_to"])
            direct |= {(use["file"], use["line"]) for use in item["downstream"]}
            if item["kind"] not in _BEYOND_IMPORTING:
                shown |= {(use["file"], use["line"]) for use in item["downstream"]}
    # What follows from a break is a line of its cause, not an alarm of its own.
    judged = direct & (broken | follows) | shown & works
    wrong = judged - broken - follows
    moves = [entry for entry in truth["broken"] if entry.get("moved_to")]
    located = [entry for entry in moves if entry["moved_to"] in moved_to.get((entry["file"], entry["line"]), ())]
    return {
        "broken": len(broken),
        "recall": len(broken & found) / len(broken) if broken else 1.0,
        "precision": 1 - len(wrong) / len(judged) if judged else 1.0,
        "located": len(located) / len(moves) if moves else 1.0,
        "moves": len(moves),
        "missed": sorted(broken - found),
        "wrong": sorted(wrong),
        "not_located": [entry for entry in moves if entry not in located],
        "not_judged": sorted(direct - judged),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", metavar="DIR", help="a local clone of torchtitan")
    parser.add_argument("--cases", type=Path, metavar="DIR", help="what benchmarks/sync_prepare.py made")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every missed and wrong line too")
    args = parser.parse_args()
    results = {}
    print(f"{'case':34} {'first':>6} {'again':>6} {'MiB':>5} {'broken':>6} {'recall':>6} {'prec.':>6} {'located':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        for case in _cases(args, Path(temporary)):
            cache = Path(temporary) / "cache" / case.name
            first, again = (check(case.repository, cache, case.upstream, case.target) for _ in range(2))
            found = agreement(first.items, case.truth) if case.truth else {}
            results[case.name] = {
                "first_seconds": first.seconds,
                "first_processor_seconds": first.processor_seconds,
                "again_seconds": again.seconds,
                "again_processor_seconds": again.processor_seconds,
                "mebibytes": first.mebibytes,
                **found,
            }
            row = f"{case.name[:34]:34} {first.seconds:5.1f}s {again.seconds:5.1f}s {first.mebibytes:5.0f}"
            if found:
                row += f" {found['broken']:6} {found['recall']:6.1%} {found['precision']:6.1%} {found['located']:8.1%}"
            print(row, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0


def _cases(args: argparse.Namespace, folder: Path) -> Iterator[Case]:
    root = Path(__file__).parents[1]
    own = ["torchtitan_npu", "tests"]
    if args.cases is None:
        upstream, old, new = (
            (args.upstream, "v0.2.2", "main") if args.upstream else ("pypi", "pypi:0.2.2", "pypi:0.3.0")
        )
        if args.upstream:
            command = ["git", "-C", args.upstream, "rev-parse", f"{old}^{{commit}}"]
            old = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        repository = plugin_repository(root, own, folder / "own", upstream, old)
        yield Case(f"torchtitan_npu {old[:10]} {new}", repository, upstream, new, None)
        return
    for path in sorted((args.cases / "cases").glob("*.json")):
        if args.only in path.stem:
            case = json.loads(path.read_text())
            source = args.cases / "plugins" / case["plugin"]
            repository = plugin_repository(source, case["package"], folder / path.stem, args.upstream, case["old"])
            yield Case(path.stem, repository, args.upstream, case["new"], case["truth"])


if __name__ == "__main__":
    sys.exit(main())
