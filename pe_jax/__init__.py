"""Positional encodings as pure functions, and one attention that runs any of them."""

from pe_jax.encodings import ENCODINGS, Dims, Encoding, Params, Sum, make, parse
from pe_jax.engines.api import attend, attention

__all__ = [
    "ENCODINGS",
    "Dims",
    "Encoding",
    "Params",
    "Sum",
    "attend",
    "attention",
    "make",
    "parse",
]
