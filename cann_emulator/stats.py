"""Adds up the counters that processes wrote to $CANN_EMULATOR_STATS/<pid>.json."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stats:
    """Counters of one or more processes.

    Attributes:
        processes: number of files that were added up.
        launches, bytes, time_ns: by (kind, name), where kind is "kernel", "copy" or "collective".
        hbm_peak_bytes: by device, the highest peak of any process that used it.
    """

    processes: int = 0
    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    time_ns: Counter[tuple[str, str]] = field(default_factory=Counter)
    hbm_peak_bytes: dict[int, int] = field(default_factory=dict)

    def add(self, written: dict[str, Any]) -> None:
        """Adds what one process wrote."""
        self.processes += 1
        for counter in written["counters"]:
            key = counter["kind"], counter["name"]
            self.launches[key] += counter["launches"]
            self.bytes[key] += counter["bytes"]
            self.time_ns[key] += counter["time_ns"]
        for device, facts in written["devices"].items():
            self.hbm_peak_bytes[int(device)] = max(self.hbm_peak_bytes.get(int(device), 0), facts["hbm_peak_bytes"])

    def by_time(self) -> list[tuple[str, str]]:
        """The keys, the one that took longest first."""
        return sorted(self.launches, key=lambda key: (-self.time_ns[key], key))

    def of_kind(self, kind: str) -> int:
        """Launches of a kind."""
        return sum(count for (counted, _), count in self.launches.items() if counted == kind)

    def as_json(self) -> dict[str, Any]:
        """What `cann-emulator stats --json` prints."""
        return {
            "processes": self.processes,
            "kernel_launches": self.of_kind("kernel"),
            "hbm_peak_bytes": {str(device): peak for device, peak in sorted(self.hbm_peak_bytes.items())},
            "counters": [
                {
                    "name": name,
                    "kind": kind,
                    "launches": self.launches[kind, name],
                    "bytes": self.bytes[kind, name],
                    "time_ns": self.time_ns[kind, name],
                }
                for kind, name in self.by_time()
            ],
        }


def merge(folder: Path) -> Stats:
    """The sum of every file in `folder`.

    Raises:
        NotADirectoryError: there is no such folder.
        ValueError: a file there holds something else.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    stats = Stats()
    for path in sorted(folder.glob("*.json")):
        try:
            stats.add(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not hold the emulator's counters ({error!r})") from error
    return stats


def render(stats: Stats, top: int) -> str:
    """A table of at most 80 columns: the `top` counters by time (0: all), and the sums."""
    shown = stats.by_time()[: top or None]
    lines = [f"{'name':<42} {'launches':>10} {'MiB':>10} {'ms':>10}"]
    for key in shown:
        mib, ms = stats.bytes[key] / 2**20, stats.time_ns[key] / 1e6
        lines.append(f"{_shortened(key[1]):<42} {stats.launches[key]:>10} {mib:>10.1f} {ms:>10.1f}")
    if hidden := len(stats.launches) - len(shown):
        lines.append(f"... and {hidden} more (--top 0 shows all)")
    kinds = ", ".join(f"{stats.of_kind(kind)} {plural}" for kind, plural in _PLURALS.items())
    lines += ["", f"{stats.processes} process{'es' * (stats.processes > 1)}: {kinds}"]
    lines += [
        f"device {device}: HBM peak {peak / 2**20:.1f} MiB" for device, peak in sorted(stats.hbm_peak_bytes.items())
    ]
    return "\n".join(lines)


_PLURALS = {"kernel": "kernels", "copy": "copies", "collective": "collectives"}


def _shortened(name: str) -> str:
    return name if len(name) <= 42 else f"{name[:39]}..."
