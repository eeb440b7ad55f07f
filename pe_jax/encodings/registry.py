"""Encodings by their names: `make`, `parse`, `format_encoding`; `Spec` is a string parsed once."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from pe_jax import spec_strings as specs
from pe_jax.encodings import schemes
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.gated_delta import GatedDelta
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.encodings.sums import Sum, sum_of
from pe_jax.encodings.windowed import Windowed
from pe_jax.validation import ConfigError, require, shown

SETTINGS = ("window", "sinks", "chunk")  # of a layer
ENCODINGS: dict[str, type[Encoding]] = {
    name: kind for name, kind in vars(schemes).items() if isinstance(kind, type)
}
RECURRENT: dict[str, type[Encoding]] = {"gated_delta": GatedDelta}  # in the place of attention


def make(name: str, **fields: Any) -> Encoding:
    """Builds a scheme, as `make("rope", base=5e5)`; sequences become tuples, so it can be hashed.

    Raises:
      ConfigError: unknown name or field (naming the nearest), or a value out of range.
      TypeError: the name is not a string.
    """
    if isinstance(name, str) and not {*"(+,*"}.isdisjoint(name):
        fix = "make takes a name; pe_jax.parse reads such a string"
        raise ConfigError(f"encoding {shown(name)}: {fix}")
    if isinstance(name, str) and name not in ENCODINGS and name.lower() in SCALINGS:
        raise ConfigError(f"encoding {name!r} is a scaling: rope(scaling={name.lower()}(…))")
    return specs.build("encoding", ENCODINGS | RECURRENT, name, fields)


def parse(spec: str) -> tuple[Encoding, ...]:
    """Reads `rope(base=5e5)`, a sum `t5+rope`, or a pattern over layers `rope*3,nope`.

    A layer may have its own sliding window and sinks: `rope@window=512@sinks=4*3,nope`; it is then
    `Windowed`. `@window=0` means no window, even if the model has one; `@chunk=512` gives it chunks
    in place of a window.

    A scaling of RoPE is written the same way: `rope(scaling=yarn(factor=4, original_length=2048))`;
    the names are those of `rope_scaling.SCALINGS`. Where axes have one each, they stand in a tuple:
    `rope_nd(scaling=(linear(factor=2),None,None))`.

    A layer of a Transformer may also be recurrent, in the place of attention: `gated_delta*3,nope`.

    Returns:
      The pattern: one encoding per layer, to be repeated over the depth.

    Raises:
      ConfigError: a spec that cannot be read, an unknown name or field (naming the nearest).
      TypeError: `spec` is not a string.
    """
    if not isinstance(spec, str):
        raise TypeError(f"encoding={shown(spec)}: pass a string, such as 'rope(base=5e5)'")
    scaling = "a scaling as yarn(factor=4, original_length=2048)"
    try:
        pattern = specs.parse_pattern(spec, "rope(base=5e5)", scaling, SETTINGS)
    except ConfigError as error:
        raise ConfigError(f"encoding {shown(spec)}: {error}") from error
    return tuple(_layer(layer, spec) for layer in pattern)


class Spec(str):
    """A pattern of encodings as it was written, and its `layers`, which are parsed at most once.

    Configs have it where flags and files have strings. Equal to its string, and saved as one.
    """

    def __new__(cls, text: str) -> "Spec":
        return text if isinstance(text, Spec) else super().__new__(cls, text)

    def __reduce__(self) -> tuple:
        """Its text: the classes may be in a module that is yet to be loaded where it is read."""
        return Spec, (str(self),)

    @functools.cached_property
    def layers(self) -> tuple[Encoding, ...]:
        """What `parse` returns for it, or raises."""
        return parse(self)

    @classmethod
    def of(cls, layers: Sequence[Encoding]) -> "Spec":
        """The spec that reads as these layers; nothing is parsed."""
        spec = cls(",".join(map(format_encoding, layers)))
        spec.__dict__["layers"] = tuple(layers)
        return spec

    def filled(self, **values: Any) -> "Spec":
        """The spec with values in place of `{names}`; itself if it has none of them."""
        text = str(self)
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return self if text == self else Spec(text)


def _layer(layer: specs.Layer, spec: str) -> Encoding:
    summands = tuple(
        make(name, **{field: _value(value, spec) for field, value in fields.items()})
        for name, fields in layer.summands
    )
    encoding = sum_of(summands)
    if not layer.settings:
        return encoding
    window, sinks, chunk = (layer.settings.get(name, 0) for name in SETTINGS)
    where = f"encoding {shown(spec)}:"
    fix = "write @window=… too, for the same layer"
    require(window > 0 or not sinks, f"{where} @sinks", sinks, fix)
    fix = "write that or @window=…, not both"
    require(not (window and chunk), f"{where} @chunk", chunk, fix)
    return Windowed(encoding, window or None, sinks, chunk or None)


def _value(value: Any, spec: str) -> Any:
    """The value of a field: a literal, for a call the scaling that it names, or a tuple."""
    if not isinstance(value, specs.Call):
        within = isinstance(value, tuple)
        return tuple(_value(item, spec) for item in value) if within else value
    fields = {field: _value(inner, spec) for field, inner in value.fields.items()}
    try:
        return specs.build("scaling", SCALINGS, value.name, fields)
    except ValueError as error:
        raise ConfigError(f"encoding {shown(spec)}: {error}") from error


def shortest(layers: list[Encoding]) -> list[Encoding]:
    """The shortest pattern that is repeated in these layers."""
    periods = (n for n in range(1, len(layers) + 1) if len(layers) % n == 0)
    return next(p for n in periods if layers == (p := layers[:n]) * (len(layers) // n))


def format_pattern(layers: list[Encoding]) -> str:
    """The shortest spec that, repeated, `parse` reads as these layers: `rope@window=4096*3,nope`.

    Raises:
      TypeError, ValueError: as `format_encoding`.
    """
    specs = []
    for encoding, run in itertools.groupby(shortest(layers)):
        spec, count = format_encoding(encoding), len(list(run))
        spec = f"({spec})" if isinstance(encoding, Sum) and count > 1 else spec
        specs.append(spec if count == 1 else f"{spec}*{count}")
    return ",".join(specs)


def format_encoding(encoding: Encoding) -> str:
    """The spec that `parse` reads as an equal encoding; fields at their defaults are left out.

    Raises:
      TypeError: not an encoding.
      ValueError: an encoding that is not in `ENCODINGS`.
    """
    if isinstance(encoding, Windowed):
        spec = format_encoding(encoding.encoding)
        spec = f"({spec})" if isinstance(encoding.encoding, Sum) else spec
        if encoding.chunk is not None:
            return f"{spec}@chunk={encoding.chunk}"
        sinks = f"@sinks={encoding.sinks}" if encoding.sinks else ""
        return f"{spec}@window={encoding.window or 0}{sinks}"
    if isinstance(encoding, Sum):
        return "+".join(map(format_encoding, encoding.parts))
    if not isinstance(encoding, Encoding):
        fix = "pass one encoding, what pe_jax.make or pe_jax.parse(…)[0] gives"
        raise TypeError(f"encoding={shown(encoding)}: {fix}")
    known = ENCODINGS | RECURRENT
    registered = type(encoding) in known.values()
    require(registered, "encoding", encoding, "add its class to pe_jax.ENCODINGS under a name")
    names = {kind: name for name, kind in [*known.items(), *SCALINGS.items()]}
    return specs.format_spec(encoding, names)
