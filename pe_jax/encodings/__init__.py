"""Positional encodings, one scheme per file; `registry` has them all by name."""

from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.encodings.registry import ENCODINGS, make, parse
from pe_jax.encodings.sums import Sum
from pe_jax.encodings.windowed import Windowed

__all__ = ["ENCODINGS", "Dims", "Encoding", "Params", "Sum", "Windowed", "make", "parse"]
