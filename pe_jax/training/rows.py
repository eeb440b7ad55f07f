"""Documents that are rows of a file: JSON lines, CSV, Parquet, Arrow, or text between separators.

    documents = read(path, Options(column="text"))

A file is read once from end to end, row by row, to learn where its documents are; each is then read
where it lies. Memory is 24 bytes per document, and one row group of a Parquet file.
"""

import contextlib
import csv
import dataclasses
import functools
import itertools
import json
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from pe_jax.validation import ConfigError

USUAL = ("text", "content", "body", "document", "story")  # names of a column of text
MARKERS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|endofdocument|>")
csv.field_size_limit(2**31 - 1)  # of bytes: a document may be a book


class Options(NamedTuple):
    """What ends a document, and which column has it."""

    column: str = ""
    separator: str = ""


class Place(NamedTuple):
    """Where a document lies, in numbers of its format, and its size in bytes."""

    first: int
    second: int
    size: int


Found = Iterator[tuple[int, int, Any]]  # places of rows, and what each holds


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a file, as it was at the start."""

    path: Path  # of the file
    stamp: tuple[int, int]  # its size and time of change
    # (path, stamp, first, second) → what a row holds
    take: Callable[[Path, tuple[int, int], int, int], Any]
    column: str  # which part of that is the document; "": all of it
    places: np.ndarray  # int64 [documents, 3], as `Place`

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int, /) -> bytes:
        if _stamp(self.path) != self.stamp:
            raise ConfigError(f"data: {self.path} changed since the start; restore it and resume")
        place = Place(*self.places[index].tolist())
        row = self.take(self.path, self.stamp, place.first, place.second)
        return _document(row, self.column)

    @property
    def size(self) -> int:
        """Bytes of all documents."""
        return int(self.places[:, 2].sum())

    def cut(self, count: int) -> list["Rows"]:
        """The rows in 1 + `count` parts, of which all but the first have 5 % and at least one."""
        each = max(len(self) * 5 // 100, 1)
        edges = [0, *(max(len(self) - each * k, 0) for k in range(count, -1, -1))]
        pairs = itertools.pairwise(edges)
        return [dataclasses.replace(self, places=self.places[a:b]) for a, b in pairs]


@dataclasses.dataclass(frozen=True)
class Joined:
    """The documents of several files, one file after the other."""

    files: tuple[Rows, ...]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(file) for file in self.files], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.files else 0

    def __getitem__(self, index: int, /) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = int(np.searchsorted(self._ends, index, side="right"))
        return self.files[file][index - int(self._ends[file]) + len(self.files[file])]


def read(path: Path, options: Options) -> Rows:
    """The documents of a file: rows of a table by its suffix, else text.

    Raises:
      ConfigError: The file cannot be read, a row holds no text, or no column is the text's.
    """
    suffix = path.suffix.lower()
    stamp = _stamp(path)
    if suffix not in FORMATS:
        take, found, column = _text_between, _separated(path, options.separator.encode()), ""
    else:
        scan, take = FORMATS[suffix]
        column, found = _column(path, scan(path, stamp), options.column)
    places = []
    for number, (first, second, row) in enumerate(found, 1):
        try:
            size = len(_document(row, column))
        except (KeyError, TypeError):
            known = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise ConfigError(
                f"data: {path}: document {number} has no text in column {column!r} ({known});"
                " pass another, as text:DIR#column=NAME, or mend the file"
            ) from None
        if size:
            places.append((first, second, size))
    return Rows(path, stamp, take, column, np.array(places, np.int64).reshape(-1, 3))


def is_table(path: Path) -> bool:
    """Whether a file has rows, by its suffix."""
    return path.suffix.lower() in FORMATS


def separator(counts: Mapping[str, int]) -> str:
    """The marker that ends documents in a text with so many of each; "" if it has but one."""
    marker = max(MARKERS, key=lambda marker: counts[marker])
    return marker if counts[marker] > 1 else ""


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(f"data: cannot read {path} ({error.strerror}); restore it") from None
    return status.st_size, status.st_mtime_ns


def _document(row: Any, column: str) -> bytes:
    """The text of a row. KeyError or TypeError: there is none."""
    text = row[column] if column else row
    if text is None:
        return b""
    if not isinstance(text, str | bytes):
        raise TypeError
    text = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return text.replace(b"\r\n", b"\n")


def _column(path: Path, rows: Found, name: str) -> tuple[str, Found]:
    """The column of text, and all rows."""
    first = next(rows, None)
    if first is None:
        return name, iter(())
    row = first[2]
    texts = [key for key, value in row.items() if isinstance(value, str)]
    candidates = texts if len(texts) == 1 else [key for key in USUAL if key in texts]
    if not name and len(candidates) != 1:
        raise ConfigError(
            f"data: {path} has the columns {', '.join(map(str, row))}; say which is the text, as"
            " text:DIR#column=NAME"
        )
    if not name:
        logging.info("data: %s: the text is column %r", path, candidates[0])

    def every() -> Found:
        yield first
        yield from rows

    return name or candidates[0], every()


# Formats: `scan` finds the rows of a file, `take` reads one.


def _json_lines(path: Path, stamp: Any) -> Found:
    begin = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end = begin + len(line)
            if line.strip():
                yield begin, end, _json(path, line, f"line {number}")
            begin = end


def _json(path: Path, line: bytes, where: str) -> Any:
    try:
        row = json.loads(line)
        reason = f"a {type(row).__name__}"
    except ValueError as error:
        row, reason = None, str(error)
    if not isinstance(row, dict):
        fix = "write one object per line (JSON lines), or take the file out"
        raise ConfigError(f"data: {path}: {where} is no object of JSON ({reason}); {fix}")
    return row


def _json_line(path: Path, stamp: Any, begin: int, end: int) -> Any:
    return _json(path, _between(path, begin, end), f"byte {begin}")


def _between(path: Path, begin: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


@functools.lru_cache(64)
def _header(path: Path, stamp: Any) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names, delimiter = next(csv.reader(file, delimiter=_delimiter(path)), []), _delimiter(path)
    if len(names) == 1 and (other := re.search(r"[;,|\t]", names[0])):
        ends = f"its columns are separated by {delimiter!r}; write it so, or tabs to a .tsv"
        raise ConfigError(f"data: {path}: the first line has a {other[0]!r}, and {ends}")
    return names


def _csv(path: Path, stamp: Any) -> Found:
    offset = 0

    def lines(file: Iterable[bytes]) -> Iterator[str]:
        nonlocal offset
        for line in file:
            offset += len(line)
            yield line.decode("utf-8")

    with path.open("rb") as file:
        try:
            names, begin = _header(path, stamp), 0
            for number, row in enumerate(csv.reader(lines(file), delimiter=_delimiter(path))):
                if number and row:
                    yield begin, offset, dict(zip(names, row, strict=False))
                begin = offset
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"data: {path}: no CSV in UTF-8 ({error}); correct it") from None


def _csv_row(path: Path, stamp: Any, begin: int, end: int) -> Any:
    lines = _between(path, begin, end).decode("utf-8").splitlines(keepends=True)
    (row,) = csv.reader(lines, delimiter=_delimiter(path))
    return dict(zip(_header(path, stamp), row, strict=False))


def _parquet(path: Path, stamp: Any) -> Found:
    import pyarrow.parquet  # slow to import

    with _pyarrow(path), pyarrow.parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group).to_pylist()
            yield from ((group, index, row) for index, row in enumerate(rows))


@functools.lru_cache(2)
def _row_group(path: Path, stamp: Any, group: int) -> Sequence[Any]:
    import pyarrow.parquet

    with _pyarrow(path), pyarrow.parquet.ParquetFile(path) as file:
        return file.read_row_group(group).to_pylist()


def _parquet_row(path: Path, stamp: Any, group: int, index: int) -> Any:
    return _row_group(path, stamp, group)[index]


@functools.lru_cache(8)
def _arrow_table(path: Path, stamp: Any) -> Any:
    """A memory-mapped table: of an IPC file, as Feather is, or of a stream, as `datasets` has."""
    import pyarrow

    with _pyarrow(path):
        source = pyarrow.memory_map(str(path))
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()


def _arrow(path: Path, stamp: Any) -> Found:
    table, begin = _arrow_table(path, stamp), 0
    for batch in table.to_batches():
        yield from ((0, begin + index, row) for index, row in enumerate(batch.to_pylist()))
        begin += len(batch)


def _arrow_row(path: Path, stamp: Any, _: int, index: int) -> Any:
    return _arrow_table(path, stamp).slice(index, 1).to_pylist()[0]


@contextlib.contextmanager
def _pyarrow(path: Path) -> Iterator[None]:
    """Its errors are ConfigErrors that name the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"data: {path} is damaged ({reason}); restore it") from None


def _separated(path: Path, separator: bytes) -> Found:
    """The texts between separators, without the line ends next to them."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            begin, last = 0, len(content)
            while begin < last:
                end = content.find(separator, begin) if separator else -1
                end = last if end < 0 else end
                yield begin, end, content[begin:end].strip(b"\r\n")
                begin = end + max(len(separator), 1)


def _text_between(path: Path, stamp: Any, begin: int, end: int) -> Any:
    return _between(path, begin, end).strip(b"\r\n")


FORMATS: dict[str, tuple[Callable[[Path, Any], Found], Callable[..., Any]]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), (_json_lines, _json_line)),
    **dict.fromkeys((".csv", ".tsv"), (_csv, _csv_row)),
    ".parquet": (_parquet, _parquet_row),
    **dict.fromkeys((".arrow", ".feather"), (_arrow, _arrow_row)),
}
