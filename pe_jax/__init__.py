"""Positional encodings as pure functions, and one attention that runs any of them.

Memory is in proportion to the length, except for CoPE and DAPE, which need whole rows of scores.
"""

from typing import TYPE_CHECKING, Any

from pe_jax.encodings import ENCODINGS, Dims, Encoding, Params, Sum, make, parse
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceFormula,
    Input,
    PairBias,
    QueryBias,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    Rotation,
    RowRescore,
    Scale,
    Sink,
    State,
    TokenBias,
    TokenProduct,
)

if TYPE_CHECKING:
    from pe_jax import hf as hf
    from pe_jax import naive as naive
    from pe_jax.engines import reference as reference
    from pe_jax.engines.api import attend, attention

__version__ = "0.2.0"

__all__ = [
    "ENCODINGS",
    "Dims",
    "DistanceBias",
    "Encoding",
    "Input",
    "PairBias",
    "Params",
    "DistanceFormula",
    "QueryBias",
    "RelativeKeys",
    "RelativeQueries",
    "RelativeState",
    "RelativeValues",
    "Rotation",
    "RowRescore",
    "Scale",
    "Sink",
    "State",
    "Sum",
    "TokenBias",
    "TokenProduct",
    "attend",
    "attention",
    "hf",
    "make",
    "naive",
    "parse",
    "reference",
]


def __getattr__(name: str) -> Any:
    """Imports engines, configs and naive forms when first asked for: an encoding needs none."""
    if name == "hf":
        import pe_jax.hf as hf

        return hf
    if name == "naive":
        import pe_jax.naive as naive  # `from pe_jax import naive` would call this function again

        return naive
    if name in ("attend", "attention", "reference"):
        from pe_jax.engines import api, reference

        globals().update(attend=api.attend, attention=api.attention, reference=reference)
        return globals()[name]
    raise AttributeError(f"module 'pe_jax' has no attribute {name!r}")
