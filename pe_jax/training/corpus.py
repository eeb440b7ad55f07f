"""Corpora: named splits of documents, as bytes, with a digest of the whole.

Documents are read on demand and checked then: a file that changed since the start is an error that
names its path.
"""

import base64
import dataclasses
import glob
import hashlib
import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from pe_jax.validation import ConfigError

SPLITS = ("train", "validation", "test")
PACKAGES = ("absl-py", "etils", "optax", "orbax-checkpoint", "tensorflow-datasets")
# Of the versions that requirements.txt pins: the corpus of every published number.
PUBLISHED_DIGEST = "d7e5d1c74bf2b20c95852c6d4f34006173dc5cea0b6f3e097893930a4d8a27ce"


class Documents(Protocol):
    """An ordered sequence of documents, read one at a time."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> bytes: ...


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents in splits.

    Attributes:
      name: For reports; it holds no path.
      digest: SHA-256 over the sorted (relative path, SHA-256 of the content as stored).
      splits: Split name to documents.
      sizes: Split name to bytes of all its documents; approximate where records are not counted.
      passkeys: Whether training rows ask for passkeys.
      warning: What a reader of the results must know about the corpus; empty if nothing.
    """

    name: str
    digest: str
    splits: Mapping[str, Documents]
    sizes: Mapping[str, int]
    passkeys: bool = False
    warning: str = ""

    def documents(self, split: str) -> Documents:
        """Returns the documents of a split.

        Raises:
          ConfigError: The split has no document.
        """
        if not self.splits.get(split):
            raise ConfigError(
                f"data={self.name!r}: split {split!r} has no document ({self.describe()}); "
                f"take another split or add documents"
            )
        return self.splits[split]

    def describe(self) -> str:
        """One line for logs and reports: documents and bytes per split."""
        counts = (
            f"{split} {len(self.splits[split]):,} documents {self.sizes[split]:,} bytes"
            for split in self.splits
        )
        return f"{self.name}: {', '.join(counts)}, sha256 {self.digest[:12]}"


class File(NamedTuple):
    """A file as it was at the start: `digest` of its content, `size` after cleaning."""

    name: str
    path: Path
    digest: str
    size: int


