"""`torchtitan-sync record`: write the new baseline into the versioning policy and sum the sync up."""

import argparse
import datetime
import textwrap
import tomllib
from pathlib import Path

from torchtitan_sync import console, policy, settings, state
from torchtitan_sync.adapt import main_points
from torchtitan_sync.impact import analyse
from torchtitan_sync.model import Plugin, SyncError
from torchtitan_sync.upstream import UpstreamRange, open_range

_HASH_LENGTH = 9


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--notes", metavar="TEXT", help="the main points (default: counts and moves of the range)")
    parser.add_argument(
        "--compat",
        nargs="*",
        metavar="COLUMN=VALUE",
        help="write the release table too; the plugin's version and torchtitan's are filled in",
    )


def run(args: argparse.Namespace) -> int:
    plugin = settings.load(args.repo, args.package)
    with open_range(plugin, target=args.target, upstream=args.upstream, cache=args.cache) as upstream:
        if upstream.old.id == upstream.new.id:
            return console.up_to_date(args.json, upstream.new.label, {})
        summary = record(
            plugin, upstream, args.notes or _points(upstream, plugin, args.cache), args.target, args.compat
        )
    console.write_json(args.json, summary)
    if not console.is_output(args.json):
        _print(summary)
    return 0


def record(
    plugin: Plugin, upstream: UpstreamRange, notes: str, target: str | None, compat: list[str] | None
) -> dict[str, object]:
    """Write the policy, and return the summary of the sync: its ends, the files changed, the checks and results."""
    document = policy.Policy(plugin.root / plugin.document)
    row = upstream.row
    branch = _branch(target, upstream) or row.upstream_branch
    span = f"{_short(upstream.old.id)} -> {_short(upstream.new.id)}"
    count = upstream.commit_count()
    span += "" if count is None else f" ({count} commit{'s' if count != 1 else ''})"
    today = datetime.date.today().isoformat()
    document.set_cells(
        row.line,
        {
            "torchtitan_branch": branch,
            "torchtitan_commit": upstream.new.id,
            "updated_at": today,
            "notes": f"{span}: {notes}",
        },
    )
    if compat is not None:
        document.set_release(_release(plugin, document, branch, upstream.new.id, compat))
    document.save()
    done = state.load(plugin.root, upstream.old.id, upstream.new.id)
    return {
        "old": upstream.old.id,
        "new": upstream.new.id,
        "branch": branch,
        "updated_at": today,
        "notes": f"{span}: {notes}",
        "document": plugin.document,
        "files": state.changed_files(plugin.root, done.started),
        "checks": done.checks,
    }


def _points(upstream: UpstreamRange, plugin: Plugin, cache: Path | None) -> str:
    """As noted when the plugin was adapted, or as the range looks to the plugin now."""
    noted = state.load(plugin.root, upstream.old.id, upstream.new.id).points
    return noted or main_points(analyse(upstream, plugin, cache))


def _branch(target: str | None, upstream: UpstreamRange) -> str:
    """The branch or tag that the target names, if it is none by hash or release."""
    named = target and not policy.release_of(target) and not upstream.new.id.startswith(target)
    return str(target).removeprefix("origin/") if named else ""


def _release(plugin: Plugin, document: policy.Policy, branch: str, new: str, compat: list[str]) -> dict[str, str]:
    rows = document.releases()
    columns = list(rows[0]) if rows else []
    given = {}
    for pair in compat:
        name, separator, value = pair.partition("=")
        if not separator or name not in columns:
            raise SyncError(f"--compat {pair}: write COLUMN=VALUE, of the columns {', '.join(columns)}")
        given[name] = value
    if not columns:
        raise SyncError(f"{document.path}: the release table has no row to go by: write the first one by hand")
    key = columns[0]
    version = given.get(key) or _version(plugin.root)
    if not version:
        raise SyncError(f"pyproject.toml does not say the plugin's version: give --compat {key}=VERSION")
    upstream = policy.release_of(new) or f"{branch} ({new})"
    return {key: version, "torchtitan": upstream} | given


def _version(root: Path) -> str:
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {}) if path.is_file() else {}
    return project.get("version", "")


def _short(name: str) -> str:
    return name if policy.release_of(name) else name[:_HASH_LENGTH]


def _print(summary: dict[str, object]) -> None:
    files, checks = summary["files"], summary["checks"]
    assert isinstance(files, list) and isinstance(checks, dict)
    print(f"recorded in {summary['document']}: {summary['old']} -> {summary['new']}")
    print(textwrap.fill(f"notes: {summary['notes']}", width=80, subsequent_indent="  ", break_long_words=False))
    print(f"files of the plugin changed: {len(files)}")
    for name in files:
        print(f"  {name}")
    print("checks:" if checks else "checks: none was run; `torchtitan-sync verify` does")
    for name, result in checks.items():
        print(f"  {name}: {result}")
    if any(", 0 failed" not in result for result in checks.values()):
        print("not everything passed when it was last verified")
