"""SHA-256 of every file of a folder, kept in the folder as `sha256sum -c SHA256SUMS` reads it.

A file system, a copy or a disk may change a bit without a word, and what reads it back may not
notice. Files are hashed side by side, each once: bounded by the size of the folder.
"""

import hashlib
import os
import re
from concurrent import futures
from pathlib import Path

NAME = "SHA256SUMS"


def write(folder: Path) -> None:
    """Writes the manifest of all files under a folder: whole, or not at all.

    A folder that has its manifest is complete and on the disk.
    """
    names = _names(folder)
    for path in (*folder.rglob("*"), folder.parent):  # files, and the folders that name them
        _flush(path)
    lines = (
        f"{digest}  {name}\n" for digest, name in zip(_hash(folder, names), names, strict=True)
    )
    part = folder / f"{NAME}.part"
    part.write_text("".join(lines), encoding="utf-8")
    _flush(part)
    part.replace(folder / NAME)
    _flush(folder)


def check(folder: Path, part: int = 0, parts: int = 1) -> None:
    """Compares a folder with its manifest.

    Args:
      folder: that `write` was called for.
      part: of `parts`, whose files are hashed; names are compared in full.
      parts: that share the work, such as processes.

    Raises:
      ValueError: a file is missing, too many, or not what was written; on one line, with its path.
    """
    want = _read(folder / NAME)
    there = _names(folder)
    for name in sorted({*want} ^ {*there}):
        state = "is missing" if name in want else f"is not in {NAME}"
        raise ValueError(f"{folder / name} {state}")
    mine = there[part::parts]
    for name, digest in zip(mine, _hash(folder, mine), strict=True):
        if digest != want[name]:
            raise ValueError(f"{folder / name} is not what was saved (its SHA-256 differs)")


def _read(path: Path) -> dict[str, str]:
    found = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        match = re.fullmatch(rb"([0-9a-f]{64})  ([^\0]+)", line)
        if not match:
            raise ValueError(f"{path} is not what was saved (line {len(found) + 1})")
        found[match[2].decode("utf-8", "backslashreplace")] = match[1].decode()
    return found


def _names(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != NAME)


def _hash(folder: Path, names: list[str]) -> list[str]:
    def one(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing lets go of Python's lock
        return list(pool.map(one, names))


def _flush(path: Path) -> None:
    """A machine that dies loses what is not on its disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
