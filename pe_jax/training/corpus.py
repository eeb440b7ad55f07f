"""Corpora: named splits of documents, as bytes, with a digest of the whole.

Documents are read on demand and checked then: a file that changed since the start is an error that
names its path. A file is read in blocks, so that a document of any size takes constant memory.
"""

import base64
import dataclasses
import glob
import hashlib
import importlib.metadata
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pe_jax.training import manifest, rows
from pe_jax.training.not_text import not_text, not_text_within
from pe_jax.training.paths import local
from pe_jax.training.splits import SPLITS, named_folders, splits_of
from pe_jax.validation import ConfigError

BLOCK = 2**18  # bytes that are read at once
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
      rule: How missing splits were cut from train; empty if none was cut by bytes.
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

    def apart(self, split: str, names: Sequence[str]) -> tuple["Corpus", "Corpus"]:
        """The corpus without the files of these names in a split, and with these alone there.

        Raises:
          ConfigError: The split has no file of such a name.
        """
        documents = self.documents(split)
        files = documents.files if isinstance(documents, Files) else ()
        known = [Path(file.name).name for file in files]
        if missing := [name for name in names if name not in known]:
            listed = ", ".join(sorted({*known})[:8]) or "no names"
            raise ConfigError(
                f"eval.kept: no file of split {split!r} of {self.name} is called {missing[0]!r};"
                f" its documents have {listed}"
            )
        kept = [f for f, name in zip(files, known, strict=True) if name in names]
        rest = [file for file in files if file not in kept]

        def with_files(files: list[File]) -> "Corpus":
            sizes = {**self.sizes, split: sum(file.size for file in files)}
            splits = {**self.splits, split: Files(tuple(files))}
            return dataclasses.replace(self, splits=splits, sizes=sizes)

        return (with_files(rest) if names else self), with_files(kept)

    def describe(self) -> str:
        """One line for logs and reports: documents and bytes per split."""
        counts = (
            f"{split} {len(self.splits[split]):,} documents {self.sizes[split]:,} bytes"
            for split in self.splits
        )
        rule = f" ({self.rule})" if self.rule else ""
        return f"{self.name}: {', '.join(counts)}{rule}, sha256 {self.digest[:12]}"


