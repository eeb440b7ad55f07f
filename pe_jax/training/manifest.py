"""SHA-256 of every file of a folder, kept in the folder in the format of `sha256sum -c`.

A file system, a copy or a disk may flip a bit silently, and readers may not notice. Files are
hashed in parallel, each once.
"""

import hashlib
import os
import re
from concurrent import futures
from pathlib import Path

from pe_jax.training.paths import files, is_bucket
from pe_jax.validation import ConfigError

NAME = "SHA256SUMS"


def write(folder: Path) -> None:
    """Writes the manifest of all files under a folder, atomically.

    A folder that has its manifest is complete and flushed to the disk.
    """
    names = _names(folder)
    if not is_bucket(folder):  # an object in a bucket is complete or absent
        for path in (*folder.rglob("*"), folder.parent):  # files, and the folders that name them
            _flush(path)
    lines = (
        f"{digest}  {name}\n" for digest, name in zip(_hash(folder, names), names, strict=True)
    )
    text = "".join(lines)
    if is_bucket(folder):
        (folder / NAME).write_text(text, encoding="utf-8")
        return
    part = folder / f"{NAME}.part"
    part.write_text(text, encoding="utf-8")
    _flush(part)
    part.replace(folder / NAME)
    _flush(folder)


def check(folder: Path, part: int = 0, parts: int = 1) -> None:
    """Compares a folder with its manifest.

    Args:
      folder: the argument of `write`.
      part: which of `parts` shares of the files to hash; all names are compared.
      parts: number of shares, such as processes.

    Raises:
      ConfigError: a file is missing, unexpected or changed; on one line, with its path.
    """
    expected = _read(folder / NAME)
    present = _names(folder)
    for name in sorted({*expected} ^ {*present}):
        state = "is missing" if name in expected else f"is not in {NAME}"
        raise ConfigError(f"{folder / name} {state}")
    share = present[part::parts]
    for name, digest in zip(share, _hash(folder, share), strict=True):
        if digest != expected[name]:
            raise ConfigError(f"{folder / name} is not what was saved (its SHA-256 differs)")


def _read(path: Path) -> dict[str, str]:
    digests = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        match = re.fullmatch(rb"([0-9a-f]{64})  ([^\0]+)", line)
        if not match:
            raise ConfigError(f"{path} is not what was saved (line {len(digests) + 1})")
        digests[match[2].decode("utf-8", "backslashreplace")] = match[1].decode()
    return digests


def _names(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in files(folder))
    return sorted(name for name in names if name != NAME)


def _hash(folder: Path, names: list[str]) -> list[str]:
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases Python's lock
        return list(pool.map(file_hash, [folder / name for name in names]))


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Flushes a file or folder to the disk: a machine that dies loses what is not there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
