"""What a file is that is not trained on as text, and what to do about it."""

import codecs
import re

# Longer byte-order marks first: UTF-32's begins with UTF-16's.
WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip archive",
    **{b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)},
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x9d": "compress (.Z)",
}
POINTERS = {  # what stands for a file whose content was not fetched
    b"version https://git-lfs.github.com/spec/": ("a Git LFS pointer", "run git lfs pull"),
    b"/annex/objects/": ("a pointer of git-annex", "run git annex get"),
    b"outs:\n- md5: ": ("a DVC pointer", "run dvc pull, and leave .dvc files out"),
}
MARKUP = {b"<!doctype html": "HTML", b"<html": "HTML", b"%pdf-": "PDF", b"{\\rtf": "RTF"}
JSON = re.compile(rb'\s*\[?\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')


def not_text(raw: bytes) -> tuple[str, str]:
    """The kind of content that is not text in units of a byte, and the fix; "" twice for text."""
    for mark, name in COMPRESSED.items():
        if raw.startswith(mark):
            return name, "decompress it"
    for start, (name, fix) in POINTERS.items():
        if raw.startswith(start):
            return name, fix
    for mark, name in MARKUP.items():
        if raw.lstrip()[:64].lower().startswith(mark):
            return name, "extract its text"
    if JSON.match(raw):
        return "JSON", "write an object per line, in a file that ends in .jsonl"
    if raw.startswith(b"\x93NUMPY"):
        return "an array of NumPy, as of tokens", "give the text that they were made from"
    if raw[257:262] == b"ustar":
        return "a tar archive", "unpack it"
    wide = next((name for mark, name in WIDE.items() if raw.startswith(mark)), "")
    return _wide(wide) if wide else not_text_within(raw)


def not_text_within(raw: bytes) -> tuple[str, str]:
    """The same for a part of a file, whatever it begins with."""
    nulls = [raw[k::2].count(0) for k in (0, 1)]  # Latin text in UTF-16 has one in each unit
    if min(nulls) == 0 and 4 * max(nulls) > len(raw):
        return _wide("UTF-16")
    # UTF-16 of other alphabets is often UTF-8 by chance, with a null in each space and line end.
    if any(nulls) and (sum(nulls) > 1 + len(raw) / 100 or not _is_utf8(raw)):
        return "binary", "take it out of the folder, or write its text to a file"
    return "", ""


def _wide(name: str) -> tuple[str, str]:
    return name, f"convert it, as iconv -f {name} -t UTF-8 does"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
