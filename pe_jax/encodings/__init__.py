"""Every scheme by its name: one line each. `make` builds one, `parse` reads a config's string."""

import ast
import dataclasses
import difflib
from typing import Any

import numpy as np

from pe_jax.encodings.alibi import ALiBi
from pe_jax.encodings.alibi_2d import ALiBi2D
from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.encodings.bipe import BiPE
from pe_jax.encodings.buckets import Buckets, Clipped
from pe_jax.encodings.cable import CABLE
from pe_jax.encodings.cope import CoPE
from pe_jax.encodings.cpb import CPB
from pe_jax.encodings.dape import DAPE
from pe_jax.encodings.deberta import DeBERTa
from pe_jax.encodings.fire import FIRE
from pe_jax.encodings.fox import FoX
from pe_jax.encodings.kerple import KERPLE
from pe_jax.encodings.layoutlmv3 import LayoutLMv3
from pe_jax.encodings.learned import Learned
from pe_jax.encodings.learned_2d import Learned2D
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rerope import ReRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.rope_2d import RoPE2D
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.encodings.sandwich import Sandwich
from pe_jax.encodings.self_extend import SelfExtend
from pe_jax.encodings.shaw import Shaw
from pe_jax.encodings.sinusoidal import Sinusoidal
from pe_jax.encodings.sinusoidal_2d import Sinusoidal2D
from pe_jax.encodings.sums import Sum
from pe_jax.encodings.swin import Swin
from pe_jax.encodings.t5 import T5
from pe_jax.encodings.temperature import Temperature
from pe_jax.encodings.transformer_xl import TransformerXL
from pe_jax.encodings.tupe import TUPE
from pe_jax.encodings.wavlm import WavLM
from pe_jax.encodings.xpos import XPos

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": Encoding,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "transformer_xl": TransformerXL,
    "t5": T5,
    "buckets": Buckets,
    "clipped": Clipped,
    "deberta": DeBERTa,
    "rope": RoPE,
    "xpos": XPos,
    "temperature": Temperature,
    "alibi": ALiBi,
    "fox": FoX,
    "cable": CABLE,
    "wavlm": WavLM,
    "rerope": ReRoPE,
    "self_extend": SelfExtend,
    "cope": CoPE,
    "dape": DAPE,
    "sinusoidal_2d": Sinusoidal2D,
    "learned_2d": Learned2D,
    "rope_2d": RoPE2D,
    "mrope": MRoPE,
    "swin": Swin,
    "cpb": CPB,
    "layoutlmv3": LayoutLMv3,
    "alibi_2d": ALiBi2D,
    "kerple": KERPLE,
    "sandwich": Sandwich,
    "fire": FIRE,
    "tupe": TUPE,
    "bipe": BiPE,
}

__all__ = ["ENCODINGS", "Dims", "Encoding", "Params", "Sum", "make", "parse"]


def _nearest(name: str, names) -> str:
    longer = [n for n in names if name and n.startswith(name.lower())]
    close = longer[:1] or difflib.get_close_matches(name.lower(), list(names), 1, 0.65)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "it has none"


def _plain(value: Any) -> Any:
    """Sequences as tuples, NumPy's numbers and arrays as Python's: what can be hashed and saved."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def make(name: str, **fields: Any) -> Encoding:
    """Builds a scheme, as `make("rope", base=5e5)`; sequences become tuples, so it can be hashed.

    Raises:
      ValueError: unknown name or field (naming the nearest), or a value out of range.
      TypeError: the name is no string.
    """
    return _make("encoding", ENCODINGS, name, fields)


def _make(kind: str, table: dict[str, type], name: str, fields: dict[str, Any]) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"{kind}={name!r}: pass a name, such as {next(iter(table))!r}")
    if kind == "encoding" and name not in table and name.lower() in SCALINGS:
        raise ValueError(f"{kind} {name!r} is a scaling: rope(scaling={name.lower()}(…))")
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown; {_nearest(name, table)}")
    known = {f.name: f.default for f in dataclasses.fields(table[name])}
    for field in fields:
        if field not in known:
            raise ValueError(f"{kind} {name!r} has no field {field!r}; {_nearest(field, known)}")
    needed = [f for f, default in known.items() if default is dataclasses.MISSING]
    if needed := [f for f in needed if f not in fields]:
        raise ValueError(f"{kind} {name!r} needs {', '.join(needed)}")
    try:
        return table[name](**{field: _plain(value) for field, value in fields.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{kind} {name!r}: {error}") from error


def _fields(keywords: list[ast.keyword], spec: str) -> dict[str, Any]:
    """Values of `field=value, …`: literals, or scalings as `yarn(factor=4, …)`."""
    fields = {}
    for keyword in keywords:
        shown = ast.unparse(keyword)
        if keyword.arg is None or keyword.arg in fields:
            fix = "write field=value" if keyword.arg is None else "give each field once"
            raise ValueError(f"encoding {spec!r}: cannot read {shown!r}; {fix}")
        match keyword.value:
            case ast.Call(func=ast.Name(id=inner), args=[], keywords=more):
                given = _fields(more, spec)
                try:
                    value = _make("scaling", SCALINGS, inner, given)
                except ValueError as error:
                    raise ValueError(f"encoding {spec!r}: {error}") from error
            case node:
                try:
                    value = ast.literal_eval(node)
                except ValueError:
                    fix = "pass a literal, or a scaling as yarn(factor=4, original_length=2048)"
                    raise ValueError(f"encoding {spec!r}: {shown}: {fix}") from None
        fields[keyword.arg] = value
    return fields


def _build(node: ast.expr, spec: str) -> tuple[Encoding, ...]:
    """The pattern that a piece of the syntax tree stands for."""
    match node:
        case ast.Name(id=name):
            return (make(name),)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            return (make(name, **_fields(keywords, spec)),)
        case ast.Tuple(elts=parts):
            return tuple(enc for part in parts for enc in _build(part, spec))
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times > 0:
            return _build(left, spec) * times
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            a, b = _build(left, spec), _build(right, spec)
            if len(a) == len(b) == 1:
                return (Sum((a[0], b[0])),)
    piece = ast.unparse(node)
    raise ValueError(
        f"encoding {spec!r}: cannot read {piece!r}; write name, name(field=value), a+b, a*3, or a,b"
    )


def parse(spec: str) -> tuple[Encoding, ...]:
    """Reads `rope(base=5e5)`, a sum `t5+rope`, or a pattern over layers `rope*3,nope`.

    A scaling of RoPE is written as the others are: `rope(scaling=yarn(factor=4,
    original_length=2048))`; the names are those of `rope_scaling.SCALINGS`.

    Returns:
      The pattern: one encoding a layer, to be repeated over the depth.

    Raises:
      ValueError: what cannot be read, an unknown name or field (naming the nearest).
      TypeError: `spec` is no string.
    """
    if not isinstance(spec, str):
        raise TypeError(f"encoding={spec!r}: pass a string, such as 'rope(base=5e5)'")
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(
            f"encoding {spec!r}: not a valid expression, such as 'rope(base=5e5)'"
        ) from None
    return _build(tree, spec)
