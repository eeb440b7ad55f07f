"""Tokens of large documents on disk: encoded by one process, memory-mapped by all that read them.

The files are in `$XDG_CACHE_HOME/pe_jax/tokens` (`~/.cache/pe_jax/tokens`). Each may be removed at
any time; it is then written again.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import filelock
import numpy as np
from absl import logging


def mapped(key: str, name: str, parts: Iterable[np.ndarray], dtype: type) -> np.ndarray:
    """Returns the concatenated parts, [tokens], as a read-only memory map of a file in the cache.

    Args:
      key: What the tokens depend on: text, tokenizer and their versions.
      name: Of the document, for the log.
      parts: Of the tokens; consumed only if no process has written them yet.
      dtype: Of the array.

    Raises:
      OSError: The cache cannot be written.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pe_jax" / "tokens"
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.{np.dtype(dtype)}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            if not path.exists():
                logging.info("data: tokens of %s are written to %s", name, path)
                _write(path, parts, dtype)
    if not path.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)


def _write(path: Path, parts: Iterable[np.ndarray], dtype: type) -> None:
    """Writes a file that appears when it is whole; the caller holds its lock."""
    for left in path.parent.glob(f"{path.stem}-*"):  # of a killed process
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"{path.stem}-", dir=path.parent) as folder:
        with Path(folder, path.name).open("wb") as file:
            for part in parts:
                file.write(part.astype(dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
