"""Names of encodings, for folders, tables and figures: variants are told apart in each."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pe_jax import spec_strings
from pe_jax.encodings.registry import SETTINGS
from pe_jax.validation import ConfigError, nearest

HASH = 8  # hexadecimal digits


def slug(text: str) -> str:
    """Text as part of a path: `rope(base=5e5)` → rope-base-5e5."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("_", "-")).strip("-.")[:48] or "encoding"


def folder(*parts: str) -> str:
    """The folder of an encoding's runs, which depends on nothing else.

    A name alone is its folder: `transformer_xl`. All else is a slug and a hash, so that no two are
    the same: `t5+rope` → t5-rope-2ea72b25, `t5,rope` → t5-rope-e9ddcf9e.
    """
    if len(parts) == 1 and re.fullmatch(r"[A-Za-z]\w{0,40}", parts[0], re.ASCII):
        return parts[0]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH]
    return f"{slug('-'.join(parts))}-{digest}"


def rates_name(rate: float, encoding_rate: float) -> str:
    """A pair of rates in a path: 0.01x30.0."""
    return f"{float(rate)!r}x{float(encoding_rate)!r}"


class Variant(NamedTuple):
    """A scheme with its fields: that of `rope(scaling=yarn(factor=4))` is `yarn`."""

    name: str
    fields: dict[str, str]


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Spec → the shortest name that tells it apart from the others.

    One scheme is called by its name, or by that of its scaling, with the fields in which it
    differs from others of that name, and its window: `yarn ×4`, `rope window 64`. Sums and patterns
    stay as written.
    """
    variants = {spec: _variant(spec) for spec in specs}
    names = {}
    for spec, variant in variants.items():
        if variant is None:
            names[spec] = spec
            continue
        same = [v for v in variants.values() if v and v.name == variant.name]
        values = {f: {v.fields.get(f) for v in same} for v in same for f in v.fields}
        fields = variant.fields.items()
        differing = {f: x for f, x in fields if f.startswith("@") or len(values[f]) > 1}
        names[spec] = " ".join([variant.name, *(_field(*item) for item in differing.items())])
    count = Counter(names.values())
    return {spec: name if count[name] == 1 else spec for spec, name in names.items()}


def _variant(spec: str) -> Variant | None:
    """The variant that a spec is; None if it is a sum, a pattern, or cannot be read."""
    filled = re.sub(r"\{(\w+)\}", r"'{\1}'", spec)  # placeholders stand for values
    try:
        (layer,) = spec_strings.parse_pattern(filled, "rope", "a scaling", SETTINGS)
        (call,) = layer.summands
    except ValueError:
        return None
    fields: dict[str, str] = {}
    name = _flatten(call, fields)
    return Variant(name, fields | {f"@{key}": str(n) for key, n in layer.settings.items()})


def _flatten(call: spec_strings.Call, fields: dict[str, str]) -> str:
    """Writes the fields of a call and of nested ones to `fields`; returns the innermost name."""
    name = call.name
    for field, value in call.fields.items():
        if isinstance(value, spec_strings.Call):
            name = _flatten(value, fields)
        else:
            fields[field] = _format(value)
    return name


def _format(value: Any) -> str:
    """A value as text; of a float the shorter form, 0.5 or 5e5."""
    if isinstance(value, spec_strings.Call):
        inner = {field: _format(x) for field, x in value.fields.items()}
        return spec_strings.format_call(value.name, inner)
    if isinstance(value, tuple) and any(isinstance(x, spec_strings.Call) for x in value):
        return f"({', '.join(map(_format, value))})"
    if not isinstance(value, float):
        return str(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    power = f"{float(mantissa):g}e{int(exponent)}" if exponent else str(value)
    return min(f"{value:g}", power, key=len)


def _field(field: str, value: str) -> str:
    return f"×{value}" if field == "factor" else f"{field.removeprefix('@')} {value}"


def find(field: str, value: str, specs: Sequence[str]) -> str:
    """The spec that a setting names, by the spec or its short name; "" is the first.

    Raises:
      ConfigError: it is none of them.
    """
    names = short_names(specs)
    by_name = {**{name: spec for spec, name in names.items()}, **{spec: spec for spec in specs}}
    if not value:
        return specs[0]
    if value not in by_name:
        listed = ", ".join(names.values())
        near = nearest(value, by_name, cutoff=0.6)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{field}={value!r}: pass one of the encodings: {listed[:200]}{hint}")
    return by_name[value]


def title(spec: str, convention: str, entries: Iterable[tuple[str, str]], plain: str) -> str:
    """An encoding's short name among those with the same positions, and the name of these."""
    name = short_names([s for s, c in entries if c == convention])[spec]
    return name if convention == plain else f"{name}, {convention}"