class File(NamedTuple):
    r"""A file as it was at the start, or a range of it.

    Attributes:
      name: relative path; bytes that are not UTF-8 as `\xe9`.
      path: where it is.
      digest: SHA-256 of the content as stored.
      start: first byte of the range, in the cleaned content.
      end: the byte after its last one.
      text: SHA-256 of the whole content after cleaning.
      marker: what seems to end documents in it, such as <|endoftext|>, if it is there repeatedly.
    """

    name: str
    path: Path
    digest: str
    start: int
    end: int
    text: str
    marker: str = ""

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
        return b"".join(self.blocks(index))

    def blocks(self, index: int) -> Iterator[bytes]:
        """A document in blocks that end between characters.

        Raises:
          ConfigError: At the end: the file is another than at the start.
        """
        file, raw, begin = self.files[index], hashlib.sha256(), 0
        for block in _cleaned(file.path, raw):
            if inside := block[max(file.start - begin, 0) : max(file.end - begin, 0)]:
                yield inside
            begin += len(block)
        if raw.hexdigest() != file.digest:
            raise ConfigError(f"data: {file.path} changed since the start; restore it and resume")


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Each document in `count` pieces, as `pieces` cuts them."""

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


def pieces(documents: Documents, count: int) -> Documents:
    """Each document in `count` pieces of equal size in bytes, cut between UTF-8 characters."""
    if not isinstance(documents, Files):
        return Pieces(documents, count)
    cut = (_cut(f, [f.size * k // count for k in range(1, count)]) for f in documents.files)
    return Files(tuple(itertools.chain.from_iterable(cut)))


def blocks(documents: Documents, index: int) -> Iterator[bytes]:
    """A document in blocks that end between characters."""
    if isinstance(documents, Files):
        yield from documents.blocks(index)
        return
    content = documents[index]
    edges = [between_characters(content, k) for k in range(0, len(content), BLOCK)]
    yield from (content[a:b] for a, b in itertools.pairwise([*edges, len(content)]))


def size(documents: Documents, index: int) -> int:
    """Bytes of a document."""
    return documents.files[index].size if isinstance(documents, Files) else len(documents[index])


def between_characters(content: bytes, offset: int) -> int:
    """The offset, or the start of the UTF-8 character that it is inside of."""
    while 0 < offset < len(content) and content[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


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

    Splits are the folders named after one, such as DIR/train, DIR/val and DIR/test, if there are
    any; a file outside them is left out unless its name says another split. Else each path says its
    split (`splits.named_split`), and those that say none are train. Missing splits are cut from
    train: by the hash of the relative path (90/5/5 %), or, where that leaves one of them empty, as
    the last 5 % of each file's bytes, as TFDS does with tiny_shakespeare. Empty files and paths
    with a hidden part are left out; `clean` is applied. `warning` names files with the same text.

    Tables (JSON lines, CSV, TSV, Parquet, Arrow) have a document per row, in the column that
    `#column=NAME` at the end of the pattern names, or the only one of text; `#separator=MARKER`
    says what ends the documents of other files. A split that is missing then has the last 5 % of
    the documents of each file.

    Raises:
      ConfigError: There is no file, no file with content, or no train split; a file is UTF-16,
        compressed or binary; or a name next to a split's looks held out but does not say which
        split it is.
    """
    pattern, options = _options(pattern)
    top = _top(pattern)
    root, paths = _list_files(top)
    if not paths:
        raise ConfigError(f"data='text:{pattern}': no file there; give a folder, a file or a glob")
    names = [_printable(path.relative_to(root)) for path in paths]
    folders = _split_folders(top) if top.is_dir() else named_folders(n.split("/") for n in names)
    splits = splits_of(names, folders)
    if options.separator or any(map(rows.is_table, paths)):
        chosen = ((s or "train", n, p) for s, n, p in zip(splits, names, paths, strict=True))
        inside = [x for x, split in zip(chosen, splits, strict=True) if split or not folders]
        name = _printable(Path((paths[0] if top == paths[0] else root.resolve()).name))
        return _from_rows(f"text:{name}", inside, options)
    if len(paths) == 1 and not folders and (top == paths[0] or splits[0] in ("", "train")):
        file = _file(_printable(Path(paths[0].name)), paths[0])
        if not file.size:
            raise ConfigError(f"data: {file.path} is empty (0 bytes); give a file with text")
        return _warned(_from_files(f"text:{file.name}", [("train", file.name, file)], frozenset()))
    named = []
    for name, split, path in zip(names, splits, paths, strict=True):
        if split or not folders:
            folder, _, inner = name.partition("/")
            hashed = inner if folder in folders else name
            named.append((split or "train", hashed, _file(name, path)))
    present = {*folders.values(), *(split for split, _, _ in named)}
    if "train" not in present:
        where = f"{min(folders)}/ but no train/" if folders else f"{names[0]} but no train file"
        fix = "add text to train on, or rename what is not held out"
        raise ConfigError(f"data='text:{pattern}': {_printable(root)} has {where}; {fix}")
    corpus = _from_files(f"text:{_printable(Path(root.resolve().name))}", named, frozenset(present))
    return _warned(corpus)


def _options(pattern: str) -> tuple[str, rows.Options]:
    """The pattern, and what `#column=` and `#separator=` at its end say."""
    pattern, *said = re.split("#(column|separator)=", pattern)
    return pattern, rows.Options(**dict(zip(said[::2], said[1::2], strict=True)))


def _from_rows(name: str, named: Sequence[tuple[str, str, Path]], options: rows.Options) -> Corpus:
    """A corpus of (split, name, path) whose documents are rows or parts of files."""
    files: dict[str, list[rows.Rows]] = {split: [] for split in SPLITS}
    for split, _, path in named:
        if not rows.is_table(path):
            with path.open("rb") as file:
                _check_text(path, file.read(2**20))
        files[split].append(rows.read(path, options))
    missing = [split for split in SPLITS[1:] if not files[split]]
    if missing:
        cut = [file.cut(len(missing)) for file in files["train"]]
        for split, parts in zip(("train", *missing), zip(*cut, strict=True), strict=True):
            files[split] = list(parts)
    counts = {split: sum(map(len, part)) for split, part in files.items()}
    if not all(counts.values()):
        listed = ", ".join(f"{split} {count}" for split, count in counts.items())
        raise ConfigError(f"data={name!r} has too few documents ({listed}); add some")
    digests = [(file, manifest.file_hash(path)) for _, file, path in named]
    return Corpus(
        name,
        digest([*digests, ("options", repr(tuple(options)))]),
        {split: rows.Joined(tuple(part)) for split, part in files.items()},
        {split: sum(file.size for file in part) for split, part in files.items()},
        rule=f"{', '.join(missing)}: the last {5 * len(missing)} % of each file" * bool(missing),
    )