@dataclasses.dataclass(frozen=True)
class Files:
    """A document per file."""

    files: tuple[File, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> bytes:
        file = self.files[index]
        raw = _read(file.path)
        if hashlib.sha256(raw).hexdigest() != file.digest:
            raise ConfigError(f"data: {file.path} changed since the start; restore it and resume")
        return clean(raw)


def clean(raw: bytes) -> bytes:
    """Drops a UTF-8 byte-order mark and turns CRLF into LF."""
    return raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


def embedded() -> Corpus:
    """The Python source of five packages that training requires: a corpus on any machine.

    Every file is checked against the SHA-256 in its wheel's RECORD. It is source code, not prose.
    Other versions of the packages are another corpus: its `warning` says so.

    Raises:
      ConfigError: A package is missing, or a file differs from its wheel's.
    """
    files = []
    for package in PACKAGES:
        try:
            listed = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            listed = []
        modules = [path for path in listed if path.suffix == ".py" and path.hash]
        if not modules:
            raise ConfigError(
                f"data='embedded': no wheel of {package} is installed; "
                "pip install -r requirements.txt, or use data=text:DIR"
            )
        for path in modules:
            file = _file(path.as_posix(), Path(str(path.locate())))
            digest = base64.urlsafe_b64decode(path.hash.value + "=").hex() if path.hash else ""
            if file.digest != digest:
                raise ConfigError(
                    f"data='embedded': {file.path} differs from its wheel's; reinstall {package}"
                )
            files.append(file)
    corpus = _from_files("embedded", files, frozenset())
    if corpus.digest == PUBLISHED_DIGEST:
        return corpus
    versions = (f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    warning = (
        f"the embedded corpus (sha256 {corpus.digest[:12]}) is not that of the published numbers"
        f" ({PUBLISHED_DIGEST[:12]}), which requirements.txt installs: {', '.join(versions)}"
    )
    return dataclasses.replace(corpus, warning=warning)


def text(pattern: str) -> Corpus:
    """One document per file of a folder or glob; or a single file, cut into three ranges.

    Splits are DIR/train, DIR/validation and DIR/test where they exist; missing splits are taken out
    of train by the hash of the relative path (90/5/5 %). A single file is cut 90/5/5, as TFDS does
    with tiny_shakespeare. Hidden and empty files are left out; `clean` is applied.

    Raises:
      ConfigError: There is no file, no file with content, or no train split.
    """
    top = Path(pattern).expanduser()
    own = frozenset(split for split in SPLITS if (top / split).is_dir())
    if own and "train" not in own:
        raise ConfigError(f"data='text:{pattern}': {top} has {min(own)}/ but no train/; add it")
    if top.is_dir():
        paths = [p for split in own for p in (top / split).rglob("*")] if own else top.rglob("*")
    else:
        paths = map(Path, glob.glob(str(top), recursive=True))
    paths = sorted(path for path in paths if path.is_file() and path.name[0] != ".")
    if not paths:
        raise ConfigError(f"data='text:{pattern}': no file there; give a folder, a file or a glob")
    root = top if top.is_dir() else Path(os.path.commonpath([path.parent for path in paths]))
    if len(paths) == 1 and not own:
        return _from_one_file(_file(paths[0].name, paths[0]))
    files = [_file(path.relative_to(root).as_posix(), path) for path in paths]
    return _from_files(f"text:{root.resolve().name}", files, own)


def _from_files(name: str, files: Iterable[File], own: frozenset[str]) -> Corpus:
    parts = {split: [] for split in SPLITS}
    for file in sorted(file for file in files if file.size):
        first, _, rest = file.name.partition("/")
        split = first if first in own else "train"
        bucket = int(hashlib.sha256((rest if own else file.name).encode()).hexdigest(), 16) % 100
        moved = "train" if bucket < 90 else "validation" if bucket < 95 else "test"
        if split == "train" and moved not in own:
            split = moved
        parts[split].append(file)
    if not parts["train"]:
        counts = ", ".join(f"{split} {len(parts[split])}" for split in SPLITS)
        raise ConfigError(f"data={name!r} is empty: no file with content ({counts}); add documents")
    kept = [file for part in parts.values() for file in part]
    return Corpus(
        name,
        digest((file.name, file.digest) for file in kept),
        {split: Files(tuple(part)) for split, part in parts.items()},
        {split: sum(file.size for file in part) for split, part in parts.items()},
    )


def _from_one_file(file: File) -> Corpus:
    content = Files((file,))[0]
    if not content:
        raise ConfigError(f"data: {file.path} is empty (0 bytes); give a file with text")
    cut = int(len(content) * 0.9)
    ends = cut, cut + (len(content) - cut) // 2, len(content)
    documents, start = [], 0
    for end in ends:
        while end < len(content) and content[end] & 0xC0 == 0x80:
            end -= 1  # never cut inside a UTF-8 character
        documents.append(content[start:end])
        start = end
    return Corpus(
        f"text:{file.name}",
        digest([(file.name, file.digest)]),
        {split: [part] if part else [] for split, part in zip(SPLITS, documents, strict=True)},
        {split: len(part) for split, part in zip(SPLITS, documents, strict=True)},
    )


def _file(name: str, path: Path) -> File:
    raw = _read(path)
    return File(name, path, hashlib.sha256(raw).hexdigest(), len(clean(raw)))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data: cannot read {path} ({error.strerror}); restore it") from None


def digest(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex over (relative path, SHA-256 of the content), sorted by path."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(pairs))
    return hashlib.sha256(lines.encode()).hexdigest()
