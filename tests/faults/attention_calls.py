"""Attention and its cache on five tokens, and the one line that a refusal is."""

import numpy as np
import pytest

import pe_jax
from pe_jax import Params
from pe_jax.encodings.rope_scaling import DynamicNTK
from pe_jax.engines.decoding import cache
from tests import util
from tests.util import DIMS, B, E, H

T = 5
Q, K_, V = util.inputs(T)
ROPE, T5, SHAW = (pe_jax.make(name) for name in ("rope", "t5", "shaw"))
FOX, X = pe_jax.make("fox"), Q.reshape(B, T, H * E)
NO_PARAMS = Params({}, {})


def attention(q=Q, k=K_, v=V, **options):
    """`pe_jax.attention` with the parameters that the scheme needs."""
    encoding = options.get("encoding")
    if isinstance(encoding, pe_jax.Encoding) and "params" not in options:
        options["params"] = util.random_params(encoding)
    return pe_jax.attention(q, k, v, **options)


def extend(q=Q, k=K_, v=V, positions=None, capacity=8, encoding=ROPE, params=None, **options):
    positions = util.contiguous(1, T) if positions is None else positions
    past = cache.empty(encoding, B, capacity, DIMS)
    params = util.random_params(encoding) if params is None else params
    options |= {"encoding": encoding, "params": params, "dims": DIMS}
    return cache.extend(past, q, k, v, positions, **options)[0]


def refuses(kind, message: str, f, *args, **options):
    """Raises `kind`, on one line that contains each part of `message` (split at …)."""
    with pytest.raises(kind) as found:
        f(*args, **options)
    said = str(found.value)
    assert "\n" not in said and len(said) < 250
    for part in message.split(" … "):
        assert part in said, said


FAR = np.full(T, 2**24)
NTK = pe_jax.make("rope", scaling=DynamicNTK(8.0, 2))  # depends on the length from 2 tokens on