def reads_below(pattern: str, folder: Path) -> bool:
    """Whether `text:PATTERN` would read files that are written in a folder."""
    top = _top(_options(pattern)[0])
    fixed = itertools.takewhile(lambda part: part == glob.escape(part), top.parts)
    root = top if top.exists() else Path(*fixed)
    inner, outer = Path(os.path.realpath(folder)), Path(os.path.realpath(root))
    if not root.is_dir() or not inner.is_relative_to(outer):
        return False
    parts = inner.relative_to(outer).parts
    if not parts or any(part.startswith(".") for part in parts):
        return not parts
    if top.is_dir():
        splits = _split_folders(top)
        return not splits or parts[0] in splits
    return len(top.parts) > len(root.parts) + 1  # deeper than the files of `root`


def _top(pattern: str) -> Path:
    """A folder, file or glob; `DIR/**` is DIR."""
    top = local("data", pattern)
    return top.parent if top.name == "**" and top.parent.is_dir() else top


def _list_files(top: Path) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files of a folder or glob, sorted."""
    if top.is_dir():
        return top, _readable(_walk(top))
    matches = [top] if top.is_file() else map(Path, glob.glob(str(top), recursive=True))
    paths = [path for path in matches if not path.is_dir()]
    root = Path(os.path.commonpath([path.parent for path in paths])) if paths else top
    return root, _readable(path for path in paths if _is_visible(path, root))


def _readable(paths: Iterable[Path]) -> list[Path]:
    """The files among these paths, sorted; a link to nothing would be text that is missing."""
    ordered = sorted(paths)
    if lost := [path for path in ordered if path.is_symlink() and not path.exists()]:
        raise ConfigError(
            f"data: {len(lost)} files are links to nothing, such as {lost[0]}; restore their text,"
            " or take them out"
        )
    return [path for path in ordered if path.is_file()]


def _walk(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """The files in a folder and its subfolders, also through links; no hidden names, no loops."""
    real = os.path.realpath(folder)
    try:
        paths = [] if real in above else [p for p in folder.iterdir() if p.name[0] != "."]
    except OSError as error:
        raise ConfigError(f"data: cannot read {folder} ({error.strerror}); restore it") from None
    for path in paths:
        yield from _walk(path, (*above, real)) if path.is_dir() else (path,)


def _is_visible(path: Path, root: Path) -> bool:
    """Whether no part below the root is hidden, and no folder lies in itself through a link."""
    parents = [os.path.realpath(p) for p in path.parents if p.is_relative_to(root)]
    hidden = any(part[0] == "." for part in path.relative_to(root).parts)
    return not hidden and len({*parents}) == len(parents)


def _printable(path: Path) -> str:
    r"""A path with slashes; bytes that are not UTF-8 as `\xe9`."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def _split_folders(top: Path) -> dict[str, str]:
    """The folders in a folder that are named after a split, and that split."""
    folders = (path for path in top.iterdir() if path.is_dir())
    return named_folders((_printable(Path(path.name)), "") for path in folders)


def _warned(corpus: Corpus) -> Corpus:
    """The corpus, with a warning of markers that are trained on as text, and of equal texts."""
    files = [f for x in corpus.splits.values() if isinstance(x, Files) for f in x.files if f.marker]
    told = [_same_texts(corpus.splits)]
    if files:
        file, *others = files
        more = f", and {len(others)} other files" if others else ""
        told.append(
            f"{file.name}{more} spells {file.marker}, which is trained on as text; if it ends"
            f" documents, add #separator={file.marker} to the data"
        )
    return dataclasses.replace(corpus, warning="; ".join(filter(None, told)))


def _same_texts(splits: Mapping[str, Documents]) -> str:
    """Which files have the same text, those of several splits first; "" if none have."""
    texts: dict[str, dict[str, str]] = {}
    for split, files in splits.items():
        for file in files.files if isinstance(files, Files) else ():
            texts.setdefault(file.text, {}).setdefault(file.name, split)
    same = [files for files in texts.values() if len(files) > 1]
    same.sort(key=lambda files: len({*files.values()}) == 1)
    groups = [" = ".join(f"{name} ({split})" for name, split in x.items()) for x in same[:3]]
    more = f", and {len(same) - 3} more" * (len(same) > 3)
    return f"the same text is in several files: {', '.join(groups)}{more}" if same else ""


