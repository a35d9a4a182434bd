"""`torchtitan-sync report`: writes the changes as Markdown, JSON and SARIF."""

import argparse
import dataclasses
from typing import Any

from torchtitan_sync.model import Analysis, Item


def arguments(parser: argparse.ArgumentParser) -> None: ...


def run(args: argparse.Namespace) -> int:
    return 0


def as_json(analysis: Analysis) -> list[dict[str, Any]]:
    return [_item(item) for item in analysis.items]


def _item(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "grade": item.grade.name,
        "kind": item.kind,
        "upstream_symbol": item.upstream_symbol,
        "upstream_file": item.upstream_file,
        "what": item.what,
        "moved_to": item.moved_to or None,
        "confidence": item.confidence,
        "commits": [dataclasses.asdict(commit) for commit in item.commits],
        "downstream": [{"file": use.file, "line": use.line, "text": use.text} for use in item.downstream],
        "suggestion": item.suggestion,
        "cascade": [{"file": use.file, "line": use.line, "text": use.text} for use in item.cascade],
        "follows": item.follows or None,
        "detail": item.detail,
        "notes": item.notes,
    }
