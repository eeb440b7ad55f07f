"""Positional encodings as pure functions, and one attention that runs any of them.

    encoding = pe_jax.make("rope", base=5e5)          # or pe_jax.parse("t5+rope")[0]
    params = encoding.init(key, pe_jax.Dims(512, 8, 8, 64))
    x = encoding.embed(params, x, positions)          # of the first layer: sinusoidal, learned
    encoding = encoding.at_length(4096)               # dynamic NTK, LongRoPE depend on it
    out = pe_jax.attention(q, k, v, encoding=encoding, params=params)

For another attention `rotate` and `bias` give the two parts of a scheme, `decompose` says which.
`pe_jax.encodings` has the papers' functions (`rope.rotate`, `alibi.slopes`, `t5.bucket`), one file
per scheme; `spec` writes the string that `parse` reads; `hf` reads whole Hugging Face configs;
`positions` are for packed rows, grids and augmentation, `graphs` for nodes; `cache` decodes token
by token; `masks` are for prefixes, trees and chunks; `nnx` and `linen` have an encoding as a
module, `adapters` are for Flax's own attention; `naive` and `reference` to test against. Memory is
in proportion to the length.
"""

from typing import TYPE_CHECKING, Any

from pe_jax.encodings import ENCODINGS, Dims, Encoding, Params, Sum, Windowed, make, parse
from pe_jax.encodings import terms as terms
from pe_jax.encodings.registry import format_encoding as spec
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceFormula,
    Input,
    KeyOffset,
    Mask,
    PairBias,
    PairRescore,
    PathProduct,
    QueryBias,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    Rotation,
    RowSum,
    Scale,
    Sink,
    State,
    TokenBias,
    TokenProduct,
    Unnormalized,
    ValueRotation,
    Views,
)

if TYPE_CHECKING:
    from pe_jax import conformance, graphs, hf, linen, masks, naive, nnx, positions
    from pe_jax.engines import reference
    from pe_jax.engines.api import attention
    from pe_jax.engines.decoding import cache
    from pe_jax.engines.parts import bias, decompose, rotate
    from pe_jax.models import adapters

__version__ = "0.2.0"

__all__ = [
    "ENCODINGS",
    "Dims",
    "DistanceBias",
    "DistanceFormula",
    "Encoding",
    "Input",
    "KeyOffset",
    "Mask",
    "PairBias",
    "Params",
    "PathProduct",
    "QueryBias",
    "RelativeKeys",
    "RelativeQueries",
    "RelativeState",
    "RelativeValues",
    "Rotation",
    "PairRescore",
    "RowSum",
    "Scale",
    "Sink",
    "State",
    "Sum",
    "TokenBias",
    "TokenProduct",
    "Unnormalized",
    "ValueRotation",
    "Views",
    "Windowed",
    "adapters",
    "attention",
    "bias",
    "cache",
    "conformance",
    "decompose",
    "graphs",
    "hf",
    "linen",
    "make",
    "masks",
    "naive",
    "nnx",
    "parse",
    "positions",
    "reference",
    "rotate",
    "spec",
    "terms",
]


def __getattr__(name: str) -> Any:
    """Imports a module when it is first asked for: an encoding needs none, adapters need Flax."""
    match name:
        case "adapters":
            import pe_jax.models.adapters as value
        case "attention":
            from pe_jax.engines.api import attention as value
        case "bias" | "decompose" | "rotate":
            from pe_jax.engines import parts

            value = getattr(parts, name)
        case "cache":
            import pe_jax.engines.decoding.cache as value
        case "conformance":
            import pe_jax.conformance as value
        case "graphs":
            import pe_jax.graphs as value
        case "hf":
            import pe_jax.hf as value
        case "linen":
            import pe_jax.linen as value
        case "masks":
            import pe_jax.masks as value
        case "naive":
            import pe_jax.naive as value
        case "nnx":
            import pe_jax.nnx as value
        case "positions":
            import pe_jax.positions as value
        case "reference":
            import pe_jax.engines.reference as value
        case _:
            raise AttributeError(f"module 'pe_jax' has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