def _from_files(
    name: str, named: Iterable[tuple[str, str, File]], present: frozenset[str]
) -> Corpus:
    """A corpus of (split, path that is hashed, file); those not `present` are cut from train."""
    by_split: dict[str, list[File]] = {split: [] for split in SPLITS}
    train, rule = [], ""
    missing = [split for split in SPLITS[1:] if split not in present]
    for split, path, file in sorted(named, key=lambda entry: entry[2]):
        if not file.size:
            continue
        bucket = int(hashlib.sha256(path.encode()).hexdigest(), 16) % 100
        moved = "train" if bucket < 90 else "validation" if bucket < 95 else "test"
        train += [file] * (split == "train")
        by_split[moved if split == "train" and moved in missing else split].append(file)
    if train and not all(by_split[split] for split in ("train", *missing)):
        cut = [_held_out(file, len(missing)) for file in train]
        for split, files in zip(("train", *missing), zip(*cut, strict=True), strict=True):
            by_split[split] = [file for file in files if file.size]
        rule = f"{', '.join(missing)}: the last {5 * len(missing)} % of each file"
    if not by_split["train"]:
        counts = ", ".join(f"{split} {len(by_split[split])}" for split in SPLITS)
        raise ConfigError(f"data={name!r} is empty: no file with content ({counts}); add documents")
    digests = {file.name: file.digest for part in by_split.values() for file in part}
    return Corpus(
        name,
        digest(digests.items()),
        {split: Files(tuple(part)) for split, part in by_split.items()},
        {split: sum(file.size for file in part) for split, part in by_split.items()},
        rule=rule,
    )


def _held_out(file: File, count: int) -> list[File]:
    """A file in 1 + `count` ranges: all but the first have 5 % of its bytes."""
    first = int(file.size * (1 - 0.05 * count))
    return _cut(file, [first + (file.size - first) * k // count for k in range(count)])


def _cut(file: File, offsets: Sequence[int]) -> list[File]:
    """A file in ranges, cut at these offsets, or where the UTF-8 character there begins."""
    edges, begin = [file.start], file.start
    for block in Files((file,)).blocks(0) if offsets else ():
        inside = (file.start + k - begin for k in offsets)
        edges += [begin + between_characters(block, k) for k in inside if 0 <= k < len(block)]
        begin += len(block)
    return [file._replace(start=a, end=b) for a, b in itertools.pairwise([*edges, file.end])]


def _file(name: str, path: Path) -> File:
    raw, text, size, markers = hashlib.sha256(), hashlib.sha256(), 0, Counter()
    for block in _cleaned(path, raw):
        _check_text(path, block, begins=not size)
        text.update(block)
        size += len(block)
        markers.update({marker: block.count(marker.encode()) for marker in rows.MARKERS})
    marker = rows.separator(markers)
    return File(name, path, raw.hexdigest(), 0, size, text.hexdigest(), marker)


def _check_text(path: Path, block: bytes, begins: bool = True) -> None:
    """Raises ConfigError if a block, which may begin a file, is no text in units of a byte."""
    kind, fix = (not_text if begins else not_text_within)(block)
    if kind:
        raise ConfigError(f"data: {path} is {kind}, which is not trained on as bytes; {fix}")


def _cleaned(path: Path, digest: Any) -> Iterator[bytes]:
    """The blocks of a file without a UTF-8 byte-order mark, and with LF for CRLF.

    The digest is updated with the content as stored.
    """
    for number, block in enumerate(_read(path)):
        digest.update(block)
        text = block if number else block.removeprefix(b"\xef\xbb\xbf")
        yield text.replace(b"\r\n", b"\n")


def _read(path: Path) -> Iterator[bytes]:
    """The blocks of a file: none ends inside of a UTF-8 character or of CRLF."""
    rest, full = b"", True
    try:
        with path.open("rb") as file:
            while full:
                block = file.read(BLOCK)
                full, block = len(block) == BLOCK, rest + block
                end = len(block)
                if full:  # the last character goes on in the next block
                    end -= next((k for k in range(1, 5) if block[-k] & 0xC0 != 0x80), 0)
                    end -= block[end - 1 : end + 1] == b"\r\n"
                yield block[:end]
                rest = block[end:]
    except OSError as error:
        raise ConfigError(f"data: cannot read {path} ({error.strerror}); restore it") from None


def digest(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex over (relative path, SHA-256 of the content), sorted by path."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(pairs))
    return hashlib.sha256(lines.encode()).hexdigest()
