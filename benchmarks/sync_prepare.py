"""Prepares a benchmark: plugins at a commit, upstream at two, and which references of the plugin are truly broken.

Everything is written below one folder outside of this repository: the plugins are other people's code.

    python benchmarks/sync_prepare.py --upstream DIR --plugin NAME=GIT_DIR@REF --package PATH[,PATH] \\
        --old REF --new REF OUT
"""

import argparse
import ast
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sync.references import Question, questions

from torchtitan_sync.objects import ObjectStore, git


def extract(git_dir: Path, ref: str, out: Path, below: str = "") -> str:
    """Write a commit's files, as far as the repository has them. Returns the commit's hash."""
    commit = git(git_dir, "rev-parse", f"{ref}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        store = ObjectStore(Path(folder) / "objects.git")
        store.borrow(git_dir)
        tree = {path: blob for path, blob in store.tree(commit).items() if path.startswith(below)}
        contents = store.read(tree.values())
    for path, blob in tree.items():
        if blob in contents:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(contents[blob])
    return commit


def ask(checkout: Path, upstream: str, asked: Sequence[Question]) -> dict[Question, tuple[str, str]]:
    """Answers of the interpreter that runs this, with a checkout of upstream on its path."""
    command = [sys.executable, str(Path(__file__).parent / "sync" / "resolve.py"), str(checkout), upstream]
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        # Upstream prints what it likes: the answers go to a file of their own.
        answers = Path(folder) / "answers.json"
        text = json.dumps([dataclasses.asdict(question) for question in asked])
        subprocess.run([*command, str(answers)], input=text, text=True, env=environment, check=True, cwd=folder)
        found = json.loads(answers.read_text())
    return {question: (status, why) for question, (status, why) in zip(asked, found, strict=True)}


def homes(checkout: Path, upstream: str, aside: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    """Where names are defined at the top of upstream's modules, by name; not in folders of the names in `aside`."""
    found: dict[str, list[str]] = {}
    for path in sorted((checkout / upstream).rglob("*.py")):
        module = ".".join(path.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")
        if aside & set(module.split(".")):
            continue
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).append(f"{module}.{node.name}")
    return found


def truth(root: Path, folders: list[str], upstream: str, old: Path, new: Path) -> dict[str, list[dict[str, object]]]:
    """The plugin's references by what became of them.

    `broken` resolved and do not any more; `follows` are broken because what they start from is; about `unknown`
    nothing can be said.
    """
    uses = list(questions(root, folders, upstream))
    asked = list(dict.fromkeys(question for _, _, question in uses))
    before, after = ask(old, upstream, asked), ask(new, upstream, asked)
    result: dict[str, list[dict[str, object]]] = {
        kind: [] for kind in ("broken", "follows", "works", "broken_before", "unknown")
    }
    earlier, there = homes(old, upstream), homes(new, upstream, frozenset({"tests", "experiments"}))
    gone: dict[str, set[tuple[str, ...]]] = {}
    for file, _, question in uses:
        if before[question][0] == "found" and after[question][0] == "gone" and question.call is None:
            gone.setdefault(file, set()).add(question.path())
    for file, line, question in uses:
        was, now = before[question], after[question]
        path, above = question.path(), gone.get(file, set())
        if was[0] == "gone":
            kind = "broken_before"
        elif was[0] == "unknown" or now[0] == "unknown":
            kind = "unknown"
        else:
            cause = [path[:n] for n in range(1, len(path) + (question.call is not None)) if path[:n] in above]
            kind = "works" if now[0] == "found" else "follows" if cause else "broken"
        entry: dict[str, object] = {"file": file, "line": line, "reference": question.text(), "why": now[1] or was[1]}
        if kind == "broken" and question.call is None and not question.instance:
            places = there.get(path[-1], [])
            # A name that was and is there exactly once has moved there; what was renamed is not judged.
            entry["moved_to"] = places[0] if len(places) == len(earlier.get(path[-1], [])) == 1 else None
        result[kind].append(entry)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", type=Path, required=True, help="a clone with the whole history")
    parser.add_argument("--plugin", required=True, metavar="NAME=GIT_DIR@REF")
    parser.add_argument("--package", required=True, metavar="PATH[,PATH]", help="folders of the plugin to read")
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    name, _, where = args.plugin.partition("=")
    git_dir, _, ref = where.rpartition("@")
    plugin = args.out / "plugins" / name
    if not plugin.exists():
        extract(Path(git_dir), ref, plugin)
    commits, trees = [], []
    for point in (args.old, args.new):
        commits.append(git(args.upstream, "rev-parse", f"{point}^{{commit}}").decode().strip())
        trees.append(args.out / "upstream" / commits[-1])
        if not trees[-1].exists():
            extract(args.upstream, commits[-1], trees[-1], "torchtitan/")
    folders = args.package.split(",")
    found = truth(plugin, folders, "torchtitan", trees[0], trees[1])
    case = {"plugin": name, "package": folders, "old": commits[0], "new": commits[1], "truth": found}
    path = args.out / "cases" / f"{name}-{commits[0][:9]}-{commits[1][:9]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(case, indent=1))
    print(f"{path}: " + ", ".join(f"{len(entries)} {kind}" for kind, entries in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
