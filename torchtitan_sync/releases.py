"""Releases on PyPI, read without installing them: a wheel or a source archive, from a folder or through pip."""

import contextlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchtitan_sync.model import SyncError

METADATA = "PKG-INFO"
"""Where a release's metadata is in its tree: a wheel has no pyproject.toml."""
_INDEX = "https://pypi.org/pypi"
_DOWNLOAD_TIMEOUT = 60  # seconds, of a single answer


def find(folder: Path, name: str, version: str) -> Path | None:
    """The archive of a release in a folder; wheels first, since they hold what is installed."""
    return min((path for path, v in _archives(folder, name) if v == Version(version)), key=_rank, default=None)


def versions(folder: Path, name: str) -> list[str]:
    """The releases in a folder, oldest first."""
    return [str(v) for v in sorted({v for _, v in _archives(folder, name)})]


def newest(name: str, folder: Path) -> str:
    """Version of the newest release that pip finds. Raises SyncError if it finds none."""
    folder.mkdir(parents=True, exist_ok=True)
    reason = _pip("--only-binary", ":all:", name, folder)
    if not (found := versions(folder, name)):
        raise SyncError(f"which release to compare with? Give --target pypi:VERSION; the newest is not known: {reason}")
    return found[-1]


def get(name: str, version: str, kept: Path, work: Path) -> Path:
    """The archive of a release: from the folder that keeps them, else downloaded by way of `work` and kept there.

    Raises SyncError if no index has it or none can be reached.
    """
    try:
        Version(version)
    except InvalidVersion:
        raise SyncError(f"pypi:{version} names no version: write it as in pypi:0.3.0") from None
    if archive := find(kept, name, version):
        return archive
    archive = _download(name, version, work)
    with contextlib.suppress(OSError):  # a folder that cannot be written to is done without
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept, delete=False) as file:
            file.write(archive.read_bytes())
        Path(file.name).replace(kept / archive.name)
    return find(kept, name, version) or archive


def _download(name: str, version: str, folder: Path) -> Path:
    """Through pip, and so from the index that it is set up for, or PyPI's JSON without pip."""
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for attempt in (_pip_wheel, _pip_source, _json):
        reason = attempt(name, version, folder)
        if archive := find(folder, name, version):
            return archive
        reasons.append(reason)
    raise SyncError(
        f"the release {name} {version} cannot be had: {next(r for r in reasons if r)}\n"
        f"  Without a network, put its wheel or source archive into a folder and give --upstream FOLDER"
    )


def read(archive: Path) -> dict[str, bytes]:
    """A release's files by path as in upstream's repository, and its metadata as PKG-INFO."""
    try:
        members = dict(_zip(archive) if archive.suffix in (".whl", ".zip") else _tar(archive))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise SyncError(f"{archive} is not a readable archive ({error}): remove it, and it is fetched again") from None
    if archive.suffix == ".whl":
        return {
            METADATA if path.endswith(".dist-info/METADATA") else path: content
            for path, content in members.items()
            if path.endswith(".dist-info/METADATA") or ".dist-info/" not in path
        }
    # Everything in a source archive is below NAME-VERSION/.
    inside = {path.partition("/")[2]: content for path, content in members.items()}
    return {path: content for path, content in inside.items() if path and not re.match(r"[^/]*\.egg-info/", path)}


def _archives(folder: Path, name: str) -> Iterator[tuple[Path, Version]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            if path.suffix == ".whl":
                found, version, *_ = parse_wheel_filename(path.name)
            else:
                found, version = parse_sdist_filename(path.name)
            if found == re.sub(r"[-_.]+", "-", name).lower():
                yield path, version


def _rank(path: Path) -> tuple[bool, str]:
    return path.suffix != ".whl", path.name


def _pip_wheel(name: str, version: str, folder: Path) -> str:
    return _pip("--only-binary", ":all:", f"{name}=={version}", folder)


def _pip_source(name: str, version: str, folder: Path) -> str:
    return _pip("--no-binary", name, f"{name}=={version}", folder)


def _pip(option: str, value: str, requirement: str, folder: Path) -> str:
    """Download what a requirement means. Returns pip's last message if that fails."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    # The file is only read, so it does not matter whether this Python could run it.
    command += ["--no-deps", "--ignore-requires-python", option, value, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines[-1] if lines else "pip failed") if done.returncode else ""


def _json(name: str, version: str, folder: Path) -> str:
    import urllib.request  # slow, and only needed where there is no pip

    try:
        with urllib.request.urlopen(f"{_INDEX}/{name}/{version}/json", timeout=_DOWNLOAD_TIMEOUT) as answer:
            files = json.load(answer)["urls"]
        for file in sorted(files, key=lambda file: file["packagetype"] != "bdist_wheel")[:1]:
            with urllib.request.urlopen(file["url"], timeout=_DOWNLOAD_TIMEOUT) as answer:
                (folder / Path(file["filename"]).name).write_bytes(answer.read())
    except (OSError, ValueError, KeyError) as error:
        return str(error)
    return ""


def _zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if not member.is_dir():
                yield member.filename, file.read(member)


def _tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as file:
        for member in file:
            if member.isfile() and (content := file.extractfile(member)):
                yield member.name, content.read()
