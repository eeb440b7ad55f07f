"""Names of encodings, for folders and for tables."""

import re
from collections.abc import Iterable


def slug(spec: str) -> str:
    """A folder's name for an encoding: `rope(base=5e5)` → rope-base-5e5."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", spec.replace("_", "-")).strip("-.")[:64] or "encoding"


def short_name(spec: str) -> str:
    """The scheme's name if a spec is one scheme with its fields, else the whole spec."""
    bare, before = spec, ""
    while bare != before:  # calls may be nested
        bare, before = re.sub(r"\([^()]*\)", "", bare), bare
    return bare if re.fullmatch(r"\w+", bare) else spec


def title(spec: str, convention: str, entries: Iterable[tuple[str, str]], plain: str) -> str:
    """An encoding's name with its positions, and its fields if the name is not unique."""
    alone = [short_name(s) for s, c in entries if c == convention].count(short_name(spec)) == 1
    name = short_name(spec) if alone else spec
    return name if convention == plain else f"{name}, {convention}"
