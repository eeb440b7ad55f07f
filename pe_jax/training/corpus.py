"""Corpora: named splits of documents, as bytes, with a digest of the whole.

Documents are read on demand and checked then: a file that changed since the start is an error that
names its path.
"""

import base64
import dataclasses
import glob
import hashlib
import importlib.metadata
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from pe_jax.validation import ConfigError

SPLITS = ("train", "validation", "test")
MARKS = {"train": "train", "valid": "validation", "validation": "validation", "test": "test"}
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
      rule: How splits were cut that the data does not have; empty if none was cut by bytes.
    """

    name: str
    digest: str
    splits: Mapping[str, Documents]
    sizes: Mapping[str, int]
    passkeys: bool = False
    warning: str = ""
    rule: str = ""

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
        rule = f" ({self.rule})" if self.rule else ""
        return f"{self.name}: {', '.join(counts)}{rule}, sha256 {self.digest[:12]}"


class File(NamedTuple):
    """A file as it was at the start, or a range of it.

    Attributes:
      name: relative path.
      path: where it is.
      digest: SHA-256 of the content as stored.
      start: first byte after cleaning.
      end: the byte after the last.
    """

    name: str
    path: Path
    digest: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes after cleaning."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Files:
    """A document per file, or range of one."""

    files: tuple[File, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> bytes:
        file = self.files[index]
        raw = _read(file.path)
        if hashlib.sha256(raw).hexdigest() != file.digest:
            raise ConfigError(f"data: {file.path} changed since the start; restore it and resume")
        return clean(raw)[file.start : file.end]


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Each document in `count` pieces of as many bytes, cut between UTF-8 characters."""

    documents: Documents
    count: int

    def __len__(self) -> int:
        return len(self.documents) * self.count

    def __getitem__(self, index: int, /) -> bytes:
        whole, piece = divmod(index, self.count)
        content = self.documents[whole]
        cuts = (len(content) * k // self.count for k in (piece, piece + 1))
        start, end = (between_characters(content, cut) for cut in cuts)
        return content[start:end]

    def is_last(self, index: int) -> bool:
        """Whether a document ends with this piece."""
        return index % self.count == self.count - 1


def between_characters(content: bytes, offset: int) -> int:
    """The offset, or the start of the UTF-8 character that it is inside of."""
    while offset < len(content) and content[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


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
    corpus = _from_files("embedded", [("train", file.name, file) for file in files], frozenset())
    if corpus.digest == PUBLISHED_DIGEST:
        return corpus
    versions = (f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    warning = (
        f"the embedded corpus (sha256 {corpus.digest[:12]}) is not that of the published numbers"
        f" ({PUBLISHED_DIGEST[:12]}), which requirements.txt installs: {', '.join(versions)}"
    )
    return dataclasses.replace(corpus, warning=warning)


def text(pattern: str) -> Corpus:
    """One document per file of a folder or glob, or a single file.

    Splits are the folders DIR/train, DIR/validation and DIR/test, if there is one of them; else the
    files whose names say so (`named_split`), all others being train. Splits that are missing come
    out of train: by the hash of the relative path (90/5/5 %), or, where that leaves one of them
    empty, as the last 5 % of each file's bytes, as TFDS does with tiny_shakespeare. Hidden and
    empty files are left out; `clean` is applied.

    Raises:
      ConfigError: There is no file, no file with content, or no train split.
    """
    top = Path(pattern).expanduser()
    folders = frozenset(split for split in SPLITS if (top / split).is_dir())
    if top.is_dir():
        paths = [p for name in folders or [""] for p in (top / name).rglob("*")]
    else:
        paths = map(Path, glob.glob(str(top), recursive=True))
    paths = sorted(path for path in paths if path.is_file() and path.name[0] != ".")
    if not paths:
        raise ConfigError(f"data='text:{pattern}': no file there; give a folder, a file or a glob")
    root = top if top.is_dir() else Path(os.path.commonpath([path.parent for path in paths]))
    if len(paths) == 1 and not folders and (top == paths[0] or named_split(paths[0]) == "train"):
        file = _file(paths[0].name, paths[0])
        if not file.size:
            raise ConfigError(f"data: {file.path} is empty (0 bytes); give a file with text")
        return _from_files(f"text:{file.name}", [("train", file.name, file)], frozenset())
    named = []
    for path in paths:
        file = _file(path.relative_to(root).as_posix(), path)
        first, _, rest = file.name.partition("/")
        named.append((first, rest, file) if folders else (named_split(path), file.name, file))
    own = folders or frozenset(split for split, _, _ in named if split != "train")
    if "train" not in folders | {split for split, _, _ in named}:
        where = (
            f"{min(folders)}/ but no train/" if folders else f"{paths[0].name} but no train file"
        )
        raise ConfigError(f"data='text:{pattern}': {root} has {where}; add text to train on")
    return _from_files(f"text:{root.resolve().name}", named, own)


def named_split(path: Path) -> str:
    """The split that a file's name says: `wiki.valid.tokens`, `test.txt`; "train" if none.

    It is a part of the name between two dots, or all before `.txt`.
    """
    first, *parts = path.name.lower().split(".")
    parts = parts[:-1] + [first] * (parts == ["txt"])
    return next((MARKS[part] for part in parts if part in MARKS), "train")


def _from_files(name: str, named: Iterable[tuple[str, str, File]], own: frozenset[str]) -> Corpus:
    """A corpus of (split, path that is hashed, file); splits not in `own` come out of train."""
    parts: dict[str, list[File]] = {split: [] for split in SPLITS}
    train, rule = [], ""
    missing = [split for split in SPLITS[1:] if split not in own]
    for split, path, file in sorted(named, key=lambda entry: entry[2]):
        if not file.size:
            continue
        bucket = int(hashlib.sha256(path.encode()).hexdigest(), 16) % 100
        moved = "train" if bucket < 90 else "validation" if bucket < 95 else "test"
        train += [file] * (split == "train")
        parts[moved if split == "train" and moved in missing else split].append(file)
    if train and not all(parts[split] for split in ("train", *missing)):
        cut = [_cut(file, 1 + len(missing)) for file in train]
        for split, files in zip(("train", *missing), zip(*cut, strict=True), strict=True):
            parts[split] = [file for file in files if file.size]
        rule = f"{', '.join(missing)}: the last {5 * len(missing)} % of each file"
    if not parts["train"]:
        counts = ", ".join(f"{split} {len(parts[split])}" for split in SPLITS)
        raise ConfigError(f"data={name!r} is empty: no file with content ({counts}); add documents")
    kept = {file.name: file.digest for part in parts.values() for file in part}
    return Corpus(
        name,
        digest(kept.items()),
        {split: Files(tuple(part)) for split, part in parts.items()},
        {split: sum(file.size for file in part) for split, part in parts.items()},
        rule=rule,
    )


def _cut(file: File, count: int) -> list[File]:
    """A file in `count` ranges: all but the first have 5 % of its bytes."""
    content = Files((file,))[0]
    first = int(len(content) * (1 - 0.05 * (count - 1)))
    rest = len(content) - first
    ends = [first + rest * k // max(count - 1, 1) for k in range(count)]
    edges = [0, *(between_characters(content, end) for end in ends)]
    return [file._replace(start=a, end=b) for a, b in itertools.pairwise(edges)]


def _file(name: str, path: Path) -> File:
    raw = _read(path)
    return File(name, path, hashlib.sha256(raw).hexdigest(), 0, len(clean(raw)))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data: cannot read {path} ({error.strerror}); restore it") from None


def digest(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex over (relative path, SHA-256 of the content), sorted by path."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(pairs))
    return hashlib.sha256(lines.encode()).hexdigest()
