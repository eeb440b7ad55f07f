"""Which code of the user's own a run depends on: it is bound to it as to its data.

An encoding that is not of pe_jax is a class of the user's; results of two versions of it are two
results. Its file counts, and every file of the user's that it uses.
"""

import hashlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.running.files.provenance import ROOT
from pe_jax.encodings.registry import ENCODINGS

PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in PATHS)
OURS = tuple((ROOT / name).resolve() for name in ("pe_jax", "experiments"))


def digests(patterns: Iterable[str]) -> dict[str, str]:
    """The names of the user's files that encodings use, and a SHA-256 for each; none: {}.

    Args:
      patterns: config strings of encodings.
    """
    found: dict[Path, str] = {}
    queue = [sys.modules.get(name) for pattern in patterns for name in _modules(pattern)]
    while queue:
        module = queue.pop()
        path = _file(module)
        if path is not None and path not in found:
            found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            queue += _used(module)
    named: dict[str, str] = {}
    for path, digest in sorted(found.items()):  # of one name, as __init__.py: one digest of all
        named[path.name] = hashlib.sha256(
            f"{named.get(path.name, '')}{digest}".encode()
        ).hexdigest()
    return named


def _modules(pattern: str) -> Iterator[str]:
    """The modules of the encodings that a pattern names."""
    for name in re.findall(r"\w+", pattern):
        if name in ENCODINGS:
            yield ENCODINGS[name].__module__


def _file(module: types.ModuleType | None) -> Path | None:
    """The file of a module of the user's; None for any other module."""
    name = getattr(module, "__file__", None)
    if name is None:
        return None
    path = Path(name).resolve()
    others = any(path.is_relative_to(folder) for folder in (*OURS, *INSTALLED))
    return None if others or not path.is_file() else path


def _used(module: types.ModuleType | None) -> Iterator[types.ModuleType | None]:
    """The modules that names of a module come from."""
    for value in vars(module).values() if module else ():
        if isinstance(value, types.ModuleType):
            yield value
        elif isinstance(name := getattr(value, "__module__", None), str):
            yield sys.modules.get(name)
