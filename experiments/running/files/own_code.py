"""Which code of the user's own a run depends on: it is bound to it as to its data.

An encoding that is not of pe_jax is a class of the user's; results of two versions of it are two
results. Its file counts, and every file of the user's that it uses.
"""

import ast
import hashlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from experiments.running.files.provenance import ROOT
from pe_jax.encodings.registry import ENCODINGS

PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in PATHS)
OURS = tuple((ROOT / name).resolve() for name in ("pe_jax", "experiments"))


def digests(patterns: Iterable[str]) -> dict[str, str]:
    """The names of the user's files that encodings use, and a SHA-256 for each; none: {}."""
    found: dict[Path, str] = {}
    names = re.findall(r"\w+", " ".join(patterns))
    queue = [ENCODINGS[name].__module__ for name in names if name in ENCODINGS]
    while queue:
        name = queue.pop()
        path = _file(name)
        if path is not None and path not in found:
            source = path.read_bytes()
            found[path] = hashlib.sha256(source).hexdigest()
            others = name.rpartition(".")[0], *_used(name), *_imported(name, source)
            queue += filter(None, others)
    named: dict[str, str] = {}
    for path, digest in sorted(found.items()):  # of one name, as __init__.py: one digest of all
        both = f"{named.get(path.name, '')}{digest}"
        named[path.name] = hashlib.sha256(both.encode()).hexdigest()
    return named


def _file(name: str) -> Path | None:
    """The file of a module of the user's, imported or not; None for any other module."""
    module, spec = sys.modules.get(name), _spec(name)
    file = getattr(module, "__file__", None) or (spec and spec.origin)
    if file is None:
        return None
    path = Path(file).resolve()
    others = any(path.is_relative_to(folder) for folder in (*OURS, *INSTALLED))
    return None if others or not path.is_file() else path


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is found; nothing is imported."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    outer = _spec(parent) if (parent := name.rpartition(".")[0]) else None
    places = outer.submodule_search_locations if outer else None
    return None if parent and not places else PathFinder.find_spec(name, places)


def _used(name: str) -> Iterator[str]:
    """The modules that values of a module come from, however they came there."""
    for value in vars(sys.modules[name]).values() if name in sys.modules else ():
        if isinstance(value, types.ModuleType):
            yield value.__name__
        elif isinstance(module := getattr(value, "__module__", None), str):
            yield module


def _imported(name: str, source: bytes) -> Iterator[str]:
    """What a module imports, in functions too: numbers and tables do not say where they are from.

    Of `from a import b` it is a and a.b, which may be a module.
    """
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:  # as it is now: its digest differs from the one of the start
        return
    spec = _spec(name)
    package = spec.parent if spec and spec.parent else ""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: 1 - node.level or None] if node.level else []
            start = ".".join(filter(None, [*outer, node.module]))
            yield from (start, *(f"{start}.{alias.name}" for alias in node.names))
