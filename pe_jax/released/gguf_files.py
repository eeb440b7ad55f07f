"""Reads a GGUF file as a checkpoint of transformers: keys, tensors and tokenizer.

The format: "GGUF", a version, the numbers of tensors and keys, the keys with values of 13 types,
then name, shape, type and offset of each tensor, then their bytes, aligned. Numbers are little-
endian and shapes have the fastest axis first. The package `gguf` unpacks quantized blocks; its
reader makes an object per element of an array, 10 s for a vocabulary of 262,144, so the header is
read here. What the file says must be understood: a key or a tensor that is not is an error.
"""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np

from pe_jax.released import gguf_config, tokenizer_files
from pe_jax.released.checkpoint import EXTRA, Checkpoint, Stored, Tensors, refuse
from pe_jax.validation import ConfigError

MAGIC = b"GGUF"
NUMBERS = "u1 i1 u2 i2 u4 i4 f4 ? - - u8 i8 f8".split()  # by the number of a type
TEXT, ARRAY = 8, 9
DAMAGED = "copy the file again"


def read(path: Path) -> Checkpoint:
    """The checkpoint of a .gguf file.

    Raises:
      ConfigError: the file is damaged, or has an architecture, key, tensor, quantization, tokenizer
        or pre-tokenizer that is not known here, which the line names.
    """
    try:
        keys, raw = header(path)
        if keys.get("split.count", 1) > 1:
            fix = "join the parts: llama-gguf-split --merge FIRST_PART WHOLE"
            refuse(path, f"one of {keys['split.count']} parts", fix)
        config, stored = gguf_config.convert(keys, raw)
        tokenizer, extra = tokenizer_files.from_gguf(keys, path.with_name("tokenizer.json"))
    except ConfigError as error:
        named = str(error).startswith(str(path))
        raise ConfigError(str(error) if named else f"{path}: {error}") from None
    return Checkpoint(path, config, Tensors(stored), tokenizer, extra)


@dataclasses.dataclass
class Cursor:
    """A place in the bytes of a file."""

    path: Path
    data: np.ndarray
    at: int = 0

    def take(self, count: int) -> np.ndarray:
        """The next `count` bytes."""
        if count > len(self.data) - self.at:
            refuse(
                self.path, f"cut off: it ends at byte {len(self.data):,}, in its header", DAMAGED
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str = "u8") -> Any:
        """A number of a NumPy type."""
        return self.numbers(kind, 1)[0]

    def numbers(self, kind: str, count: int) -> list:
        """An array of numbers; float32 as the shortest decimals that mean the same number."""
        dtype = np.dtype("bool" if kind == "?" else f"<{kind}")
        values = self.take(count * dtype.itemsize).view(dtype)
        return [float(str(x)) for x in values] if kind == "f4" else values.tolist()

    def text(self) -> str:
        """A string."""
        raw = self.take(self.number()).tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            refuse(self.path, f"{raw[:40]!r}, in its header, is not UTF-8", DAMAGED)

    def value(self, kind: int) -> Any:
        """A value of a type."""
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            kind, count = self.number("u4"), self.number()
            if kind == TEXT:
                return self.texts(count)
            if kind < len(NUMBERS) and kind != ARRAY:
                return self.numbers(NUMBERS[kind], count)
        elif kind < len(NUMBERS):
            return self.number(NUMBERS[kind])
        refuse(self.path, f"a value of type {kind} at byte {self.at:,}", DAMAGED)

    def texts(self, count: int) -> list[str]:
        """An array of strings: a vocabulary has hundreds of thousands."""
        self.take(8 * count)  # at least their lengths must fit
        self.at -= 8 * count
        view, at, strings = self.data.data, self.at, []
        for _ in range(count):
            if at + 8 > len(view):
                break
            (length,) = struct.unpack_from("<Q", view, at)
            at += 8 + length
            strings.append(bytes(view[at - length : at]))
        self.take(at - self.at)
        return [string.decode(errors="replace") for string in strings]


def header(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """The keys of a file, and its tensors under their own names.

    Raises:
      ConfigError: what `read` raises for a damaged file or an unknown quantization.
    """
    data = np.memmap(path, np.uint8, "r")
    cursor = Cursor(path, data)
    if cursor.take(4).tobytes() != MAGIC:
        refuse(path, "not a GGUF file", "pass a .gguf file or a folder")
    version = cursor.number("u4")
    if version not in (2, 3):
        order = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        refuse(path, f"a GGUF file {order}, not 2 or 3", "take a newer conversion")
    count, keys_count = cursor.numbers("u8", 2)
    keys = {}
    for _ in range(keys_count):
        name = cursor.text()
        keys[name] = cursor.value(cursor.number("u4"))
    entries = []
    for _ in range(count):
        name = cursor.text()
        shape = tuple(cursor.numbers("u8", cursor.number("u4")))[::-1]
        entries.append((name, shape, cursor.number("u4"), cursor.number()))
    align = keys.get("general.alignment", 32)
    start = -(-cursor.at // align) * align
    stored = {}
    for name, shape, kind, offset in entries:
        stored[name] = _stored(path, data[start + offset :], name, shape, kind)
    return keys, stored


def _stored(path: Path, rest: np.ndarray, name: str, shape: tuple[int, ...], kind: int) -> Stored:
    """A tensor whose blocks begin where `rest` does."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(f"{path}: reading it needs gguf; {EXTRA}") from error
    try:
        quantization = gguf.GGMLQuantizationType(kind)
        elements, size = gguf.GGML_QUANT_SIZES[quantization]
        gguf.dequantize(np.zeros((1, size), np.uint8), quantization)
    except (ValueError, KeyError, NotImplementedError):
        known = {int(x): x.name for x in gguf.GGMLQuantizationType}
        fix = "take another quantization, such as Q8_0 or Q4_K_M"
        refuse(path, f"{name} is quantized as {known.get(kind, kind)}, which is not unpacked", fix)
    if not shape or shape[-1] % elements:
        refuse(path, f"{name} of shape {list(shape)} is not in blocks of {elements}", DAMAGED)
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    row = shape[-1] // elements * size
    if rows * row > len(rest):
        lacks = f"{rows * row - len(rest):,} bytes of {name}"
        refuse(path, f"cut off: it lacks {lacks}", DAMAGED)

    def load() -> np.ndarray:
        blocks = rest[: rows * row].reshape(rows, row)
        if quantization == gguf.GGMLQuantizationType.F32:
            return blocks.view("<f4").reshape(shape)
        return gguf.dequantize(blocks, quantization).reshape(shape)

    return Stored(shape, quantization.name, load)
